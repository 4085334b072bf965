"""How long Raft waits, in ticks, and how much it holds, in bytes. A tick is as long as the driver makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIB = 1024 * 1024


class Dice(Protocol):
    """Where chance comes from; `random.Random` is one."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """An election is held after `election_ticks` to twice as many without a leader; a leader that hears no majority for
    `election_ticks` steps down."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    snapshot_ticks: int = 300  # without news of a snapshot on its way, it is sent again
    max_append_bytes: int = MIB  # in one AppendEntries; one entry always fits
    max_inflight: int = 64  # AppendEntries on their way to one follower
    max_uncommitted_bytes: int = 16 * MIB  # a leader takes no more proposals above it
    max_unsaved_bytes: int = 16 * MIB  # a follower takes no more entries above it
    max_apply_bytes: int = 4 * MIB  # in one Ready
    max_reads: int = 10_000  # that wait
    promote_lag: int = 100  # entries by which a learner may be behind when it is made a voter

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.election_ticks <= self.heartbeat_ticks:
            raise ValueError("election_ticks must be more than heartbeat_ticks")
