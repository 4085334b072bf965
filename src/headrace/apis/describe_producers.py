"""DescribeProducers, version 0: the producers that a partition remembers, and where their open transactions begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import topic_name_fault

if TYPE_CHECKING:
    from headrace.storage.producers import Producer


async def handle(ctx: Context, request: Any) -> Answer:
    topics: list[dict[str, Any]] = [{"name": topic.name, "partitions": []} for topic in request.topics]
    places = ((at, topic.name, index) for at, topic in enumerate(request.topics) for index in topic.partition_indexes)
    async for at, name, index in in_turns(ctx, places):
        topics[at]["partitions"].append(_describe(ctx, name, index))
    return {"topics": topics}


def _describe(ctx: Context, topic: str, index: int) -> Answer:
    try:
        if (fault := topic_name_fault(topic)) is not None:
            raise ApiError(ErrorCode.invalid_topic_exception, fault)
        partition = ctx.service.partitions.get(topic, index)
    except ApiError as error:
        return {"partition_index": index, "error_code": error.code, "error_message": error.message or None}
    rows = [_row(producer_id, known) for producer_id, known in partition.log.producers.items()]
    return {"partition_index": index, "error_code": ErrorCode.none, "error_message": None, "active_producers": rows}


def _row(producer_id: int, known: Producer) -> Answer:
    last = known.batches[-1] if known.batches else None
    return {
        "producer_id": producer_id,
        "producer_epoch": known.epoch,
        "last_sequence": -1 if last is None else last.last_sequence,
        "last_timestamp": -1 if last is None else last.timestamp,
        "coordinator_epoch": known.coordinator_epoch,
        "current_txn_start_offset": known.first_offset,
    }


API = Api(key=61, name="DescribeProducers", versions=(0, 0), handle=handle)
