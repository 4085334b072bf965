"""Threads for work that waits for a disk.

Rules:
- `run` is called on the loop; its awaitable resolves on the same loop.
- Work that has begun is never cancelled: a sync that is under way ends before `close` returns.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ThreadWorkers:
    """A few named threads, started when they are first needed."""

    def __init__(self, threads: int = 4, *, name: str = "headrace-disk") -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Blocking: waits for the work that has begun, and drops what has not."""
        self._executor.shutdown(wait=True, cancel_futures=True)
