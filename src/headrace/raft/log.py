"""The log as the machine sees it: what storage holds, and after it what is not saved yet.

Rules:
- Entries up to `saved` are durable here; up to `handed` they are at least on their way to the disk. Until they are
  durable they stay in memory, and memory goes before storage where both hold an index.
- Nothing at or below `commit` is ever replaced. Entries are handed out to be applied when they are committed and saved.
- A save that was overtaken (its entries were replaced while it was on its way) counts only up to what still stands.
- No more knowledge than this: no terms but those of entries, no votes, no peers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from headrace.core.errors import CorruptionError
from headrace.raft.membership import Memberships
from headrace.raft.records import Entry, HardState, Membership, Snapshot


class Storage(Protocol):
    """What is durable, as of the last `Raft.advance`. The driver writes it, the machine reads it."""

    def hard_state(self) -> HardState: ...
    def snapshot(self) -> Snapshot:
        """The latest; `Snapshot()` if there is none. `first_index` is at most one above its index."""

    def first_index(self) -> int:
        """Of the entries that are kept: 1 in an empty log."""

    def last_index(self) -> int:
        """`first_index() - 1` if there are no entries."""

    def term(self, index: int) -> int | None:
        """Known from `first_index() - 1` to `last_index()`."""

    def entries(self, first: int, end: int, max_bytes: int) -> Sequence[Entry]:
        """From `first`, before `end`, together at most `max_bytes`, but at least one."""


class Log:
    def __init__(self, storage: Storage) -> None:
        mark = storage.snapshot()
        self._storage = storage
        self._unsaved: list[Entry] = []
        self._snapshot: Snapshot | None = None  # that is not saved yet
        self._snapshot_handed = False
        self._saving: deque[int] = deque()  # up to which index each save on its way counts
        self.unsaved_bytes = 0
        self.commit = self.applied = mark.index
        self.saved = self.handed = max(storage.last_index(), mark.index)
        self.memberships = Memberships(mark.index, mark.membership)
        for entry in self.slice(mark.index + 1, self.saved + 1, 2**62):
            if entry.membership is not None:
                self.memberships.append(entry.index, entry.membership)

    # What it holds

    @property
    def first_index(self) -> int:
        return self._snapshot.index + 1 if self._snapshot else self._storage.first_index()

    @property
    def last_index(self) -> int:
        if self._unsaved:
            return self._unsaved[-1].index
        return self._snapshot.index if self._snapshot else self.saved

    @property
    def snapshot(self) -> Snapshot:
        """The latest."""
        return self._snapshot or self._storage.snapshot()

    @property
    def last_term(self) -> int:
        term = self.term(self.last_index)
        assert term is not None
        return term

    def term(self, index: int) -> int | None:
        """Of the entry at `index`; None where it is not known (compacted, or not there yet)."""
        if self._unsaved and index >= self._unsaved[0].index:
            place = index - self._unsaved[0].index
            return self._unsaved[place].term if place < len(self._unsaved) else None
        if self._snapshot:
            return self._snapshot.term if index == self._snapshot.index else None
        return self._storage.term(index) if index <= self.saved else None

    def slice(self, first: int, end: int, max_bytes: int) -> list[Entry]:
        """Entries from `first`, before `end`, together at most `max_bytes`, but at least one."""
        found: list[Entry] = []
        end = min(end, self.last_index + 1)
        memory = self._unsaved[0].index if self._unsaved else self.last_index + 1
        if first < min(end, memory):
            found.extend(self._storage.entries(first, min(end, memory), max_bytes))
            if found[-1].index + 1 < min(end, memory):
                return found
        size = sum(entry.size_bytes for entry in found)
        for entry in self._unsaved[max(first - memory, 0) : max(end - memory, 0)]:
            size += entry.size_bytes
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate's log is at least as up-to-date as this one (5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def conflict(self, index: int, term: int) -> tuple[int, int]:
        """The last place at or below `index` with no newer term than `term`, and its term (0 where it is forgotten)."""
        index = min(index, self.last_index)
        while index > 0:
            found = self.term(index)
            if found is None:
                return index, 0
            if found <= term:
                return index, found
            index -= 1
        return 0, 0

    # Changes

    def append(self, entries: Sequence[Entry]) -> None:
        assert entries[0].index == self.last_index + 1
        self._unsaved.extend(entries)
        for entry in entries:
            self.unsaved_bytes += entry.size_bytes
            if entry.membership is not None:
                self.memberships.compact(self.first_index - 1)
                self.memberships.append(entry.index, entry.membership)

    def merge(self, prev_index: int, prev_term: int, entries: Sequence[Entry]) -> bool:
        """Take a leader's entries if the one before them is here; replace only what conflicts (Figure 2)."""
        if self.term(prev_index) != prev_term:
            return False
        for place, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                if entry.index <= self.last_index:
                    self._truncate(entry.index)
                self.append(entries[place:])
                break
        return True

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew from a snapshot."""
        assert snapshot.index > self.commit
        self._unsaved.clear()
        self.unsaved_bytes = 0
        self._snapshot = snapshot
        self._snapshot_handed = False
        self._saving = deque(0 for _ in self._saving)
        self.saved = min(self.saved, self.commit)
        self.handed = self.commit = snapshot.index
        self.memberships = Memberships(snapshot.index, snapshot.membership)

    def commit_to(self, index: int) -> None:
        if index > self.last_index:
            raise CorruptionError(
                f"entry {index} was acknowledged, but this log ends at {self.last_index}: it was lost"
            )
        self.commit = max(self.commit, index)

    # Out to the disk and to the application, and back

    def hand_out(self) -> tuple[Snapshot | None, tuple[Entry, ...]]:
        """What is to be saved next. Each call is answered by one call of `mark_saved`, in order."""
        snapshot = None if self._snapshot_handed else self._snapshot
        self._snapshot_handed = self._snapshot is not None
        entries: tuple[Entry, ...] = ()
        if self._unsaved:
            entries = tuple(self._unsaved[self.handed + 1 - self._unsaved[0].index :])
        self.handed = self.last_index
        self._saving.append(self.handed)
        return snapshot, entries

    def has_unsaved(self) -> bool:
        """Whether `hand_out` would yield something."""
        return self.handed < self.last_index or (self._snapshot is not None and not self._snapshot_handed)

    def mark_saved(self, snapshot: Snapshot | None) -> None:
        index = self._saving.popleft()
        if snapshot is not None and snapshot is self._snapshot:
            self._snapshot = None
            self.saved = self.applied = snapshot.index
        if self._snapshot is not None or index <= self.saved:
            return
        self.saved = index
        keep = index + 1 - self._unsaved[0].index
        self.unsaved_bytes -= sum(entry.size_bytes for entry in self._unsaved[:keep])
        del self._unsaved[:keep]

    def take_committed(self, max_bytes: int) -> tuple[Entry, ...]:
        """The next entries to apply."""
        end = min(self.commit, self.saved) + 1
        if self._snapshot is not None or self.applied + 1 >= end:
            return ()
        entries = tuple(self.slice(self.applied + 1, end, max_bytes))
        self.applied = entries[-1].index
        return entries

    def snapshot_at(self, index: int, payload: bytes) -> Snapshot | None:
        """A snapshot of what has been applied. None while, or after, a newer one takes its place."""
        term = self.term(index)
        if term is None or self._snapshot is not None or not self._storage.snapshot().index <= index <= self.applied:
            return None
        return Snapshot(index, term, self.memberships.at(index), payload)

    @property
    def membership(self) -> Membership:
        return self.memberships.latest

    def _truncate(self, first: int) -> None:
        assert first > self.commit, f"entry {first} is committed and cannot be replaced"
        memory = self._unsaved[0].index if self._unsaved else self.last_index + 1
        dropped = self._unsaved[max(first - memory, 0) :]
        del self._unsaved[max(first - memory, 0) :]
        self.unsaved_bytes -= sum(entry.size_bytes for entry in dropped)
        self.saved = min(self.saved, first - 1)
        self.handed = min(self.handed, first - 1)
        self._saving = deque(min(index, first - 1) for index in self._saving)
        self.memberships.truncate(first)
