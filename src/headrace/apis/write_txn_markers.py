"""WriteTxnMarkers, versions 1-2: a coordinator ends a transaction in the partitions of another broker.

For nodes of the cluster only; whoever else sends this is refused with CLUSTER_AUTHORIZATION_FAILED for every partition.
A partition is answered for when its marker is committed. From version 2 on the coordinator says by which protocol the
transaction is ended; by the newer one a marker that comes too late is told by its epoch, and refused.
"""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError, ErrorCode

BUMPED = 2  # the transaction version from which every end has an epoch of its own
COMMIT_SECONDS = 4.0  # less than the coordinator waits

Place = tuple[int, str, int]  # number of the marker, topic, partition


async def handle(ctx: Context, request: Any) -> Answer:
    errors: dict[Place, ErrorCode] = {}
    waits: list[tuple[Place, asyncio.Future[None]]] = []
    for number, marker in enumerate(request.markers):
        for topic in marker.topics:
            for index in topic.partition_indexes:
                place = (number, topic.name, index)
                try:
                    waits.append((place, _write(ctx, marker, topic.name, index)))
                except ApiError as error:
                    ctx.service.count_error("WriteTxnMarkers", error.code)
                    errors[place] = error.code
    if waits:
        deadline = asyncio.get_running_loop().time() + COMMIT_SECONDS
        for place, committed in waits:
            errors[place] = await _outcome(committed, deadline)
    return _answer(request, errors)


def _write(ctx: Context, marker: Any, topic: str, index: int) -> asyncio.Future[None]:
    """Resolved when the marker is committed. Asked for now: what lies there in a later epoch is something else."""
    if ctx.peer is None:
        raise ApiError(ErrorCode.cluster_authorization_failed)
    partition = ctx.service.partitions.get(topic, index)
    next_offset = partition.write_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        bumped=getattr(marker, "transaction_version", 0) >= BUMPED,
    )
    return partition.committed(next_offset)


async def _outcome(committed: asyncio.Future[None], deadline: float) -> ErrorCode:
    left = deadline - asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(max(left, 0.0)):
            await committed
    except ApiError as error:
        return error.code
    except TimeoutError:
        return ErrorCode.request_timed_out
    return ErrorCode.none


def _answer(request: Any, errors: dict[Place, ErrorCode]) -> Answer:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": errors[number, topic.name, index]}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for number, marker in enumerate(request.markers)
        ]
    }


API = Api(key=27, name="WriteTxnMarkers", versions=(1, 2), handle=handle)
