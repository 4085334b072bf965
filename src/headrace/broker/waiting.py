"""Waiting without threads: for records to be committed, and for data to arrive.

Rules:
- A `Commit` is told once per partition that it waits for; it answers when all have told it.
- A `Poll` is one long poll over several partitions; it wakes when enough bytes have come.
- No task is made per waiting producer: the answer is a future that is resolved where the watermark moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from headrace.core.errors import ApiError

T = TypeVar("T")


class Commit(Generic[T]):
    """An answer that waits for one or more partitions to commit."""

    __slots__ = ("_early", "_finish", "_future", "_remaining", "deadline", "error")

    def __init__(self, finish: Callable[[], T], deadline: float | None = None) -> None:
        self._finish = finish
        self._future: asyncio.Future[T] | None = None
        self._remaining = 0
        self._early = 0
        self.deadline = deadline
        self.error: ApiError | None = None

    def begin(self, partitions: int) -> asyncio.Future[T]:
        """`partitions` have promised to tell; the future is the answer."""
        future = self._future = asyncio.get_running_loop().create_future()
        self._remaining = partitions - self._early
        if self._remaining <= 0:
            self._settle()
        return future

    def reached(self) -> None:
        """One partition has committed."""
        if self._future is None:
            self._early += 1
            return
        self._remaining -= 1
        if self._remaining == 0:
            self._settle()

    def failed(self, error: ApiError) -> None:
        """One partition never will. The answer goes out now, and `finish` may look at `error`."""
        self.error = self.error or error
        if self._future is not None:
            self._settle()

    def _settle(self) -> None:
        future = self._future
        if future is None or future.done():
            return
        try:
            future.set_result(self._finish())
        except Exception as error:
            future.set_exception(error)


class Poll:
    """One Fetch that waits until `wanted_bytes` have arrived, something failed, or time is up.

    `committed_only`: what arrives counts for it only once its transaction has ended.
    """

    __slots__ = ("_future", "_wanted_bytes", "committed_only")

    def __init__(self, wanted_bytes: int, *, committed_only: bool = False) -> None:
        self._wanted_bytes = wanted_bytes
        self.committed_only = committed_only
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grew(self, size_bytes: int) -> None:
        self._wanted_bytes -= size_bytes
        if self._wanted_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until woken, or `seconds` have passed."""
        timer = asyncio.get_running_loop().call_later(seconds, self.wake)
        try:
            await self._future
        finally:
            timer.cancel()
