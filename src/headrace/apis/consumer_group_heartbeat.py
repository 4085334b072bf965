"""ConsumerGroupHeartbeat, versions 0-1 (KIP-848): join, stay in, or leave a group whose partitions the broker assigns.

A member joins with epoch 0, leaves with -1, or with -2 if it is static and will be back. What is null is as before.
From version 1 on the member brings its own id and may subscribe by a regular expression.

Differs from Kafka: a pattern never means internal topics; a static member may repeat its first request.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, groups_are_open
from headrace.apis.join_group import in_ms
from headrace.core.errors import ApiError
from headrace.group.commands import HeartbeatAnswer
from headrace.group.topics import Grouped

OWN_ID_SINCE = 1


async def handle(ctx: Context, request: Any) -> Answer:
    rebalance_timeout_ms = in_ms(request.rebalance_timeout)
    owned = request.topic_partitions
    answer = await ctx.service.groups.consumer_heartbeat(
        group=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=ctx.client_id,
        client_host=f"/{ctx.client_host}",
        rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else None,
        topics=request.subscribed_topic_names,
        pattern=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None if owned is None else _grouped(owned),
        must_bring_id=ctx.version >= OWN_ID_SINCE,
    )
    return _answer(answer)


def _grouped(topics: Any) -> Grouped:
    return tuple((topic.topic_id, topic.partitions) for topic in topics if topic.topic_id is not None)


def _answer(answer: HeartbeatAnswer) -> Answer:
    assignment = None
    if answer.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in answer.assignment
            ]
        }
    return {
        "error_code": answer.error,
        "error_message": answer.message,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": assignment,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return _answer(HeartbeatAnswer(error=error.code, message=str(error)))


API = Api(
    key=68, name="ConsumerGroupHeartbeat", versions=(0, 1), handle=handle, on_error=on_error, overlaps=groups_are_open
)
