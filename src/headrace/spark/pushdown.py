"""Filters on partition, offset and timestamp, as bounds on what is read.

Rules:
- Bounds only leave out what cannot match; Spark still applies every filter to what is read.
- A lower bound on time is exact: Kafka finds the first record that is young enough, and everything before it is older.
- An upper bound on time is used only with the option `timestampDisorder`: records may be out of order, and only the
  user knows by how much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.offsets import BatchOffsets
from headrace.spark.options import LATEST, Place
from headrace.spark.ranges import OffsetRange

_FAR = (1 << 63) - 1


@dataclass(slots=True)
class Bounds:
    """What a record must fulfil; every field only ever grows narrower."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_partition: int = 0
    last_partition: int = _FAR
    first_offset: int = 0
    last_offset: int = _FAR
    oldest_us: int | None = None
    youngest_us: int | None = None

    def narrow(self, item: Filter) -> None:
        """Take in one filter, or nothing of it."""
        attribute: tuple[str, ...] = getattr(item, "attribute", ())
        if len(attribute) != 1:
            return
        name = attribute[0].lower()
        value = getattr(item, "value", None)
        if name == "topic" or (name == "partition" and isinstance(item, EqualTo | EqualNullSafe | In)):
            self._choose(name, item, value)
        elif name == "partition" and isinstance(value, int):
            low, high = _limits(item, value)
            self.first_partition = max(self.first_partition, low if low is not None else 0)
            self.last_partition = min(self.last_partition, high if high is not None else _FAR)
        elif name == "offset" and isinstance(value, int | tuple | list):
            low, high = _limits(item, value)
            self.first_offset = max(self.first_offset, low if low is not None else 0)
            self.last_offset = min(self.last_offset, high if high is not None else _FAR)
        elif name == "timestamp" and isinstance(value, datetime):
            low, high = _limits(item, _microseconds(value))
            if low is not None:
                self.oldest_us = low if self.oldest_us is None else max(self.oldest_us, low)
            if high is not None:
                self.youngest_us = high if self.youngest_us is None else min(self.youngest_us, high)

    def _choose(self, name: str, item: Filter, value: Any) -> None:
        chosen: frozenset[Any]
        if isinstance(item, EqualTo | EqualNullSafe) and value is not None:
            chosen = frozenset({value})
        elif isinstance(item, In):
            chosen = frozenset(item.value)
        else:
            return
        if name == "topic":
            self.topics = chosen if self.topics is None else self.topics & chosen
        else:
            self.partitions = chosen if self.partitions is None else self.partitions & chosen

    def wants(self, place: Place) -> bool:
        topic, partition = place
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.first_partition <= partition <= self.last_partition
        )


def _limits(item: Filter, value: Any) -> tuple[int | None, int | None]:
    """The lowest and the highest whole number that a filter lets through."""
    if isinstance(item, In):
        numbers = [each for each in value if isinstance(each, int)]
        return (min(numbers), max(numbers)) if numbers and len(numbers) == len(value) else (None, None)
    if isinstance(item, EqualTo | EqualNullSafe):
        return value, value
    if isinstance(item, GreaterThan):
        return value + 1, None
    if isinstance(item, GreaterThanOrEqual):
        return value, None
    if isinstance(item, LessThan):
        return None, value - 1
    if isinstance(item, LessThanOrEqual):
        return None, value
    return None, None


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def prune(ranges: Iterable[OffsetRange], bounds: Bounds, offsets: BatchOffsets) -> list[OffsetRange]:
    """What is left of the ranges."""
    kept = {
        (each.topic, each.partition): each._replace(
            start=max(each.start, bounds.first_offset), end=min(each.end, bounds.last_offset + 1)
        )
        for each in ranges
        if bounds.wants((each.topic, each.partition))
    }
    if bounds.oldest_us is not None and kept:
        found = offsets.at(kept, max(0, bounds.oldest_us // 1000))
        for place, offset in found.items():
            # No record is young enough: nothing to read.
            start = kept[place].end if offset == LATEST else offset
            kept[place] = kept[place]._replace(start=max(kept[place].start, start))
    disorder_ms = offsets.options.timestamp_disorder_ms
    if bounds.youngest_us is not None and disorder_ms is not None and kept:
        found = offsets.at(kept, max(0, bounds.youngest_us // 1000 + 1 + disorder_ms))
        for place, offset in found.items():
            if offset != LATEST:
                kept[place] = kept[place]._replace(end=min(kept[place].end, offset))
    return [each for each in kept.values() if each.size > 0]
