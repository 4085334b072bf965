"""A hybrid logical clock: stamps that order what has caused what, and stay close to the wall clock.

Rules:
- A stamp is 48 bits of milliseconds and 16 bits of a counter. Compared as a number, a later event of one node, or an
  event that has heard of another, has the greater stamp.
- Stamps never go back, whatever the wall clock does. A counter that is full carries into the milliseconds.
- A stamp from elsewhere that is more than `max_drift_ms` ahead of this wall clock is not followed: one node with a wild
  clock does not drag the others along. It is counted, and the event gets a stamp of this node's own.
"""

from __future__ import annotations

from typing import Final

COUNTER_BITS: Final = 16
MAX_STAMP: Final = 2**63 - 1


def stamp_ms(stamp: int) -> int:
    """The milliseconds of a stamp."""
    return stamp >> COUNTER_BITS


class HybridClock:
    def __init__(self, max_drift_ms: int) -> None:
        self.last = 0
        self.refused = 0
        self._max_drift_ms = max_drift_ms

    def now(self, wall_ms: int) -> int:
        """The stamp of something that happens here, or is sent."""
        self.last = min(max(self.last + 1, wall_ms << COUNTER_BITS), MAX_STAMP)
        return self.last

    def update(self, remote: int, wall_ms: int) -> int:
        """The stamp of something that was heard, with the stamp that came with it."""
        if stamp_ms(remote) > wall_ms + self._max_drift_ms:
            self.refused += 1
        else:
            self.last = max(self.last, remote)
        return self.now(wall_ms)

    def ahead_ms(self, wall_ms: int) -> int:
        """How far the stamps are ahead of the wall clock; 0 if they are not."""
        return max(0, stamp_ms(self.last) - wall_ms)
