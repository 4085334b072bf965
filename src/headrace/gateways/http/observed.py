"""What the HTTP door reads of a broker. It never changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.core.counters import Counters


class ObservedLog(Protocol):
    """A partition's log."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class ObservedRecord(Protocol):
    """What was decided about a partition."""

    @property
    def replicas(self) -> Sequence[int]: ...

    @property
    def leader(self) -> int: ...

    @property
    def adding(self) -> Sequence[int]: ...

    @property
    def removing(self) -> Sequence[int]: ...


class ObservedFollower(Protocol):
    """What a leader knows of a follower."""

    @property
    def end_offset(self) -> int: ...


class ObservedReplicas(Protocol):
    """What a leader knows of its followers."""

    def follower(self, node: int) -> ObservedFollower | None: ...


class ObservedPartition(Protocol):
    """A partition of which this broker has a replica."""

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log(self) -> ObservedLog: ...

    @property
    def leads(self) -> bool: ...

    @property
    def in_sync(self) -> int: ...

    @property
    def record(self) -> ObservedRecord | None: ...

    @property
    def replicas(self) -> ObservedReplicas | None:
        """None unless this broker leads."""


class ObservedGroups(Protocol):
    """The group coordinator."""

    def group_offsets(self) -> Iterable[tuple[str, str, int, int]]:
        """(group, topic, partition, committed offset)."""

    def states(self) -> Mapping[str, int]:
        """How many groups are in each state."""


class ObservedTopic(Protocol):
    @property
    def partitions(self) -> Sequence[ObservedRecord]: ...


class ObservedNode(Protocol):
    @property
    def fenced(self) -> bool: ...

    @property
    def draining(self) -> bool: ...


class ObservedImage(Protocol):
    """The cluster's metadata; it never changes."""

    @property
    def brokers(self) -> Mapping[int, ObservedNode]: ...

    @property
    def topics(self) -> Mapping[str, ObservedTopic]: ...


class ObservedMembership(Protocol):
    @property
    def voters(self) -> Sequence[int]: ...

    @property
    def learners(self) -> Sequence[int]: ...


class ObservedQuorum(Protocol):
    """This node's part in the quorum."""

    @property
    def node_id(self) -> int: ...

    @property
    def leader(self) -> int | None: ...

    @property
    def leads(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def membership(self) -> ObservedMembership: ...


class ObservedController(Protocol):
    @property
    def image(self) -> ObservedImage: ...

    @property
    def applied_index(self) -> int: ...

    @property
    def quorum(self) -> ObservedQuorum: ...


class ObservedCouncil(Protocol):
    @property
    def skew_of(self) -> Callable[[int], float | None]:
        """How far a node's clock is ahead, in ms; None if that is not known."""


class ObservedTurns(Protocol):
    """Whose turn it is."""

    @property
    def used_up(self) -> bool:
        """Whether it is time to let others go on."""

    async def rest(self) -> None: ...


class Observed(Protocol):
    """The broker's service, seen from outside."""

    @property
    def turns(self) -> ObservedTurns: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def partitions(self) -> Iterable[ObservedPartition]: ...

    @property
    def groups(self) -> ObservedGroups: ...

    @property
    def controller(self) -> ObservedController: ...

    @property
    def council(self) -> ObservedCouncil: ...

    @property
    def ready(self) -> bool: ...

    @property
    def faults(self) -> Sequence[str]:
        """Why the broker does not fully serve: one sentence each; empty when all is well."""
