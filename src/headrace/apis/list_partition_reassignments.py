"""ListPartitionReassignments, version 0: replicas that are on the move. The controller answers.

With no list of topics, all that move; of those that are named, only what moves is answered.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.image import PartitionRecord
from headrace.core.errors import ApiError


def handle(ctx: Context, request: Any) -> Answer:
    image = ctx.service.image
    found: dict[str, list[PartitionRecord]] = {}
    if request.topics is None:
        for topic in image.topics.values():
            found[topic.name] = list(topic.partitions)
    else:
        for asked in request.topics:
            records = (image.partition(asked.name, index) for index in asked.partition_indexes)
            found[asked.name] = [record for record in records if record is not None]
    return {
        "error_message": None,
        "topics": [
            {"name": name, "partitions": moving}
            for name, records in found.items()
            if (moving := [_moving(record) for record in records if record.adding or record.removing])
        ],
    }


def _moving(record: PartitionRecord) -> Answer:
    return {
        "partition_index": record.index,
        "replicas": record.replicas,
        "adding_replicas": record.adding,
        "removing_replicas": record.removing,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "error_message": str(error), "topics": []}


API = Api(
    key=46,
    name="ListPartitionReassignments",
    versions=(0, 0),
    handle=handle,
    on_error=on_error,
    for_controller=True,
)
