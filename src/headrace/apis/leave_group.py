"""LeaveGroup, versions 0-5: members leave at once instead of being missed.

From version 3 on several members leave in one request, by member id or, with an empty member id, by instance id; each
has its own error. Before, the one member's error is the answer's.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, groups_are_open
from headrace.core.errors import ApiError, ErrorCode

SEVERAL_SINCE = 3


async def handle(ctx: Context, request: Any) -> Answer:
    if ctx.version >= SEVERAL_SINCE:
        members = [(member.member_id, member.group_instance_id) for member in request.members]
    else:
        members = [(request.member_id, None)]
    if not request.group_id:
        raise ApiError(ErrorCode.invalid_group_id)
    left = await ctx.service.groups.leave(request.group_id, members)
    if ctx.version < SEVERAL_SINCE:
        return {"error_code": left.members[0][2]}
    return {
        "error_code": ErrorCode.none,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
            for member_id, instance_id, error in left.members
        ],
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "members": []}


API = Api(key=13, name="LeaveGroup", versions=(0, 5), handle=handle, on_error=on_error, overlaps=groups_are_open)
