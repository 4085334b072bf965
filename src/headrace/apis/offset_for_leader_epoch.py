"""OffsetForLeaderEpoch, versions 2-4: where a leader epoch ended, for clients that check for truncation.

Followers find that out by Fetch. Who names a replica and is no node of the cluster gets CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    replica = getattr(request, "replica_id", -1)
    allowed = replica < 0 or replica == ctx.peer
    topics: list[dict[str, Any]] = [{"topic": topic.topic, "partitions": []} for topic in request.topics]
    places = ((at, topic.topic, part) for at, topic in enumerate(request.topics) for part in topic.partitions)
    async for at, name, part in in_turns(ctx, places):
        topics[at]["partitions"].append(_end(ctx, name, part, allowed))
    return {"topics": topics}


def _end(ctx: Context, topic: str, part: Any, allowed: bool) -> Answer:
    try:
        if not allowed:
            raise ApiError(ErrorCode.cluster_authorization_failed)
        partition = ctx.service.partitions.get(topic, part.partition)
        ctx.service.check_epoch(partition, part.current_leader_epoch)
        epoch, end_offset = partition.epoch_end(part.leader_epoch)
    except ApiError as error:
        return {"partition": part.partition, "error_code": error.code, "leader_epoch": -1, "end_offset": -1}
    return {"partition": part.partition, "leader_epoch": epoch, "end_offset": end_offset}


API = Api(key=23, name="OffsetForLeaderEpoch", versions=(2, 4), handle=handle)
