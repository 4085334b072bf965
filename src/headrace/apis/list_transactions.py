"""ListTransactions, versions 0-2: the transactional ids, filtered by state, producer id, duration (1) and pattern (2).

States that nobody knows are named in the answer. A pattern must match the whole id; one that cannot be read gets
INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.patterns import Pattern, PatternError
from headrace.txn.records import State

BY_TITLE = {state.title: state for state in State}


async def handle(ctx: Context, request: Any) -> Answer:
    pattern = _pattern(getattr(request, "transactional_id_pattern", None))
    states = {BY_TITLE[title] for title in request.state_filters if title in BY_TITLE}
    producer_ids = set(request.producer_id_filters)
    duration_ms = getattr(request, "duration_filter", -1)
    now_ms = ctx.service.clock.now_ms()
    rows = []
    async for name, known in in_turns(ctx, await ctx.service.transactions.list()):
        if (
            (request.state_filters and known.state not in states)
            or (producer_ids and known.producer_id not in producer_ids)
            or (duration_ms >= 0 and now_ms - known.start_ms <= duration_ms)
            or (pattern is not None and not pattern.matches(name))
        ):
            continue
        row = {"transactional_id": name, "producer_id": known.producer_id, "transaction_state": known.state.title}
        rows.append(row)
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": [title for title in request.state_filters if title not in BY_TITLE],
        "transaction_states": rows,
    }


def _pattern(text: str | None) -> Pattern | None:
    if not text:
        return None
    try:
        return Pattern(text)
    except PatternError as error:
        raise ApiError(ErrorCode.invalid_regular_expression, str(error)) from error


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code}


API = Api(key=66, name="ListTransactions", versions=(0, 2), handle=handle, on_error=on_error)
