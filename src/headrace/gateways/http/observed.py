"""What the HTTP door reads of a broker. It never changes anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


class ObservedGroups(Protocol):
    """The group coordinator."""

    def group_offsets(self) -> Iterable[tuple[str, str, int, int]]:
        """(group, topic, partition, committed offset)."""

    def states(self) -> Mapping[str, int]:
        """How many groups are in each state."""


class Observed(Protocol):
    """The broker's service, seen from outside."""

    @property
    def counters(self) -> Counters: ...

    @property
    def partitions(self) -> Iterable[ObservedPartition]: ...

    @property
    def groups(self) -> ObservedGroups: ...

    @property
    def ready(self) -> bool: ...

    @property
    def faults(self) -> Sequence[str]:
        """Why the broker does not fully serve: one sentence each; empty when all is well."""
