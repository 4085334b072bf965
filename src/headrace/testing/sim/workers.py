"""Work that would block a thread, done in the loop at a later moment.

Rules:
- Several pieces are under way at once and end in any order, as with threads.
- A piece takes effect at its beginning, or at its end: who relies on the one meets the other under some seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class SimWorkers:
    """`delay_s` may be changed at any time: a disk that has become slow."""

    def __init__(self, dice: Random, delay_s: float = 0.001) -> None:
        self._dice = dice
        self.delay_s = delay_s

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        delay = self._dice.expovariate(1.0) * self.delay_s
        if self._dice.random() < 0.5:
            outcome = _outcome(work)
            loop.call_later(delay, _settle, future, outcome)
        else:
            loop.call_later(delay, lambda: _settle(future, _outcome(work)))
        return future

    def close(self) -> None: ...


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _settle(future: asyncio.Future[Any], outcome: tuple[Any, Exception | None]) -> None:
    if future.done():
        return
    result, error = outcome
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
