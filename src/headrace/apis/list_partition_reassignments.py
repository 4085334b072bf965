"""ListPartitionReassignments, version 0: replicas that are on the move. On one node there are none."""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context


def handle(ctx: Context, request: Any) -> Answer:
    return {"topics": []}


API = Api(key=46, name="ListPartitionReassignments", versions=(0, 0), handle=handle, for_controller=True)
