"""The driver's side: which offsets a read covers.

Rules:
- Where a new query starts is decided once and kept in the group (a pin) until its first micro-batch is on record:
  Spark asks twice, and forgets the answer if it crashes before. A pin counts only for the same starting options.
- Progress is committed to the group when Spark asks for the next offsets: what it then gives as its start is durable.
  A commit that fails is a warning, never a failed query.
- Partitions that appear while a query runs are read from their beginning.
- Records that are gone (partition gone, log shorter than before, topic made anew) are an error, or a warning with
  failOnDataLoss=false. It is looked at again before it is believed: a broker that has just started, or a leader that
  has just changed, may not know better.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headrace.client.errors import ClientError
from headrace.core.errors import HeadraceError
from headrace.spark.cluster import Cluster, MissingError, Partition
from headrace.spark.options import EARLIEST, LATEST, Bound, Place, SourceOptions, digest
from headrace.spark.ranges import OffsetRange, Offsets, available, limited, tasks

log = logging.getLogger("headrace.spark")

_COMMIT_REST_SECONDS: Final = 30.0
_DOUBTS: Final = 15  # looks at what seems to be lost, until it is believed
_DOUBT_SECONDS: Final = 0.2  # between them
_PROGRESS: Final = "spark"
_PIN: Final = "spark-start-"


class LostRecordsError(HeadraceError):
    """Records that were to be read do not exist any more."""


class _Fault(NamedTuple):
    """What seems to be lost."""

    sentence: str
    is_certain: bool = False


class OffsetReader:
    """What a batch and a stream have in common."""

    def __init__(self, options: SourceOptions, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.cluster = Cluster(options)
        self._monotonic = monotonic
        self._partitions: dict[Place, Partition] = {}
        self._asked_at = 0.0

    def partitions(self) -> dict[Place, Partition]:
        """What the subscription means now, or what it meant within the time that metadata is kept."""
        ttl_ms = self.options.metadata_ttl_ms
        now = self._monotonic()
        if not self._partitions or ttl_ms < 0 or (now - self._asked_at) * 1000 > ttl_ms:
            self._partitions = self.cluster.partitions(self.options.subscription)
            self._asked_at = now
        return dict(self._partitions)

    def known_partitions(self) -> dict[Place, Partition]:
        """What was last found, without asking again."""
        return dict(self._partitions)

    def at(self, places: Iterable[Place], time_ms: int) -> Offsets:
        """An offset of each partition: EARLIEST, LATEST, or the first at a time (-1: there is none)."""
        times = dict.fromkeys(places, time_ms)
        return self.cluster.offsets(dict(self._partitions), times) if times else {}

    def resolve(self, bound: Bound) -> Offsets:
        """A starting or ending bound as offsets."""
        partitions = self.partitions()
        if bound.offset is not None:
            return self.at(partitions, bound.offset)
        if bound.offsets is not None:
            return self._named(bound, bound.offsets, partitions)
        times = bound.times_ms
        if times is None:
            assert bound.time_ms is not None
            times = dict.fromkeys(partitions, bound.time_ms)
        self._same_partitions(bound, times, partitions)
        found = self.cluster.offsets(partitions, times)
        without = [place for place, offset in found.items() if offset < 0]
        if without and not bound.latest_if_none:
            topic, partition = without[0]
            raise ClientError(
                f"option {bound.option!r}: {topic}-{partition} has no record at or after {times[without[0]]}; "
                "set startingOffsetsByTimestampStrategy to latest to start at its end"
            )
        return found | self.at(without, LATEST)

    def _named(self, bound: Bound, offsets: Mapping[Place, int], partitions: Mapping[Place, Partition]) -> Offsets:
        self._same_partitions(bound, offsets, partitions)
        first = self.at(partitions, EARLIEST)
        last = self.at(partitions, LATEST)
        found = {}
        for place, wanted in offsets.items():
            offset = {EARLIEST: first[place], LATEST: last[place]}.get(wanted, wanted)
            if not first[place] <= offset <= last[place]:
                self.lost(
                    f"option {bound.option!r}: offset {offset} of {place[0]}-{place[1]} does not exist; "
                    f"there are {first[place]} to {last[place]}"
                )
                offset = min(max(offset, first[place]), last[place])
            found[place] = offset
        return found

    def _same_partitions(self, bound: Bound, named: Iterable[Place], partitions: Iterable[Place]) -> None:
        given, real = set(named), set(partitions)
        for place in sorted(real - given):
            raise ClientError(f"option {bound.option!r} lacks {place[0]}-{place[1]}; it must name every partition")
        for place in sorted(given - real):
            raise ClientError(f"option {bound.option!r} names {place[0]}-{place[1]}, which is not read")

    def lost(self, sentence: str) -> None:
        """Records are gone."""
        if self.options.fail_on_data_loss:
            raise LostRecordsError(f"{sentence} (failOnDataLoss=false would go on)")
        log.warning("%s; going on, as failOnDataLoss is false", sentence)

    def plan(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        return tasks(list(ranges), self.options.min_partitions, self.options.max_records)


class BatchOffsets(OffsetReader):
    """A read from one set of offsets to another."""

    def ranges(self) -> list[OffsetRange]:
        start = self.resolve(self.options.start)
        end = self.resolve(self.options.end)
        for place in start:
            if start[place] > end[place] and self.options.end.option and self.options.end.offset is None:
                self.lost(
                    f"{place[0]}-{place[1]} is to be read from {start[place]} to {end[place]}, which lies before it"
                )
        return [OffsetRange(*place, start[place], end[place]) for place in sorted(start) if end[place] > start[place]]


class StreamOffsets(OffsetReader):
    """A read that goes on."""

    def __init__(self, options: SourceOptions, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options, monotonic=monotonic)
        self._pin_note = _PIN + digest(options.subscription, options.start)
        self._initial: Offsets | None = None
        self._latest: Offsets | None = None
        self._target: Offsets | None = None  # where Trigger.AvailableNow ends
        self._committed: Offsets | None = None
        self._commit_from = float("-inf")  # no commits before; a group that cannot be reached must not slow the query
        self._triggered_at: float | None = None
        self._topic_ids: dict[str, UUID | None] = {}
        self._recreated: set[str] = set()
        self._told: set[str] = set()  # losses

    @property
    def latest(self) -> Offsets | None:
        """The ends of the logs when they were last looked at."""
        return self._latest

    def initial(self) -> Offsets:
        if self._initial is None:
            places = self.partitions()
            self._initial = self._pinned(places) or self.resolve(self.options.start)
            if self.options.commit:
                self._commit(self._initial, self._pin_note)
        return dict(self._initial)

    def freeze(self) -> None:
        """From now on, nothing that is written counts (Trigger.AvailableNow)."""
        self._target = self.at(self.partitions(), LATEST)

    def next(self, start: Offsets, *, most: int | None = None, least: int | None = None) -> Offsets:
        """Where the next micro-batch ends. `start` itself if there is nothing to do yet."""
        self._record(start)
        end = self._ends(start)
        if least is not None and self._target is None and self._should_wait(start, end, least):
            return start
        if most is not None:
            end = limited(self._with_new(start, end), end, most)
        return end

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What a micro-batch reads. The same for the same offsets, also after a restart."""
        if not self._partitions:
            self.partitions()
        begin = self._with_new(start, end)
        again = [place for place in end if end[place] < begin[place] and place[0] in self._recreated]
        begin |= self.at(again, EARLIEST)
        return [OffsetRange(*place, begin[place], end[place]) for place in sorted(end)]

    def _pinned(self, places: Mapping[Place, Partition]) -> Offsets | None:
        if not self.options.commit:
            return None
        try:
            found = self.cluster.committed(self.options.group, places)
        except HeadraceError as error:
            log.warning("%s; the start of this query is not protected against a crash in its first batch", error)
            return None
        if not found or any(each.note != self._pin_note for each in found.values()):
            return None
        # Partitions without a pin have come since.
        new = self.at([place for place in places if place not in found], EARLIEST)
        return new | {place: each.offset for place, each in found.items()}

    def _record(self, start: Offsets) -> None:
        if self.options.commit and start not in (self._committed, self._initial):
            self._commit(start, _PROGRESS)

    def _commit(self, offsets: Offsets, note: str) -> None:
        if self._monotonic() < self._commit_from:
            return
        try:
            there = {place: offset for place, offset in offsets.items() if place in (self._partitions or offsets)}
            self.cluster.commit(self.options.group, there, note)
            self._committed = dict(offsets)
        except HeadraceError as error:
            self._commit_from = self._monotonic() + _COMMIT_REST_SECONDS
            log.warning("%s; the query goes on, its lag is not visible in the group", error)

    def _ends(self, start: Offsets) -> Offsets:
        places, self._latest = self._surely(start)
        ends = self._latest if self._target is None else self._target
        # What is asked for by name keeps its place, and goes on from there if it comes back.
        by_name = not self.options.subscription.pattern
        kept = {place: offset for place, offset in start.items() if by_name and place not in places}
        return {place: end for place, end in ends.items() if place in places} | kept

    def _surely(self, start: Offsets) -> tuple[dict[Place, Partition], Offsets]:
        """The partitions and the ends of their logs. What seems to be lost is looked at again, and then told once."""
        doubts = _DOUBTS
        while True:
            places, missing = self._look()
            self._notice_recreated(places)
            doubts -= 1
            try:
                latest = self.at(places, LATEST)
            except MissingError:  # deleted since we looked, or its leader has not heard of it
                if not doubts:
                    raise
                self._partitions = {}
                time.sleep(_DOUBT_SECONDS)
                continue
            faults = [*missing, *self._faults(start, places, latest)]
            if not doubts or all(fault.is_certain or fault.sentence in self._told for fault in faults):
                break
            self._partitions = {}
            time.sleep(_DOUBT_SECONDS)
        for fault in faults:
            if fault.sentence not in self._told:
                self.lost(fault.sentence)
        self._told = {fault.sentence for fault in faults}
        return places, latest

    def _look(self) -> tuple[dict[Place, Partition], list[_Fault]]:
        """The partitions that there are, and what is missing."""
        try:
            return self.partitions(), []
        except MissingError as error:
            self._partitions = self.cluster.partitions(self.options.subscription, missing_ok=True)
            return dict(self._partitions), [_Fault(str(error))]

    def _faults(self, start: Offsets, places: Iterable[Place], latest: Offsets) -> Iterator[_Fault]:
        for place in sorted(set(start) - set(places)):
            yield _Fault(f"partition {place[0]}-{place[1]} does not exist any more")
        for place, end in sorted(latest.items()):
            if place in start and end < start[place]:
                anew = place[0] in self._recreated
                yield _Fault(
                    f"{place[0]}-{place[1]} was read up to {start[place]} but now ends at {end}"
                    + (": the topic was made anew" if anew else ""),
                    anew,
                )

    def _notice_recreated(self, places: Mapping[Place, Partition]) -> None:
        for (topic, _), partition in places.items():
            known = self._topic_ids.setdefault(topic, partition.topic_id)
            if known != partition.topic_id:
                self._topic_ids[topic] = partition.topic_id
                self._recreated.add(topic)
                self.lost(f"topic {topic} was deleted and made anew")

    def _with_new(self, start: Offsets, end: Offsets) -> Offsets:
        """Where each partition of `end` begins: new ones at their first record."""
        new = sorted((set(end) - set(start)) & set(self._partitions))
        first = self.at(new, EARLIEST)
        for place, offset in first.items():
            if offset > 0:
                self.lost(f"the new partition {place[0]}-{place[1]} starts at {offset}: records before it are gone")
        return {place: start[place] if place in start else first.get(place, 0) for place in end}

    def _should_wait(self, start: Offsets, end: Offsets, least: int) -> bool:
        now = self._monotonic()
        overdue = self._triggered_at is None or (now - self._triggered_at) * 1000 >= self.options.max_delay_ms
        if not overdue and available(self._with_new(start, end), end) < least:
            return True
        self._triggered_at = now
        return False
