"""The log against a simple model, with saves that are slow and overtaken, and its storage."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.raft.log import Log
from headrace.raft.memory import MemoryStorage
from headrace.raft.options import RaftOptions
from headrace.raft.ready import Save
from headrace.raft.records import Entry, Membership, Snapshot

EVERYTHING = 2**60


class LogModel(RuleBasedStateMachine):
    """`terms` is what the log says it holds, whatever has reached the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.log = Log(self.storage)
        self.base = 0
        self.terms: list[int] = []  # of the entries above `base`
        self.term = 1
        self.commit = 0
        self.saving: deque[Save] = deque()
        self.applied = 0

    def entries(self, first: int, count: int) -> list[Entry]:
        return [Entry(first + place, self.term, b"%d" % self.term) for place in range(count)]

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        self.log.append(self.entries(self.log.last_index + 1, count))
        self.terms += [self.term] * count

    @rule(back=st.integers(0, 6), count=st.integers(1, 4))
    def replace(self, back: int, count: int) -> None:
        """A new leader overwrites what is not committed."""
        self.term += 1
        first = max(self.log.last_index - back, self.commit) + 1
        before = self.log.term(first - 1)
        assert before is not None
        assert self.log.merge(first - 1, before, self.entries(first, count))
        self.terms[first - 1 - self.base :] = [self.term] * count

    @rule(share=st.floats(0, 1))
    def commit_some(self, share: float) -> None:
        self.commit += round((self.log.last_index - self.commit) * share)
        self.log.commit_to(self.commit)

    @rule(ahead=st.integers(1, 5))
    def restore(self, ahead: int) -> None:
        self.term += 1
        self.base = self.commit = self.log.last_index + ahead
        self.terms = []
        self.log.restore(Snapshot(self.base, self.term, Membership((1,)), b""))

    @rule()
    def hand_out(self) -> None:
        if self.log.has_unsaved():
            snapshot, entries = self.log.hand_out()
            assert snapshot or entries
            self.saving.append(Save(snapshot=snapshot, entries=entries))

    @rule()
    def saved(self) -> None:
        if self.saving:
            save = self.saving.popleft()
            self.storage.save(save)
            self.log.mark_saved(save.snapshot)
            self.applied = max(self.applied, save.snapshot.index if save.snapshot else 0, self.log.applied)

    @rule(max_bytes=st.sampled_from([1, 60, EVERYTHING]))
    def apply(self, max_bytes: int) -> None:
        for entry in self.log.take_committed(max_bytes):
            assert entry.index == self.applied + 1 <= self.commit
            assert self.storage.term(entry.index) == entry.term, "applied before it was saved"
            self.applied = entry.index

    @rule(keep=st.integers(0, 3))
    def compact(self, keep: int) -> None:
        snapshot = self.log.snapshot_at(self.log.applied, b"")
        if snapshot is not None and snapshot.index > self.storage.snapshot().index:
            self.storage.compact(snapshot, keep)

    @invariant()
    def holds_what_it_should(self) -> None:
        assert self.log.last_index == self.base + len(self.terms)
        first = self.log.first_index
        expected = [term for index, term in enumerate(self.terms, start=self.base + 1) if index >= first]
        assert [self.log.term(index) for index in range(first, self.log.last_index + 1)] == expected
        held = self.log.slice(first, self.log.last_index + 1, EVERYTHING)
        assert [entry.index for entry in held] == list(range(first, self.log.last_index + 1))
        assert len(self.log.slice(first, self.log.last_index + 1, 1)) == min(len(held), 1)

    @invariant()
    def what_counts_as_saved_is_saved_and_stays(self) -> None:
        """A crash now, or after any of the saves that are on their way, keeps it."""
        if self.log.saved > self.base:
            for index in range(max(self.base, self.storage.first_index()) + 1, self.log.saved + 1):
                assert self.storage.term(index) == self.log.term(index)
                assert not any(save.entries and save.entries[0].index <= index for save in self.saving)

    @invariant()
    def bytes_are_counted(self) -> None:
        assert self.log.unsaved_bytes == sum(entry.size_bytes for entry in self.log._unsaved)


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_storage_has_no_holes():
    with pytest.raises(AssertionError):
        MemoryStorage().save(Save(entries=(Entry(2, 1),)))


def test_options_are_checked():
    with pytest.raises(ValueError, match="max_inflight"):
        RaftOptions(max_inflight=0)
    with pytest.raises(ValueError, match="election_ticks"):
        RaftOptions(election_ticks=2, heartbeat_ticks=2)
