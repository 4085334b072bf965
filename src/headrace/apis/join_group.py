"""JoinGroup, versions 0-9: become a member, or take part in the next generation.

The answer comes when the rebalance completes. Version 0 has no rebalance timeout (the session timeout serves), versions
below 4 join without asking for an id first, versions below 5 know no static members, version 9 lets a returning static
leader skip the assignment.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.apis.api import Answer, Api, Context, groups_are_open
from headrace.core.errors import ApiError
from headrace.group.commands import JoinAnswer

MUST_KNOW_ID_SINCE = 4
NULL_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


async def handle(ctx: Context, request: Any) -> Answer:
    session_timeout_ms = in_ms(request.session_timeout)
    rebalance_timeout_ms = in_ms(getattr(request, "rebalance_timeout", request.session_timeout))
    joined = await ctx.service.groups.join(
        group=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=ctx.client_id,
        client_host=f"/{ctx.client_host}",
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=((protocol.name, protocol.metadata) for protocol in request.protocols),
        must_know_id=ctx.version >= MUST_KNOW_ID_SINCE,
        may_skip_assignment=ctx.version >= SKIP_ASSIGNMENT_SINCE,
    )
    return _answer(ctx, joined)


def in_ms(duration: timedelta) -> int:
    """A duration as kio has it, in whole milliseconds."""
    return round(duration.total_seconds() * 1000)


def _answer(ctx: Context, joined: JoinAnswer) -> Answer:
    nothing = None if ctx.version >= NULL_PROTOCOL_SINCE else ""
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": nothing if joined.protocol is None else joined.protocol,
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.instance_id, "metadata": m.metadata}
            for m in joined.members
        ],
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return _answer(ctx, JoinAnswer(error=error.code, member_id=request.member_id))


API = Api(key=11, name="JoinGroup", versions=(0, 9), handle=handle, on_error=on_error, overlaps=groups_are_open)
