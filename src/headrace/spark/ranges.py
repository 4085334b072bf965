"""Arithmetic on offsets: how much a micro-batch takes of each partition, and how ranges become tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from headrace.spark.options import Place

Offsets = dict[Place, int]


class OffsetRange(NamedTuple):
    """Offsets from `start` up to but without `end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """`{"topic":{"0":n}}`: the form of Spark's own connector, so that checkpoints stay readable."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(found: Mapping[str, Any]) -> Offsets:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in found.items()
        for partition, offset in partitions.items()
    }


def limited(start: Mapping[Place, int], end: Mapping[Place, int], most: int) -> Offsets:
    """`end`, moved back so that about `most` offsets remain, each partition giving in proportion to what it has.

    A partition that has anything gives at least one. Every partition of `end` must be in `start`.
    """
    sizes = {place: end[place] - start[place] for place in end if end[place] > start[place]}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    found = dict(end)
    for place, size in sizes.items():
        share = most * size / total
        found[place] = min(end[place], start[place] + (math.ceil(share) if share < 1 else math.floor(share)))
    return found


def available(start: Mapping[Place, int], end: Mapping[Place, int]) -> int:
    return sum(max(0, offset - start[place]) for place, offset in end.items())


def tasks(ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Split ranges: none larger than `max_records`, and large ones further until there are about `min_partitions`.

    Empty ranges are dropped.
    """
    found = [each for each in ranges if each.size > 0]
    if max_records is not None:
        found = [piece for each in found for piece in _cut(each, -(-each.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(each.size for each in found)
    # Ranges that stay whole take no part in the proportions of the others.
    whole = {each for each in found if _parts(each.size, total, min_partitions) == 1}
    rest = total - sum(each.size for each in whole)
    left = max(min_partitions - len(whole), 1)
    return [
        piece for each in found for piece in ([each] if each in whole else _cut(each, _parts(each.size, rest, left)))
    ]


def _parts(size: int, total: int, parts: int) -> int:
    return max(math.floor(size / total * parts + 0.5), 1)


def _cut(each: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [each.start + each.size * index // parts for index in range(parts + 1)]
    return [each._replace(start=low, end=high) for low, high in pairwise(edges) if high > low]
