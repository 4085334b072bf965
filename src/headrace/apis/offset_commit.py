"""OffsetCommit, versions 2-10: remember how far a group has read. From version 10 on topics are given by id.

Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID for ids); the others are committed. An
error of the group or the member is every partition's error. Versions 2-4 may ask for a retention of their own. Members
of the new protocol (KIP-848) need version 9, give their epoch as generation, and get STALE_MEMBER_EPOCH for an old one.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, groups_are_open
from headrace.apis.join_group import in_ms
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import OffsetToCommit

GROUP_NOT_FOUND_SINCE = 9
TOPIC_IDS_SINCE = 10


async def handle(ctx: Context, request: Any) -> Answer:
    accepted: list[OffsetToCommit] = []
    places: list[tuple[int, int]] = []
    topics: list[list[ErrorCode]] = []
    for topic in request.topics:
        name, fault = _name(ctx, topic)
        errors = [_partition_fault(ctx, name, part.partition_index, fault) for part in topic.partitions]
        for at, part in enumerate(topic.partitions):
            if errors[at] is ErrorCode.none:
                places.append((len(topics), at))
                accepted.append(_to_commit(name, part))
        topics.append(errors)
    if accepted:
        retention_ms = in_ms(request.retention_time) if hasattr(request, "retention_time") else -1
        newest = ctx.version >= GROUP_NOT_FOUND_SINCE
        outcome = await ctx.service.groups.commit(
            group=request.group_id,
            offsets=accepted,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=getattr(request, "group_instance_id", None),
            retention_ms=retention_ms if retention_ms >= 0 else None,
            unknown_group=ErrorCode.group_id_not_found if newest else ErrorCode.illegal_generation,
            knows_epochs=newest,
        )
        for (topic_at, at), error in zip(places, outcome.errors, strict=True):
            topics[topic_at][at] = error
    return _answer(request, topics)


def _name(ctx: Context, topic: Any) -> tuple[str, ErrorCode]:
    """A topic's name, and what is wrong with it."""
    if ctx.version < TOPIC_IDS_SINCE:
        known = topic.name in ctx.service.image.topics
        return topic.name, ErrorCode.none if known else ErrorCode.unknown_topic_or_partition
    name = ctx.service.image.topic_names.get(topic.topic_id)
    return name or "", ErrorCode.unknown_topic_id if name is None else ErrorCode.none


def _partition_fault(ctx: Context, topic: str, partition: int, fault: ErrorCode) -> ErrorCode:
    if fault is not ErrorCode.none:
        return fault
    known = 0 <= partition < len(ctx.service.image.topics[topic].partitions)
    return ErrorCode.none if known else ErrorCode.unknown_topic_or_partition


def _to_commit(topic: str, part: Any) -> OffsetToCommit:
    leader_epoch = getattr(part, "committed_leader_epoch", -1)
    return OffsetToCommit(
        topic, part.partition_index, part.committed_offset, leader_epoch, part.committed_metadata or ""
    )


def _answer(request: Any, errors: list[list[ErrorCode]]) -> Answer:
    topics = []
    for topic, codes in zip(request.topics, errors, strict=True):
        rows = [
            {"partition_index": part.partition_index, "error_code": code}
            for part, code in zip(topic.partitions, codes, strict=True)
        ]
        identity = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}
        topics.append({**identity, "partitions": rows})
    return {"topics": topics}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return _answer(request, [[error.code] * len(topic.partitions) for topic in request.topics])


API = Api(key=8, name="OffsetCommit", versions=(2, 10), handle=handle, on_error=on_error, overlaps=groups_are_open)
