"""Proof that an archive has every offset once.

What is proved, for each partition:
1. The ranges of the ledger follow each other without a hole and without overlap.
2. The rows of the table are exactly those that the tasks counted: as many in every range, no offset twice, none
   outside of all ranges. Files are read, not only their statistics.
3. With a broker: every record that it still has below the archive's end is in the table.

Offsets without a record are normal (control records of transactions, aborted records, compacted keys): they were
absent when the range was read, so they are counted as gaps and not as losses. Rows that a broker no longer has are
why archives exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.client.errors import ClientError
from headrace.spark.lake.ledger import ArchivedRange
from headrace.spark.lake.table import Table
from headrace.spark.options import BOOTSTRAP, EARLIEST, parse
from headrace.spark.options import Place as TopicPlace

_SHOWN: Final = 5  # offsets named in a finding


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """What was found of one partition; right if there are no faults."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    gaps: int  # offsets that hold no record
    compared: int | None  # records of the broker that were looked for
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    version: int
    files: int
    partitions: tuple[PartitionProof, ...] = field(default=())

    @property
    def holds(self) -> bool:
        return not any(each.faults for each in self.partitions)


def verify(
    path: str, *, bootstrap: str | None = None, deep: bool = False, progress: Callable[[int, int], None] | None = None
) -> Proof:
    """Check an archive; `bootstrap` compares with a broker too, `deep` reads every byte against its checksum."""
    table = Table(path)
    handle = table.open()
    ranges = table.ranges(handle)
    files = sorted(handle.file_uris())
    found = _offsets(table, files, deep, progress)
    proofs = []
    for place in sorted({each.place for each in ranges} | set(found)):
        mine = [each for each in ranges if each.place == place]
        offsets = np.sort(np.concatenate(found.pop(place, [np.empty(0, np.int64)])))
        proofs.append(_prove(place, mine, offsets, bootstrap))
    return Proof(handle.version(), len(files), tuple(proofs))


def _offsets(
    table: Table, files: list[str], deep: bool, progress: Callable[[int, int], None] | None
) -> dict[TopicPlace, list[Any]]:
    """Offsets in the files, by partition."""
    found: dict[TopicPlace, list[Any]] = {}
    for number, uri in enumerate(files):
        path = uri.removeprefix("file://") if "://" not in uri else table.place.path(uri[len(table.place.uri) + 1 :])
        columns = None if deep else ["topic", "partition", "offset"]
        with table.place.files.open_input_file(path) as source:
            reader = pq.ParquetFile(source, page_checksum_verification=deep)
            for group in range(reader.num_row_groups):
                _gather(reader.read_row_group(group, columns=columns), found)
        if progress is not None:
            progress(number + 1, len(files))
    return found


def _gather(rows: pa.Table, found: dict[TopicPlace, list[Any]]) -> None:
    places = rows.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
    for place in places.to_pylist():
        piece = rows
        if places.num_rows > 1:
            same = pc.and_(pc.equal(rows["topic"], place["topic"]), pc.equal(rows["partition"], place["partition"]))
            piece = rows.filter(same)
        found.setdefault((place["topic"], place["partition"]), []).append(piece["offset"].to_numpy())


def _prove(place: TopicPlace, ranges: list[ArchivedRange], offsets: Any, bootstrap: str | None) -> PartitionProof:
    faults = [*_order(ranges), *_twice(offsets), *_counts(ranges, offsets)]
    start = ranges[0].start if ranges else -1
    end = max((each.end for each in ranges), default=-1)
    compared = None
    if bootstrap is not None and ranges:
        there = _on_broker(bootstrap, place, start, end)
        compared = len(there)
        absent = there[~np.isin(there, offsets, assume_unique=True)] if compared else there
        if len(absent):
            faults.append(f"the broker has {_these(absent)} which the table lacks")
    return PartitionProof(*place, start, end, len(offsets), max(0, end - start - len(offsets)), compared, tuple(faults))


def _order(ranges: Iterable[ArchivedRange]) -> Iterator[str]:
    for one, two in pairwise(ranges):
        if two.start > one.end:
            yield f"offsets {one.end} to {two.start - 1} were never archived"
        elif two.start < one.end:
            yield f"offsets {two.start} to {one.end - 1} were archived twice"


def _twice(offsets: Any) -> Iterator[str]:
    double = np.unique(offsets[1:][offsets[1:] == offsets[:-1]])
    if len(double):
        yield f"{_these(double)} more than once"


def _counts(ranges: list[ArchivedRange], offsets: Any) -> Iterator[str]:
    covered = 0
    for each in ranges:
        low, high = np.searchsorted(offsets, [each.start, each.end])
        covered += int(high - low)
        if high - low != each.rows:
            yield (
                f"offsets {each.start} to {each.end - 1} held {each.rows} records when they were read; "
                f"the table has {high - low}"
            )
    if covered < len(offsets):
        yield f"{len(offsets) - covered} rows have offsets that no commit speaks of"


def _these(offsets: Any) -> str:
    shown = ", ".join(str(each) for each in offsets[:_SHOWN].tolist())
    more = f" and {len(offsets) - _SHOWN} more" if len(offsets) > _SHOWN else ""
    return f"offset{'s' * (len(offsets) != 1)} {shown}{more}"


def _on_broker(bootstrap: str, place: TopicPlace, start: int, end: int) -> Any:
    """The offsets that a broker still has of a range, as a committed reader sees them."""
    from headrace.spark.cluster import MissingError
    from headrace.spark.fetch import Fetcher
    from headrace.spark.offsets import BatchOffsets
    from headrace.spark.task import Task

    topic, partition = place
    options = parse(
        {BOOTSTRAP: bootstrap, "assign": f'{{"{topic}":[{partition}]}}', "failOnDataLoss": "false"}, "batch"
    )
    reader = BatchOffsets(options)
    try:
        known = reader.partitions()
    except (MissingError, ClientError):
        return np.empty(0, np.int64)  # the topic is gone: nothing to compare with
    first = reader.at([place], EARLIEST)[place]
    if first >= end:
        return np.empty(0, np.int64)
    task = Task(topic, partition, max(start, first), end, *known[place])
    schema = pa.schema([pa.field("offset", pa.int64())])
    pieces = [batch.column("offset").to_numpy() for batch in Fetcher(task, schema, options).batches()]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)
