"""The readers that Spark calls: batch and stream.

Rules:
- Spark pickles a reader to every task; state that only the driver needs is left behind.
- Offsets go to Spark as `{"topic":{"0":n}}`.
- `pushFilters` lives in a class of its own: Spark fails every query of a reader that has it, unless its setting
  spark.sql.python.filterPushdown.enabled is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.spark.offsets import BatchOffsets, OffsetReader, StreamOffsets
from headrace.spark.options import SourceOptions
from headrace.spark.ranges import OffsetRange, from_json, to_json
from headrace.spark.schema import check, to_arrow
from headrace.spark.task import Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TaskPartition(InputPartition):
    """One task, as Spark carries it."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def partitions_of(offsets: OffsetReader, ranges: Iterable[OffsetRange], oldest_ms: int = -1) -> list[InputPartition]:
    places = offsets.known_partitions()
    ranges = list(ranges)
    for each in ranges:
        if each.size > 0 and (each.topic, each.partition) not in places:
            offsets.lost(f"partition {each.topic}-{each.partition} does not exist any more")
    return [
        TaskPartition(Task(*each, *places[each.topic, each.partition], oldest_ms=oldest_ms))
        for each in offsets.plan(ranges)
        if (each.topic, each.partition) in places
    ]


def read(partition: InputPartition, schema: pa.Schema, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """What a task reads."""
    task = partition.value
    if task is None:  # Spark's way to say that there is no partition at all
        return
    from headrace.spark.fetch import Fetcher

    yield from Fetcher(task, schema, options).batches()


class BatchReader(DataSourceReader):
    """A read of what is there."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check(schema, options.columns)
        self._options = options
        self._schema = to_arrow(schema)

    def partitions(self) -> Sequence[InputPartition]:
        offsets = BatchOffsets(self._options)
        return partitions_of(offsets, offsets.ranges())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._schema, self._options)


class PruningBatchReader(BatchReader):
    """A batch reader that leaves out what filters exclude (option `pushdown`)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._filters = list(filters)
        return filters  # Spark applies them too: bounds are coarser than filters

    def partitions(self) -> Sequence[InputPartition]:
        from headrace.spark.pushdown import Bounds, prune

        bounds = Bounds()
        for item in self._filters:
            bounds.narrow(item)
        offsets = BatchOffsets(self._options)
        oldest_ms = -1 if bounds.oldest_us is None else max(0, bounds.oldest_us // 1000)
        return partitions_of(offsets, prune(offsets.ranges(), bounds, offsets), oldest_ms)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_filters": []}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that goes on in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check(schema, options.columns)
        self._options = options
        self._schema = to_arrow(schema)
        self._offsets_or_none: StreamOffsets | None = None

    @property
    def _offsets(self) -> StreamOffsets:
        if self._offsets_or_none is None:
            self._offsets_or_none = StreamOffsets(self._options)
        return self._offsets_or_none

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(self._offsets.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # Spark has no limit made of two: the lower one comes from the options, and is void where Spark wants all.
        least = None if isinstance(limit, ReadAllAvailable) else self._options.min_offsets
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(self._offsets.next(from_json(start), most=most, least=least))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._offsets.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        latest = self._offsets.latest
        return None if latest is None else to_json(latest)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        return partitions_of(self._offsets, self._offsets.ranges(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._schema, self._options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: it comes a batch late and never for the last one. See `offsets`."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_offsets_or_none": None}
