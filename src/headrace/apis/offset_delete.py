"""OffsetDelete, version 0: a group forgets how far it has read some partitions.

Topics that the group is subscribed to are refused (GROUP_SUBSCRIBED_TO_TOPIC), one by one.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    image = ctx.service.image
    asked = [(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
    known = [
        (name, index)
        for name, index in asked
        if name in image.topics and 0 <= index < len(image.topics[name].partitions)
    ]
    outcome = await ctx.service.groups.delete_offsets(request.group_id, known)
    if outcome.error is not ErrorCode.none:
        return {"error_code": outcome.error, "topics": []}
    errors = dict(zip(known, outcome.errors, strict=True))
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": part.partition_index,
                    "error_code": errors.get((topic.name, part.partition_index), ErrorCode.unknown_topic_or_partition),
                }
                for part in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return {"error_code": ErrorCode.none, "topics": topics}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "topics": []}


API = Api(key=47, name="OffsetDelete", versions=(0, 0), handle=handle, on_error=on_error)
