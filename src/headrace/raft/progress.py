"""What a leader knows of one follower, and how much it may send to it.

Rules:
- PROBE: the follower's log is not known; one message at a time, the next one after an answer or a heartbeat's.
- REPLICATE: entries flow without waiting, with at most `max_inflight` messages on their way.
- SNAPSHOT: what the follower needs is compacted; nothing flows until it has the snapshot, or it seems lost.
- `match` never goes back: what a follower has acknowledged in this term, it has saved.
"""

from __future__ import annotations

from collections import deque
from enum import Enum


class Flow(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    def __init__(self, next_index: int, max_inflight: int) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.next_index = next_index
        self.is_active = False  # heard of since the last look at the quorum
        self.round = 0  # the newest round of heartbeats that it has answered
        self.is_poked = True  # wants a message even if there are no entries for it
        self._max_inflight = max_inflight
        self._inflight: deque[int] = deque()  # last index of each message on its way
        self._is_waiting = False  # in PROBE: for an answer
        self._snapshot_index = 0
        self._snapshot_ticks = 0

    @property
    def is_full(self) -> bool:
        return len(self._inflight) >= self._max_inflight

    @property
    def may_send(self) -> bool:
        if self.flow is Flow.SNAPSHOT:
            return False
        return not self._is_waiting if self.flow is Flow.PROBE else (self.is_poked or not self.is_full)

    def sent(self, last_index: int) -> None:
        """A message with the entries from `next_index` to `last_index`, if any, is on its way."""
        self.is_poked = False
        if self.flow is Flow.PROBE:
            self._is_waiting = True
        elif last_index >= self.next_index:
            self.next_index = last_index + 1
            self._inflight.append(last_index)

    def accepted(self, match: int, first_index: int) -> bool:
        """The follower has saved the log up to `match`. Whether that is news."""
        is_news = match > self.match
        self.match = max(self.match, match)
        self.next_index = max(self.next_index, self.match + 1)
        if self.flow is Flow.PROBE or (self.flow is Flow.SNAPSHOT and self.match + 1 >= first_index):
            self._enter(Flow.REPLICATE)
            self.next_index = self.match + 1
        while self._inflight and self._inflight[0] <= match:
            self._inflight.popleft()
        return is_news

    def rejected(self, rejected: int, hint: int) -> None:
        """The follower has no such entry at `rejected`; the logs may agree at `hint`. Old news is passed over."""
        if self.flow is Flow.REPLICATE and rejected > self.match:
            self._enter(Flow.PROBE)
            self.next_index = self.match + 1
        elif self.flow is Flow.PROBE and rejected == self.next_index - 1:
            self.next_index = max(min(rejected, hint + 1), self.match + 1)
            self._is_waiting = False
            self.is_poked = True

    def answered(self, last_index: int) -> None:
        """The follower is alive: what was on its way to it may be lost, so look."""
        self.is_active = True
        self._is_waiting = False
        if self.match < last_index:
            self.is_poked = True

    def unreachable(self) -> None:
        """What is on its way is probably lost."""
        if self.flow is Flow.REPLICATE:
            self._enter(Flow.PROBE)
            self.next_index = self.match + 1

    def begin_snapshot(self, index: int) -> None:
        self._enter(Flow.SNAPSHOT)
        self._snapshot_index = index
        self._snapshot_ticks = 0

    def snapshot_ended(self, arrived: bool) -> None:
        """The driver knows what has become of the snapshot. The next message waits for a sign of life."""
        if self.flow is not Flow.SNAPSHOT:
            return
        self._enter(Flow.PROBE)
        self.next_index = max(self.match, self._snapshot_index if arrived else 0) + 1
        self._is_waiting = True

    def tick(self, snapshot_ticks: int) -> None:
        if self.flow is Flow.SNAPSHOT:
            self._snapshot_ticks += 1
            if self._snapshot_ticks >= snapshot_ticks:
                self.snapshot_ended(arrived=False)

    def _enter(self, flow: Flow) -> None:
        self.flow = flow
        self._inflight.clear()
        self._is_waiting = False
        self.is_poked = True
