"""SyncGroup, versions 0-5: the leader hands in the assignment, every member gets its own part.

The answer comes when the leader's assignment is durable. Versions below 3 know no static members; from version 5 on the
protocol is named, and must be the one that was agreed.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, groups_are_open
from headrace.core.errors import ApiError, ErrorCode

NAMES_PROTOCOL_SINCE = 5


async def handle(ctx: Context, request: Any) -> Answer:
    protocol_type = getattr(request, "protocol_type", None)
    protocol = getattr(request, "protocol_name", None)
    if ctx.version >= NAMES_PROTOCOL_SINCE and (protocol_type is None or protocol is None):
        raise ApiError(ErrorCode.inconsistent_group_protocol)
    synced = await ctx.service.groups.sync(
        group=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=getattr(request, "group_instance_id", None),
        protocol_type=protocol_type,
        protocol=protocol,
        assignments=((item.member_id, item.assignment) for item in request.assignments),
    )
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "protocol_type": None, "protocol_name": None, "assignment": b""}


API = Api(key=14, name="SyncGroup", versions=(0, 5), handle=handle, on_error=on_error, overlaps=groups_are_open)
