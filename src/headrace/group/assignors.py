"""Who should read what: the assignors that run in the broker.

Rules:
- An assignor is a function: members with their topics and what they had before, partition counts in; everybody's new
  partitions out. Every partition that somebody subscribes to has exactly one owner.
- The same input gives the same output, whatever the order of dictionaries.
- `uniform`: loads differ by at most one when all members subscribe to the same topics, and then no assignment with that
  balance moves fewer partitions. With different subscriptions: everybody keeps what it may, the rest goes to the least
  loaded, and partitions move only from a member to one that has at least two fewer.
- `range`: each topic's partitions in order, in equal runs, over its members in order of instance or member id; topics
  with the same members and as many partitions are cut alike, so that equal keys meet in one member.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headrace.group.topics import NOTHING, Partitions, TopicPartition


class Reader(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    before: Partitions = NOTHING
    instance_id: str | None = None


Readers = Mapping[str, Reader]
Counts = Mapping[UUID, int]
Assignor = Callable[[Readers, Counts], dict[str, Partitions]]


def uniform(readers: Readers, counts: Counts) -> dict[str, Partitions]:
    if not readers:
        return {}
    kept, free = _keep(readers, counts)
    topics = next(iter(readers.values())).topics
    if all(reader.topics == topics for reader in readers.values()):
        _even_out(kept, free)
    else:
        _deal(readers, kept, free)
        _level(readers, kept)
    return {member: frozenset(partitions) for member, partitions in kept.items()}


def _keep(readers: Readers, counts: Counts) -> tuple[dict[str, list[TopicPartition]], list[TopicPartition]]:
    """What each member may keep, and what has no owner yet."""
    kept: dict[str, list[TopicPartition]] = {}
    taken: set[TopicPartition] = set()
    wanted: set[UUID] = set()
    for member, reader in sorted(readers.items()):
        wanted |= reader.topics
        kept[member] = [
            place
            for place in sorted(reader.before)
            if place[0] in reader.topics and place[1] < counts.get(place[0], 0) and place not in taken
        ]
        taken.update(kept[member])
    free = [
        (topic, index)
        for topic in sorted(wanted)
        for index in range(counts.get(topic, 0))
        if (topic, index) not in taken
    ]
    return kept, free


def _even_out(kept: dict[str, list[TopicPartition]], free: list[TopicPartition]) -> None:
    """All members read the same: who has most gets the larger shares, so that the fewest partitions move."""
    total = sum(len(partitions) for partitions in kept.values()) + len(free)
    share, extra = divmod(total, len(kept))
    ranked = sorted(kept, key=lambda member: (-len(kept[member]), member))
    room: list[tuple[str, int]] = []
    for rank, member in enumerate(ranked):
        quota = share + (rank < extra)
        free.extend(kept[member][quota:])
        del kept[member][quota:]
        if len(kept[member]) < quota:
            room.append((member, quota))
    free.sort(reverse=True)
    while room:
        # One each, in turn: a topic's partitions spread over the members.
        for member, _ in room:
            if free:
                kept[member].append(free.pop())
        room = [(member, quota) for member, quota in room if len(kept[member]) < quota]
    assert not free, "every partition has an owner"


def _deal(readers: Readers, kept: dict[str, list[TopicPartition]], free: list[TopicPartition]) -> None:
    """Each free partition to the least loaded of those who subscribe to it; topics with few subscribers first."""
    crowds = _crowds(readers)
    heaps: dict[UUID, list[tuple[int, str]]] = {}
    for topic, index in sorted(free, key=lambda place: (len(crowds[place[0]]), place)):
        heap = heaps.get(topic)
        if heap is None:
            heap = heaps[topic] = [(len(kept[member]), member) for member in crowds[topic]]
            heapq.heapify(heap)
        while heap[0][0] != len(kept[heap[0][1]]):
            member = heap[0][1]
            heapq.heapreplace(heap, (len(kept[member]), member))
        member = heap[0][1]
        kept[member].append((topic, index))
        heapq.heapreplace(heap, (len(kept[member]), member))


def _level(readers: Readers, kept: dict[str, list[TopicPartition]]) -> None:
    """Move partitions from the loaded to those who have at least two fewer, until there are none such.

    Every move makes the sum of the squared loads smaller, so this ends.
    """
    crowds = _crowds(readers)
    moved = True
    while moved:
        moved = False
        for owner in sorted(kept, key=lambda member: (-len(kept[member]), member)):
            lightest = {
                topic: min(crowds[topic], key=lambda member: (len(kept[member]), member))
                for topic in sorted({topic for topic, _ in kept[owner]})
            }
            for place in sorted(kept[owner], reverse=True):
                lighter = lightest[place[0]]
                if len(kept[owner]) - len(kept[lighter]) < 2:
                    continue
                kept[owner].remove(place)
                kept[lighter].append(place)
                moved = True
                crowd = crowds[place[0]]
                lightest[place[0]] = min(crowd, key=lambda member: (len(kept[member]), member))


def _crowds(readers: Readers) -> dict[UUID, list[str]]:
    crowds: dict[UUID, list[str]] = {}
    for member, reader in sorted(readers.items()):
        for topic in reader.topics:
            crowds.setdefault(topic, []).append(member)
    return crowds


def by_range(readers: Readers, counts: Counts) -> dict[str, Partitions]:
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in readers}
    for topic, crowd in _crowds(readers).items():
        crowd.sort(key=lambda member: (readers[member].instance_id or member, member))
        share, extra = divmod(counts.get(topic, 0), len(crowd))
        start = 0
        for rank, member in enumerate(crowd):
            end = start + share + (rank < extra)
            assigned[member].extend((topic, index) for index in range(start, end))
            start = end
    return {member: frozenset(partitions) for member, partitions in assigned.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": by_range}
DEFAULT: Final = "uniform"
