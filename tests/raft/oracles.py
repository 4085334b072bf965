"""What must hold in every history of a Raft cluster, whatever goes wrong (Figure 3 of the paper, and reads).

Each oracle is told what happens, remembers what it needs, and raises `Violation` at the moment when a rule is broken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from headrace.raft.machine import Raft
from headrace.raft.ready import RoleName, Standing
from headrace.raft.records import Entry


class Violation(Exception):
    """A promise of Raft was broken."""


def chain(previous: bytes, entry: Entry) -> bytes:
    """The state of the application: a digest of every command before, in order."""
    return hashlib.blake2b(previous + b"%d:" % entry.index + entry.payload, digest_size=8).digest()


class Oracles:
    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[Entry, int | None]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_by: dict[int, int] = {}  # index -> a term in which it was committed already
        self.states: dict[int, bytes] = {}
        self.committed_index = 0

    def standing(self, raft: Raft, standing: Standing) -> None:
        """Election safety, and leader completeness."""
        if standing.role is not RoleName.LEADER:
            return
        other = self.leaders.setdefault(standing.term, raft.node_id)
        if other != raft.node_id:
            raise Violation(f"term {standing.term} has two leaders: {other} and {raft.node_id}")
        log = raft._state.log
        for index in range(log.first_index, self.committed_index + 1):
            if self.committed_by[index] < standing.term and log.term(index) != self.committed[index].term:
                raise Violation(f"leader {raft.node_id} of term {standing.term} lacks committed entry {index}")

    def saving(self, raft: Raft, entries: Iterable[Entry]) -> None:
        """Log matching: the same index and term mean the same entry after the same entry."""
        for entry in entries:
            before = raft._state.log.term(entry.index - 1)
            known, known_before = self.entries.setdefault((entry.index, entry.term), (entry, before))
            if known != entry or (before is not None and known_before is not None and before != known_before):
                raise Violation(f"entry {entry.index} of term {entry.term} is not the same on node {raft.node_id}")

    def applied(self, node: int, term: int, before: bytes, entry: Entry) -> bytes:
        """State machine safety: nobody ever applies another entry at an index."""
        known = self.committed.setdefault(entry.index, entry)
        if known != entry:
            raise Violation(
                f"node {node} applies entry {entry.index} of term {entry.term}, another one of term {known.term}"
            )
        self.committed_by.setdefault(entry.index, term)
        self.committed_index = max(self.committed_index, entry.index)
        after = chain(before, entry)
        self.restored(node, entry.index, after)
        return after

    def restored(self, node: int, index: int, state: bytes) -> None:
        if self.states.setdefault(index, state) != state:
            raise Violation(f"the state of node {node} at {index} is not that of the others")

    def served(self, node: int, index: int, issued_at: int) -> None:
        """A read sees all that anybody had applied when it was asked for."""
        if index < issued_at:
            raise Violation(
                f"node {node} serves a stale read of {index}: {issued_at} was committed when it was asked for"
            )
