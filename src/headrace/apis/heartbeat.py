"""Heartbeat, versions 0-4: a member is alive, and learns whether a rebalance is under way.

While groups are being loaded a heartbeat is answered with no error, as Kafka does: the member need not leave.

Differs from Kafka: a static member that does not tell its id (librdkafka, when the broker was away for longer than its
session) is unknown and joins again. Kafka fences it, which ends its client.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, groups_are_open
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    error = await ctx.service.groups.heartbeat(
        group=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=getattr(request, "group_instance_id", None),
    )
    return {"error_code": error}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    loading = error.code is ErrorCode.coordinator_load_in_progress
    return {"error_code": ErrorCode.none if loading else error.code}


API = Api(key=12, name="Heartbeat", versions=(0, 4), handle=handle, on_error=on_error, overlaps=groups_are_open)
