"""ElectLeaders, versions 0-2: nothing to elect, so each partition that is asked for answers ELECTION_NOT_NEEDED.

With no list (all partitions), those that need no election are left out, as Kafka does. Partitions that do not exist
answer UNKNOWN_TOPIC_OR_PARTITION. Election types are preferred (0) and unclean (1).

Differs from Kafka: one node leads everything, so no election ever takes place.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError, ErrorCode

ELECTION_TYPES = (0, 1)


def handle(ctx: Context, request: Any) -> Answer:
    election_type = getattr(request, "election_type", 0)
    if election_type not in ELECTION_TYPES:
        raise ApiError(ErrorCode.invalid_request, f"Unknown election type {election_type}")
    if request.topic_partitions is None:
        return {
            "replica_election_results": [{"topic": name, "partition_result": []} for name in ctx.service.image.topics]
        }
    return {
        "replica_election_results": [
            {"topic": asked.topic, "partition_result": [_outcome(ctx, asked.topic, i) for i in asked.partitions]}
            for asked in request.topic_partitions
        ]
    }


def _outcome(ctx: Context, topic: str, index: int) -> Answer:
    image = ctx.service.image
    if image.partition(topic, index) is not None:
        code, message = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    else:
        code = ErrorCode.unknown_topic_or_partition
        message = f"No such partition as {topic}-{index}" if topic in image.topics else f"No such topic as {topic}"
    return {"partition_id": index, "error_code": code, "error_message": message}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    # Version 0 has no error for the whole request, so each partition carries it too.
    return {
        "error_code": error.code,
        "replica_election_results": [
            {
                "topic": asked.topic,
                "partition_result": [
                    {"partition_id": index, "error_code": error.code, "error_message": str(error)}
                    for index in asked.partitions
                ],
            }
            for asked in request.topic_partitions or ()
        ],
    }


API = Api(key=43, name="ElectLeaders", versions=(0, 2), handle=handle, on_error=on_error, for_controller=True)
