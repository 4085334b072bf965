"""ListGroups, versions 0-5: all groups, from version 4 on by state, from version 5 on by type.

Filters do not care about case. A type is "classic" or "consumer" (KIP-848).
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.encoder import Joined
from headrace.wire.messages import element_encoder


async def handle(ctx: Context, request: Any) -> Answer:
    states = {state.strip().lower() for state in getattr(request, "states_filter", None) or ()}
    types = {kind.strip().lower() for kind in getattr(request, "types_filter", None) or ()}
    write, rows, number = element_encoder(API.key, ctx.version, "groups"), bytearray(), 0
    async for group, protocol_type, state, kind in in_turns(ctx, ctx.service.groups.listed()):
        if (not states or state.lower() in states) and (not types or kind in types):
            number += 1  # encoded at once: there may be many, and others may have as many
            write(rows, {"group_id": group, "protocol_type": protocol_type, "group_state": state, "group_type": kind})
    return {"error_code": ErrorCode.none, "groups": Joined(number, bytes(rows))}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "groups": []}


API = Api(key=16, name="ListGroups", versions=(0, 5), handle=handle, on_error=on_error)
