"""DeleteRecords, versions 0-2: forget what lies below an offset; -1 means everything that is committed.

A compacted topic that does not also delete refuses (POLICY_VIOLATION), and so do internal topics. The answer waits
until all replicas in sync have forgotten it, too: whoever leads next does not bring it back. If that takes longer than
the client's timeout it is REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.apis.api import Answer, Api, Context
from headrace.core import limits
from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.partition import Partition

LOOK_SECONDS = 0.01


async def handle(ctx: Context, request: Any) -> Answer:
    deadline = asyncio.get_running_loop().time() + max(0.0, request.timeout.total_seconds())
    rows = iter(
        await asyncio.gather(
            *(_delete(ctx, topic.name, part, deadline) for topic in request.topics for part in topic.partitions)
        )
    )
    return {
        "topics": [
            {"name": topic.name, "partitions": [next(rows) for _ in topic.partitions]} for topic in request.topics
        ]
    }


async def _delete(ctx: Context, topic: str, part: Any, deadline: float) -> Answer:
    index = part.partition_index
    try:
        if topic in limits.INTERNAL_TOPICS:
            raise ApiError(ErrorCode.invalid_topic_exception)
        partition = ctx.service.partitions.get(topic, index)
        if not partition.log.config.deletes:
            raise ApiError(ErrorCode.policy_violation)
        low = partition.delete_before(part.offset)
        await ctx.service.flusher.flush(partition)
        await _forgotten(partition, low, deadline)
    except ApiError as error:
        return {"partition_index": index, "low_watermark": -1, "error_code": error.code}
    return {"partition_index": index, "low_watermark": low}


async def _forgotten(partition: Partition, offset: int, deadline: float) -> None:
    """Wait until the replicas in sync begin at `offset`, too. Their next fetches tell. Raises ApiError."""
    while partition.replicas is not None and not partition.replicas.all_begin_at(offset):
        if asyncio.get_running_loop().time() >= deadline:
            raise ApiError(ErrorCode.request_timed_out)
        await asyncio.sleep(LOOK_SECONDS)
    if not partition.leads:
        raise ApiError(ErrorCode.not_leader_or_follower)


API = Api(key=21, name="DeleteRecords", versions=(0, 2), handle=handle)
