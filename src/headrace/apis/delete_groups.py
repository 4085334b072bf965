"""DeleteGroups, versions 0-2: groups without members are deleted, with their offsets."""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError


async def handle(ctx: Context, request: Any) -> Answer:
    results = []
    async for group in in_turns(ctx, dict.fromkeys(request.groups_names)):
        try:
            error = await ctx.service.groups.delete(group)
        except ApiError as refused:
            error = refused.code
        results.append({"group_id": group, "error_code": error})
    return {"results": results}


API = Api(key=42, name="DeleteGroups", versions=(0, 2), handle=handle)
