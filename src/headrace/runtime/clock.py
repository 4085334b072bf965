"""The machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """Milliseconds since 1970, as Kafka counts them. It may jump; nothing but timestamps and retention looks at it."""

    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
