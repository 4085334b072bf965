"""What a log line may carry besides its sentence.

Rules:
- Every package logs through the standard library: `logging.getLogger("headrace.<package>")`, a fixed sentence, and its
  values in `extra`. `runtime.logs` alone decides how a line looks and where it goes.
- A line that a peer can provoke is made with `limited`: after a few of the same kind the rest are only counted.
- While a request is handled, `REQUEST` holds it, and every line that is written meanwhile carries it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, NamedTuple

LIMIT: Final = "limit"  # the key of `extra` that names a line's kind


class RequestLine(NamedTuple):
    """The request that a log line belongs to."""

    api: str
    correlation_id: int
    client_id: str
    connection: str


REQUEST: Final[ContextVar[RequestLine | None]] = ContextVar("headrace_request", default=None)


def limited(kind: str, **values: Any) -> dict[str, Any]:
    """`extra` for a line of which only a few per kind are written every ten seconds."""
    return {LIMIT: kind, **values}
