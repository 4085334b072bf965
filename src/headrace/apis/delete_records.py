"""DeleteRecords, versions 0-2: forget what lies below an offset; -1 means everything that is committed.

A compacted topic that does not also delete refuses (POLICY_VIOLATION), and so do internal topics.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core import limits
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    return {
        "topics": [
            {"name": topic.name, "partitions": [await _delete(ctx, topic.name, part) for part in topic.partitions]}
            for topic in request.topics
        ]
    }


async def _delete(ctx: Context, topic: str, part: Any) -> Answer:
    index = part.partition_index
    try:
        if topic in limits.INTERNAL_TOPICS:
            raise ApiError(ErrorCode.invalid_topic_exception)
        partition = ctx.service.partitions.get(topic, index)
        if not partition.log.config.deletes:
            raise ApiError(ErrorCode.policy_violation)
        low = partition.delete_before(part.offset)
        await ctx.service.flusher.flush(partition)
    except ApiError as error:
        return {"partition_index": index, "low_watermark": -1, "error_code": error.code}
    return {"partition_index": index, "low_watermark": low}


API = Api(key=21, name="DeleteRecords", versions=(0, 2), handle=handle)
