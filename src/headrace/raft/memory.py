"""Storage in memory: for tests, and for brokers that keep nothing."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.raft.ready import Save
from headrace.raft.records import Entry, HardState, Snapshot


class MemoryStorage:
    """A `Storage` with the two things that a driver does to one: `save`, and `compact` after a snapshot was taken."""

    def __init__(self, hard_state: HardState | None = None, snapshot: Snapshot | None = None) -> None:
        self._hard_state = hard_state or HardState()
        self._snapshot = snapshot or Snapshot()
        self._before = (self._snapshot.index, self._snapshot.term)  # of the entry before the first that is kept
        self._entries: list[Entry] = []

    def save(self, save: Save) -> None:
        if save.hard_state is not None:
            self._hard_state = save.hard_state
        if save.snapshot is not None:
            self._snapshot = save.snapshot
            self._before = (save.snapshot.index, save.snapshot.term)
            self._entries.clear()
        if save.entries:
            first = save.entries[0].index
            assert self.first_index() <= first <= self.last_index() + 1, "a log has no holes"
            del self._entries[first - self.first_index() :]
            self._entries.extend(save.entries)

    def compact(self, snapshot: Snapshot, keep: int = 0) -> None:
        """Keep a snapshot of what was applied, and of the entries that it covers only the last `keep`."""
        assert self._snapshot.index <= snapshot.index <= self.last_index()
        self._snapshot = snapshot
        before = max(snapshot.index - keep, self._before[0])
        term = self.term(before)
        assert term is not None
        del self._entries[: before - self._before[0]]
        self._before = (before, term)

    def hard_state(self) -> HardState:
        return self._hard_state

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def first_index(self) -> int:
        return self._before[0] + 1

    def last_index(self) -> int:
        return self._before[0] + len(self._entries)

    def term(self, index: int) -> int | None:
        place = index - self.first_index()
        if place == -1:
            return self._before[1]
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def entries(self, first: int, end: int, max_bytes: int) -> Sequence[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in self._entries[first - self.first_index() : end - self.first_index()]:
            size += entry.size_bytes
            if found and size > max_bytes:
                break
            found.append(entry)
        return found
