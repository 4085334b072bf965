"""Trying again what failed for a passing reason: soon at first, then less and less often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

FIRST_SECONDS: Final = 0.25
LAST_SECONDS: Final = 10.0


class Retry:
    """Calls `again` some time after `later`. Needs a running loop only then."""

    def __init__(self, again: Callable[[], None]) -> None:
        self._again = again
        self._seconds = FIRST_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)
            self._seconds = min(2 * self._seconds, LAST_SECONDS)

    def succeeded(self) -> None:
        """The next fault is a new one."""
        self._seconds = FIRST_SECONDS

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self._again()
