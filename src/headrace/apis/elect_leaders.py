"""ElectLeaders, versions 0-2: preferred (0) and unclean (1) elections.

A preferred election gives a leadership back to the first replica, if that is in sync and up; an unclean one makes any
replica that is up the leader where nobody in sync is, and may lose records. Partitions that need no election answer
ELECTION_NOT_NEEDED; with no list (all partitions), those are left out, as Kafka does. The controller answers.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker import reassigning
from headrace.core.errors import ApiError, ErrorCode

ELECTION_TYPES = (reassigning.PREFERRED, reassigning.UNCLEAN)


async def handle(ctx: Context, request: Any) -> Answer:
    kind = getattr(request, "election_type", reassigning.PREFERRED)
    if kind not in ELECTION_TYPES:
        raise ApiError(ErrorCode.invalid_request, f"Unknown election type {kind}")
    controller = ctx.service.controller
    everything = request.topic_partitions is None
    if everything:
        topics = controller.proposed.topics.values()
        asked = {topic.name: [record.index for record in topic.partitions] for topic in topics}
    else:
        asked = {topic.topic: list(topic.partitions) for topic in request.topic_partitions}
    places = [(topic, index) for topic, indexes in asked.items() for index in indexes]
    outcomes = await reassigning.elect(controller, places, kind, ctx.service.configs)
    return {
        "replica_election_results": [
            {
                "topic": topic,
                "partition_result": [
                    _outcome(index, error)
                    for index in indexes
                    for error in (outcomes[topic, index],)
                    if not (everything and error is not None and error.code is ErrorCode.election_not_needed)
                ],
            }
            for topic, indexes in asked.items()
        ]
    }


def _outcome(index: int, error: ApiError | None) -> Answer:
    code = ErrorCode.none if error is None else error.code
    return {"partition_id": index, "error_code": code, "error_message": None if error is None else str(error)}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    # Version 0 has no error for the whole request, so each partition carries it too.
    return {
        "error_code": error.code,
        "replica_election_results": [
            {"topic": asked.topic, "partition_result": [_outcome(index, error) for index in asked.partitions]}
            for asked in request.topic_partitions or ()
        ],
    }


API = Api(key=43, name="ElectLeaders", versions=(0, 2), handle=handle, on_error=on_error, for_controller=True)
