"""InitProducerId, versions 0-5.

An idempotent producer gets a producer id that nobody else ever had, with epoch 0. Ids come in blocks that the metadata
log records, so that a restart never hands one out twice. A producer that already has an id and asks to go on with a
higher epoch (KIP-360) gets a fresh id.

A transactional producer gets the next epoch of its transactional id; whoever had it before is fenced, and what that one
had begun is aborted first. Versions 3 and newer may name the id and epoch that the producer has, and then only the
present one goes on. Versions below 4 do not know PRODUCER_FENCED: they get INVALID_PRODUCER_EPOCH.

Differs from Kafka: an abort that is quickly done is waited for, where Kafka answers CONCURRENT_TRANSACTIONS at once.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.apis.join_group import in_ms
from headrace.core.errors import ApiError, ErrorCode

FENCED_FROM = 4


async def handle(ctx: Context, request: Any) -> Answer:
    if request.transactional_id is None:
        return {"producer_id": await ctx.service.producer_ids.next_id(), "producer_epoch": 0}
    expected = (getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if (expected[0] == -1) != (expected[1] == -1):
        raise ApiError(ErrorCode.invalid_request, "a producer id goes with an epoch")
    answer = await ctx.service.transactions.init_producer_id(
        request.transactional_id,
        in_ms(request.transaction_timeout),
        None if expected[0] == -1 else expected,
    )
    return {
        "error_code": fenced_as_known(answer.error, ctx.version >= FENCED_FROM),
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def fenced_as_known(error: ErrorCode, knows: bool) -> ErrorCode:
    """PRODUCER_FENCED by the name that older clients have for it."""
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced and not knows else error


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}


API = Api(key=22, name="InitProducerId", versions=(0, 5), handle=handle, on_error=on_error)
