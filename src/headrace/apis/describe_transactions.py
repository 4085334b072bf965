"""DescribeTransactions, version 0: what is known of some transactional ids.

Differs from Kafka: while a transaction is being ended, all its partitions are shown, not only those that still lack
their marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.txn.records import Transaction


async def handle(ctx: Context, request: Any) -> Answer:
    return {
        "transaction_states": [await _describe(ctx, name) async for name in in_turns(ctx, request.transactional_ids)]
    }


async def _describe(ctx: Context, name: str) -> Answer:
    if not name:
        return {"transactional_id": name, "error_code": ErrorCode.invalid_request}
    try:
        known = await ctx.service.transactions.describe(name)
    except ApiError as error:
        return {"transactional_id": name, "error_code": error.code}
    if known is None:
        return {"transactional_id": name, "error_code": ErrorCode.transactional_id_not_found}
    return {
        "error_code": ErrorCode.none,
        "transactional_id": name,
        "transaction_state": known.state.title,
        "transaction_timeout": known.timeout_ms,
        "transaction_start_time": known.start_ms,
        "producer_id": known.producer_id,
        "producer_epoch": known.producer_epoch,
        "topics": _topics(known),
    }


def _topics(known: Transaction) -> list[Answer]:
    topics: dict[str, list[int]] = {}
    for topic, partition in known.partitions:
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()]


API = Api(key=65, name="DescribeTransactions", versions=(0, 0), handle=handle)
