"""OffsetForLeaderEpoch, versions 2-4: where a leader epoch ended, for clients that check for truncation."""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError


def handle(ctx: Context, request: Any) -> Answer:
    return {
        "topics": [
            {"topic": topic.topic, "partitions": [_end(ctx, topic.topic, part) for part in topic.partitions]}
            for topic in request.topics
        ]
    }


def _end(ctx: Context, topic: str, part: Any) -> Answer:
    try:
        partition = ctx.service.partitions.get(topic, part.partition)
        ctx.service.check_epoch(partition, part.current_leader_epoch)
        epoch, end_offset = partition.log.end_offset_for(part.leader_epoch)
    except ApiError as error:
        return {"partition": part.partition, "error_code": error.code, "leader_epoch": -1, "end_offset": -1}
    return {"partition": part.partition, "leader_epoch": epoch, "end_offset": end_offset}


API = Api(key=23, name="OffsetForLeaderEpoch", versions=(2, 4), handle=handle)
