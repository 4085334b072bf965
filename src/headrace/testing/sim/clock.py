"""A node's clocks: wall time that may be wrong, jump and drift, and the loop's time for measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

EPOCH_MS: Final = 1_767_225_600_000  # when every simulation begins


class SimClock:
    """Wall time is off by `skew_ms` and runs `rate` times as fast as the loop's."""

    def __init__(self, time: Callable[[], float], *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._time = time
        self.skew_ms = skew_ms
        self.rate = rate

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._time() * self.rate * 1000)

    def monotonic(self) -> float:
        return self._time()
