"""Which bytes of a file were read from the page cache and found whole, a short while ago (see `storage/span.py`).

Rules:
- Ranges are sorted, apart from each other, and few: where there are too many, all are forgotten.
- Nothing here knows the time: the owner forgets all ranges every few seconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

RANGES: Final = 1024


class CheckedRanges:
    """Ranges of positions in a file."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def covers(self, start: int, end: int) -> bool:
        number = bisect_right(self._starts, start) - 1
        return number >= 0 and end <= self._ends[number]

    def add(self, start: int, end: int) -> None:
        first = bisect_left(self._ends, start)  # those that overlap or touch become one with it
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        elif len(self._starts) >= RANGES:
            self.clear()
            first = last = 0
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
