"""ConsumerGroupDescribe, versions 0-1 (KIP-848): epochs, members, what they have and what they are to have.

A group that nobody knows, or that uses the classic protocol (see DescribeGroups), has GROUP_ID_NOT_FOUND. Version 1
says which protocol each member speaks. Topics that are gone are left out.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.apis import operations
from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.apis.describe_groups import ON_GROUP
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import ConsumerDescription, DescribedConsumer
from headrace.group.topics import Grouped

CLASSIC: Final = 0
CONSUMER: Final = 1


async def handle(ctx: Context, request: Any) -> Answer:
    allowed = ON_GROUP if request.include_authorized_operations else operations.NOT_ASKED
    groups = []
    async for name in in_turns(ctx, request.group_ids):
        try:
            described = await ctx.service.groups.describe_consumer(name)
        except ApiError as error:
            groups.append(_refused(name, error.code, str(error)))
            continue
        if described.fault is not None:
            groups.append(_refused(name, ErrorCode.group_id_not_found, described.fault))
        else:
            groups.append(_answer(ctx, described, allowed))
    return {"groups": groups}


def _answer(ctx: Context, described: ConsumerDescription, allowed: int) -> Answer:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": described.group,
        "group_state": described.state,
        "group_epoch": described.group_epoch,
        "assignment_epoch": described.assignment_epoch,
        "assignor_name": described.assignor,
        "members": [_member(ctx, member) for member in described.members],
        "authorized_operations": allowed,
    }


def _member(ctx: Context, member: DescribedConsumer) -> Answer:
    facts = member.facts
    return {
        "member_id": member.member_id,
        "instance_id": facts.instance_id,
        "rack_id": facts.rack_id,
        "member_epoch": member.epoch,
        "client_id": facts.client_id,
        "client_host": facts.client_host,
        "subscribed_topic_names": sorted(facts.topics),
        "subscribed_topic_regex": facts.pattern or None,
        "assignment": _assignment(ctx, member.assigned),
        "target_assignment": _assignment(ctx, member.target),
        "member_type": CONSUMER if facts.classic is None else CLASSIC,
    }


def _assignment(ctx: Context, partitions: Grouped) -> Answer:
    names = ctx.service.image.topic_names
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": indexes}
            for topic_id, indexes in partitions
            if topic_id in names
        ]
    }


def _refused(group: str, code: ErrorCode, message: str) -> Answer:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": operations.NOT_ASKED,
    }


API = Api(key=69, name="ConsumerGroupDescribe", versions=(0, 1), handle=handle)
