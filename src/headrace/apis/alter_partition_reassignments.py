"""AlterPartitionReassignments, versions 0-1: give partitions other replicas (KIP-455). The controller answers.

The answer says that the move has begun, not that it has ended: ListPartitionReassignments tells. Replicas null cancels
a move that is under way. Version 1 can forbid a change of the replication factor.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker import reassigning
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    targets = [
        (topic.name, partition.partition_index, partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    may_change = getattr(request, "allow_replication_factor_change", True)
    outcomes = await reassigning.reassign(
        ctx.service.controller, targets, ctx.service.configs, may_change_factor=may_change
    )
    return {
        "allow_replication_factor_change": may_change,
        "error_message": None,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _outcome(partition.partition_index, outcomes[topic.name, partition.partition_index])
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _outcome(index: int, error: ApiError | None) -> Answer:
    return {
        "partition_index": index,
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else str(error),
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "error_message": str(error), "responses": []}


API = Api(
    key=45,
    name="AlterPartitionReassignments",
    versions=(0, 1),
    handle=handle,
    on_error=on_error,
    for_controller=True,
)
