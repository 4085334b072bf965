"""OffsetFetch, versions 1-10: how far a group has read. From version 8 on of several groups; from 10 on topics by id.

No topics (null) means all that the group has committed. A partition without a committed offset has offset -1 and no
error, and so has every partition of a group that nobody knows. With `require_stable` a partition whose offset a
transaction that has not ended may change is UNSTABLE_OFFSET_COMMIT: the client asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import FetchedOffset

SEVERAL_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


async def handle(ctx: Context, request: Any) -> Answer:
    stable = getattr(request, "require_stable", False)
    if ctx.version < SEVERAL_GROUPS_SINCE:
        topics = await _topics(ctx, request.group_id, request.topics, stable)
        return {"topics": topics, "error_code": ErrorCode.none}
    groups = []
    async for group in in_turns(ctx, request.groups):
        try:
            topics = await _topics(
                ctx,
                group.group_id,
                group.topics,
                stable,
                member_id=getattr(group, "member_id", None),
                member_epoch=getattr(group, "member_epoch", -1),
            )
            groups.append({"group_id": group.group_id, "topics": topics, "error_code": ErrorCode.none})
        except ApiError as error:
            groups.append({"group_id": group.group_id, "topics": [], "error_code": error.code})
    return {"groups": groups}


async def _topics(
    ctx: Context, group: str, topics: Any, stable: bool, *, member_id: str | None = None, member_epoch: int = -1
) -> list[Answer]:
    if topics is None:
        everything = await ctx.service.groups.fetch(group, member_id=member_id, member_epoch=member_epoch)
        return _everything(ctx, everything, stable)
    names = [_name(ctx, topic) for topic in topics]
    asked = [
        (name, partition)
        for name, topic in zip(names, topics, strict=True)
        if name is not None
        for partition in topic.partition_indexes
    ]
    fetched = await ctx.service.groups.fetch(group, asked, member_id=member_id, member_epoch=member_epoch)
    offsets = iter(fetched)
    return [
        {
            **({"topic_id": topic.topic_id} if ctx.version >= TOPIC_IDS_SINCE else {"name": topic.name}),
            "partitions": [
                _row(next(offsets), stable) if name is not None else _unknown(partition)
                for partition in topic.partition_indexes
            ],
        }
        for name, topic in zip(names, topics, strict=True)
    ]


def _everything(ctx: Context, offsets: Iterable[FetchedOffset], stable: bool) -> list[Answer]:
    by_topic: dict[str, list[Answer]] = {}
    for offset in offsets:
        by_topic.setdefault(offset.topic, []).append(_row(offset, stable))
    if ctx.version < TOPIC_IDS_SINCE:
        return [{"name": name, "partitions": rows} for name, rows in by_topic.items()]
    known = ctx.service.image.topics  # a topic that is gone has no id to show
    return [{"topic_id": known[name].topic_id, "partitions": rows} for name, rows in by_topic.items() if name in known]


def _name(ctx: Context, topic: Any) -> str | None:
    return topic.name if ctx.version < TOPIC_IDS_SINCE else ctx.service.image.topic_names.get(topic.topic_id)


def _row(offset: FetchedOffset, stable: bool) -> Answer:
    if stable and offset.unstable:
        return {**_unknown(offset.partition), "error_code": ErrorCode.unstable_offset_commit}
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }


def _unknown(partition: int) -> Answer:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": ErrorCode.unknown_topic_id,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    """Only versions below 8 come here. Version 1 has no error of its own: each partition carries it."""
    if ctx.version >= 2:
        return {"topics": [], "error_code": error.code}
    topics = [
        {
            "name": topic.name,
            "partitions": [{**_unknown(index), "error_code": error.code} for index in topic.partition_indexes],
        }
        for topic in request.topics or ()
    ]
    return {"topics": topics}


API = Api(key=9, name="OffsetFetch", versions=(1, 10), handle=handle, on_error=on_error)
