"""How far a peer's wall clock is from ours, from round trips of probes.

Rules:
- The peer's clock was read somewhere within the round trip; the middle is the best guess, wrong by at most half the
  trip.
- Of the last few round trips the shortest one is believed: it leaves the least room for queues on one way only.
- A sample during which our own wall clock was set tells nothing and is dropped. Old ones make way for new ones.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

SAMPLES: Final = 8
MAX_AGE_S: Final = 600.0  # of a sample, when a newer one comes
STEP_MS: Final = 20.0  # a wall clock that differs from the monotonic one by more within a trip was set


class Sample(NamedTuple):
    rtt_ms: float
    offset_ms: float  # the peer's clock minus ours
    at_s: float


class Sending(NamedTuple):
    """When something left: by the monotonic clock, and by the wall clock."""

    now_s: float
    wall_ms: int


class Skew:
    """What is known of one peer's clock."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    @property
    def best(self) -> Sample | None:
        return min(self._samples, default=None)

    def add(self, sent: Sending, peer_wall_ms: int, now_s: float, wall_ms: int) -> None:
        rtt_ms = (now_s - sent.now_s) * 1000
        if rtt_ms < 0 or abs(wall_ms - sent.wall_ms - rtt_ms) > STEP_MS:
            return
        while self._samples and self._samples[0].at_s < now_s - MAX_AGE_S:
            self._samples.popleft()
        self._samples.append(Sample(rtt_ms, peer_wall_ms - (sent.wall_ms + rtt_ms / 2), now_s))
