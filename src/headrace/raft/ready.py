"""What the driver must do next: save, send, apply, answer.

Rules:
- `send` may leave at once: it promises nothing that a crash could break.
- `save` is made durable as a whole, in the order hard state, snapshot, entries. A snapshot replaces the whole log and
  the state of the application. Entries replace whatever the log holds from the index of the first of them on.
- `send_after_save` may leave when this `save` **and all before it** are durable. Votes and acknowledgements are there.
- `commit` may be applied at once, after all that was handed out before: every entry in it is saved here already.
- `reads` may be served once this `commit`, and all before it, are applied.
- `Raft.advance` is called once for each Ready, in their order, when its save is durable. More may be taken before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.raft.messages import Message
from headrace.raft.records import Entry, HardState, Snapshot


class RoleName(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a server stands in its term. A server without a vote is a follower."""

    term: int
    role: RoleName
    leader: int | None


@dataclass(frozen=True, slots=True)
class Save:
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)


@dataclass(frozen=True, slots=True)
class Read:
    """The read that was asked for as `number` is linearizable in a state that has applied `index`."""

    number: int
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    save: Save
    send: tuple[Message, ...]
    send_after_save: tuple[Message, ...]
    commit: tuple[Entry, ...]
    reads: tuple[Read, ...]
    lost_reads: tuple[int, ...]  # nobody will answer them: ask again
    standing: Standing | None  # where it has changed
