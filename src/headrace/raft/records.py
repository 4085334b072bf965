"""What Raft keeps on disk: entries, the term and the vote, snapshots, and who belongs to the cluster.

Rules:
- An entry is known by its index and term: two entries that agree in both are the same entry.
- An entry carries a command (`payload`), a new membership, or nothing: a leader's first entry of its term is empty.
- Indexes and terms count from 1. Index 0 is the place before the first entry; its term is 0.
- A membership is always whole: the latest one in a log is the one in force, whether it is committed or not.
- Structs are arrays on the wire and on disk; new fields go to the end and have defaults, so that old bytes can be read.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
NodeId = Count

ENTRY_OVERHEAD_BYTES: Final = 24  # of index, term and framing, when entries are counted against a limit


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Who votes and who only listens, in order of their ids."""

    voters: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


class Entry(msgspec.Struct, frozen=True, array_like=True):
    index: Count
    term: Count
    payload: bytes = b""
    membership: Membership | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + ENTRY_OVERHEAD_BYTES


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must be known again after a crash, besides the log: the latest term seen, and the vote given in it."""

    term: Count = 0
    vote: NodeId | None = None


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What the entries up to and including `index` have made. The payload is the driver's: a state, or its place."""

    index: Count = 0
    term: Count = 0
    membership: Membership = Membership()
    payload: bytes = b""
