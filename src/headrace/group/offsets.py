"""Committed offsets, and when they expire.

Rules (Kafka's, KIP-211):
- An offset that carries its own expiry time goes at that time.
- A group that never had members (simple consumers) loses an offset when it is older than the retention.
- A group that had members keeps all offsets while it has members, but for topics that it no longer subscribes to;
  once it is empty, its offsets go when it has been empty for the retention.
- A retention below zero means for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.group.classic import ClassicGroup
from headrace.group.consumer import ConsumerGroup
from headrace.group.rebalance import State
from headrace.group.records import OffsetCommit
from headrace.group.subscription import CONSUMER

TopicPartition = tuple[str, int]
OFFSET_BYTES: Final = 512  # that one offset takes, besides its metadata


class OffsetTable:
    """Committed offsets by group, topic and partition."""

    __slots__ = ("_groups", "_sizes")

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetCommit]] = {}
        self._sizes: dict[str, int] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def of(self, group: str) -> dict[TopicPartition, OffsetCommit]:
        """The group's offsets; not to be changed by the caller."""
        return self._groups.get(group, {})

    def size_of(self, group: str) -> int:
        """About how many bytes of memory the group's offsets take."""
        return self._sizes.get(group, 0)

    def put(self, group: str, partition: TopicPartition, commit: OffsetCommit) -> None:
        offsets = self._groups.setdefault(group, {})
        old = offsets.get(partition)
        grown = len(commit.metadata) + (OFFSET_BYTES if old is None else -len(old.metadata))
        self._sizes[group] = self._sizes.get(group, 0) + grown
        offsets[partition] = commit

    def remove(self, group: str, partition: TopicPartition) -> None:
        offsets = self._groups.get(group)
        if offsets is not None:
            old = offsets.pop(partition, None)
            if old is not None:
                self._sizes[group] -= OFFSET_BYTES + len(old.metadata)
            if not offsets:
                del self._groups[group], self._sizes[group]


def expired(
    group: ClassicGroup | ConsumerGroup, offsets: dict[TopicPartition, OffsetCommit], retention_ms: int, wall_ms: int
) -> list[TopicPartition]:
    """The offsets of `group` whose time has come."""
    since_ms: int | None
    if group.protocol_type is None:
        since_ms = None
    elif group.state is State.EMPTY:
        since_ms = group.changed_ms
    elif group.state is State.STABLE and group.protocol_type == CONSUMER and group.subscribed is not None:
        since_ms = None
    else:
        return []
    return [
        partition
        for partition, commit in offsets.items()
        if not group.subscribes(partition[0]) and _is_over(commit, since_ms, retention_ms, wall_ms)
    ]


def _is_over(commit: OffsetCommit, since_ms: int | None, retention_ms: int, wall_ms: int) -> bool:
    if commit.expires_ms is not None:
        return wall_ms >= commit.expires_ms
    if retention_ms < 0:
        return False
    return wall_ms - (commit.commit_ms if since_ms is None else since_ms) >= retention_ms
