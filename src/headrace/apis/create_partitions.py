"""CreatePartitions, versions 0-3: topics get more partitions, never fewer.

Replicas are placed by the broker unless the request assigns all of the new partitions. `validate_only` checks only.

Differs from Kafka: internal topics cannot be grown (INVALID_TOPIC_EXCEPTION), since groups are
found by their partition count.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.topics import NewPartitions
from headrace.core.errors import ApiError


async def handle(ctx: Context, request: Any) -> Answer:
    wanted = [
        NewPartitions(
            name=topic.name,
            count=topic.count,
            assignments=None if topic.assignments is None else [tuple(item.broker_ids) for item in topic.assignments],
        )
        for topic in request.topics
    ]
    outcomes = await ctx.service.topics.add_partitions(wanted, validate_only=request.validate_only)
    return {"results": [_answer(outcome.name, outcome.error) for outcome in outcomes]}


def _answer(name: Any, error: ApiError | None) -> Answer:
    return {"name": name} if error is None else {"name": name, "error_code": error.code, "error_message": str(error)}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"results": [_answer(topic.name, error) for topic in request.topics]}


API = Api(key=37, name="CreatePartitions", versions=(0, 3), handle=handle, on_error=on_error, for_controller=True)
