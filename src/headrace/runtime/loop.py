"""The event loop: uvloop where there is one, and a probe that tells how late the loop runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from headrace.core.counters import Histogram

T = TypeVar("T")
PROBE_SECONDS: Final = 0.5


def factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a new loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Like `asyncio.run`, on the fastest loop that is installed."""
    with asyncio.Runner(debug=debug, loop_factory=factory()) as runner:
        return runner.run(main)


async def probe(delays: Histogram, *, seconds: float = PROBE_SECONDS, each: Callable[[], object] | None = None) -> None:
    """For ever: note how late a timer fires. Whatever else holds the loop for long shows up here.

    `each` is called after every measurement (the logs' `sweep`, for one).
    """
    while True:
        due = time.monotonic() + seconds  # uvloop's own time moves in milliseconds only
        await asyncio.sleep(seconds)
        delays.observe(max(0.0, time.monotonic() - due))
        if each is not None:
            each()
