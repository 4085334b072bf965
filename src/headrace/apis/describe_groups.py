"""DescribeGroups, versions 0-6: state, protocol and members of groups.

A group that nobody knows, or that uses the new protocol (see ConsumerGroupDescribe), is Dead; from version 6 on it also
has the error GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.apis import operations
from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import Description

NOT_FOUND_SINCE = 6
OPERATIONS_SINCE = 3
ON_GROUP: Final = sum(
    1 << operation
    for operation in (
        operations.READ,
        operations.DELETE,
        operations.DESCRIBE,
        operations.DESCRIBE_CONFIGS,
        operations.ALTER_CONFIGS,
    )
)


async def handle(ctx: Context, request: Any) -> Answer:
    asked = ctx.version >= OPERATIONS_SINCE and request.include_authorized_operations
    groups = []
    async for name in in_turns(ctx, request.groups):
        try:
            described = await ctx.service.groups.describe(name)
        except ApiError as error:
            groups.append(_refused(name, error))
        else:
            groups.append(_answer(ctx, described, ON_GROUP if asked else operations.NOT_ASKED))
    return {"groups": groups}


def _answer(ctx: Context, described: Description, allowed: int) -> Answer:
    missing = not described.found and ctx.version >= NOT_FOUND_SINCE
    return {
        "error_code": ErrorCode.group_id_not_found if missing else ErrorCode.none,
        "error_message": described.fault if missing else None,
        "group_id": described.group,
        "group_state": described.state,
        "protocol_type": described.protocol_type,
        "protocol_data": described.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in described.members
        ],
        "authorized_operations": operations.NOT_ASKED if missing else allowed,
    }


def _refused(group: str, error: ApiError) -> Answer:
    return {
        "error_code": error.code,
        "error_message": str(error),
        "group_id": group,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": operations.NOT_ASKED,
    }


API = Api(key=15, name="DescribeGroups", versions=(0, 6), handle=handle)
