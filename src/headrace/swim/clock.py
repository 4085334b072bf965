"""The time that a machine is told, and the time that it counts.

Rules:
- Waiting is counted in `elapsed_s`. No step of it is longer than a stride: a node that has slept (stopped, swapped out,
  a loop that was stuck) has not waited for the others, and accuses nobody of its own silence.
- `now_s` never goes back. `wall_ms` may: it is for stamps and skew only, nothing waits for it.
"""

from __future__ import annotations


class Clock:
    def __init__(self, stride_s: float) -> None:
        self.elapsed_s = 0.0
        self.now_s = 0.0
        self.wall_ms = 0
        self._stride_s = stride_s
        self._has_begun = False

    def advance(self, now_s: float, wall_ms: int) -> None:
        self.wall_ms = wall_ms
        if self._has_begun:
            self.elapsed_s += min(max(0.0, now_s - self.now_s), self._stride_s)
            now_s = max(now_s, self.now_s)
        self.now_s, self._has_begun = now_s, True
