"""DeleteTopics, versions 1-6: by name; from version 6 on by name or id.

A topic that is named twice is refused, as is one that is given by name and id at once.

Differs from Kafka: internal topics cannot be deleted (INVALID_TOPIC_EXCEPTION). Answers come in the request's order.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    outcomes = await ctx.service.topics.delete(_targets(request))
    return {"responses": [_answer(outcome.name, outcome.topic_id, outcome.error) for outcome in outcomes]}


def _targets(request: Any) -> list[tuple[Any, Any]]:
    names = getattr(request, "topic_names", ())
    return [*((name, None) for name in names), *((t.name, t.topic_id) for t in getattr(request, "topics", ()))]


def _answer(name: Any, topic_id: Any, error: ApiError | None) -> Answer:
    answer = {"name": name, "topic_id": topic_id}
    return answer if error is None else {**answer, "error_code": error.code, "error_message": str(error)}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    if error.code is ErrorCode.topic_deletion_disabled and ctx.version < 3:
        error = ApiError(ErrorCode.invalid_request, error.message)
    return {"responses": [_answer(name, topic_id, error) for name, topic_id in _targets(request)]}


API = Api(key=20, name="DeleteTopics", versions=(1, 6), handle=handle, on_error=on_error, for_controller=True)
