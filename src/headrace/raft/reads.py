"""Linearizable reads without writing: ReadIndex (thesis, 6.4).

Rules:
- A read is given the commit index of a moment after it was asked for; then a majority must answer a round of heartbeats
  that began after that moment. So no newer leader had committed anything by then. No clock is trusted.
- A leader gives no index before it has committed an entry of its own term: until then it may not know all that is.
- Reads that come while a round is on its way share the next one.
- A follower asks its leader under a number that it never used before, not even before a crash: a late answer to another
  read cannot be taken for this one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Asker(NamedTuple):
    node: int
    number: int


class Confirmed(NamedTuple):
    asker: Asker
    commit: int


class ReadRounds:
    """A leader's side: one round at a time, and who waits for it or for the next."""

    def __init__(self) -> None:
        self.round = 0
        self._index = 0
        self._current: list[Asker] = []
        self._next: list[Asker] = []

    def __len__(self) -> int:
        return len(self._current) + len(self._next)

    def add(self, asker: Asker) -> None:
        self._next.append(asker)

    def begin(self, commit: int) -> bool:
        """Begin the next round, if one is wanted and none is on its way."""
        if self._current or not self._next:
            return False
        self.round += 1
        self._index = commit
        self._current, self._next = self._next, []
        return True

    def finish(self, answered_round: int) -> list[Confirmed]:
        """Those who may read, now that a majority has answered this round."""
        if not self._current or answered_round < self.round:
            return []
        confirmed = [Confirmed(asker, self._index) for asker in self._current]
        self._current = []
        return confirmed

    def askers(self) -> Iterator[Asker]:
        yield from self._current
        yield from self._next


class ForwardedReads:
    """A follower's side: what it asked of its leader, and for how many ticks it has waited."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, int]] = {}  # number on the wire -> number of the driver, ticks

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, wire_number: int, number: int) -> None:
        self._waiting[wire_number] = (number, 0)

    def answered(self, wire_number: int) -> int | None:
        found = self._waiting.pop(wire_number, None)
        return found[0] if found else None

    def tick(self, ticks: int) -> list[int]:
        """Age by one tick; those who have waited for so many are given up."""
        if not self._waiting:
            return []
        self._waiting = {key: (number, age + 1) for key, (number, age) in self._waiting.items()}
        late = [key for key, (_, age) in self._waiting.items() if age >= ticks]
        return [self._waiting.pop(key)[0] for key in late]

    def drop(self) -> list[int]:
        dropped = [number for number, _ in self._waiting.values()]
        self._waiting.clear()
        return dropped
