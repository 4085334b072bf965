"""A table as a source for Spark: a batch of one version, or a stream that plays one version row by row.

Rules:
- The version is decided once, at the start; what is committed later is not seen. (A stream's offset names it, so a
  query that is started again goes on with the same rows, as long as `vacuum` has left the files.)
- Rows come in the order of files and rows within; files are sorted by their path, in which an archive has the date,
  the topic, the partition and the first offset.
- `maxRowsPerTrigger` limits a micro-batch: with it a table is replayed at any speed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.spark.lake.options import LakeOptions, parse
from headrace.spark.lake.place import Place
from headrace.spark.lake.table import Table, TableError, path_of
from headrace.spark.schema import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_BATCH_ROWS = 10_000


class Slice(InputPartition):
    """Some rows of one file."""

    def __init__(self, path: str, partition: dict[str, Any], start: int, end: int) -> None:
        super().__init__(path)
        self.path, self.partition, self.start, self.end = path, partition, start, end


class Snapshot:
    """The files of one version and how many rows each has."""

    def __init__(self, options: LakeOptions, version: int | None = None) -> None:
        self._table = Table(options.path)
        handle = self._table.open()
        wanted = version if version is not None else options.version
        if wanted is not None and wanted != handle.version():
            try:
                handle = DeltaTable(self._table.place.uri, version=wanted)
            except Exception as error:
                raise TableError(f"{options.path} has no version {wanted}: {error}") from None
        self.version = handle.version()
        actions = pa.table(handle.get_add_actions(flatten=True)).sort_by("path").to_pylist()
        self._names = list(handle.metadata().partition_columns)
        self._files = [
            (path_of(each["path"]), {name: each[f"partition.{name}"] for name in self._names}, int(each["num_records"]))
            for each in actions
        ]
        self._ends = list(accumulate(rows for _, _, rows in self._files))

    @property
    def rows(self) -> int:
        return self._ends[-1] if self._ends else 0

    def slices(self, start: int, end: int) -> list[Slice]:
        """Rows from number `start` up to but without `end`."""
        found = []
        for index in range(bisect_right(self._ends, start), len(self._files)):
            path, partition, rows = self._files[index]
            first = self._ends[index] - rows
            if first >= end:
                break
            found.append(Slice(path, partition, max(start - first, 0), min(end - first, rows)))
        return found


def read(place: Place, piece: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A task's work."""
    stored = [name for name in schema.names if name not in piece.partition]
    position = 0
    with place.files.open_input_file(place.path(piece.path)) as source:
        reader = pq.ParquetFile(source)
        for batch in reader.iter_batches(_BATCH_ROWS, columns=stored):
            low, high = max(piece.start - position, 0), min(piece.end - position, batch.num_rows)
            position += batch.num_rows
            if low < high:
                yield _whole(batch.slice(low, high - low), piece.partition, schema)
            if position >= piece.end:
                return


def _whole(batch: pa.RecordBatch, partition: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(partition[each.name], each.type), batch.num_rows)
        if each.name in partition
        else batch.column(each.name).cast(each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class BatchReader(DataSourceReader):
    """All rows of one version."""

    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)

    def partitions(self) -> Sequence[InputPartition]:
        snapshot = Snapshot(self._options)
        return snapshot.slices(0, snapshot.rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Slice):
            yield from read(self._options.place, partition, self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of one version, some at a time."""

    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)
        self._known: Snapshot | None = None

    def _snapshot(self, version: int | None = None) -> Snapshot:
        if self._known is None or (version is not None and self._known.version != version):
            self._known = Snapshot(self._options, version)
        return self._known

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"version": self._snapshot().version, "row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        snapshot = self._snapshot(start["version"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else snapshot.rows
        return {"version": snapshot.version, "row": min(start["row"] + most, snapshot.rows)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """A snapshot does not grow."""

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._known is None else {"version": self._known.version, "row": self._known.rows}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        return self._snapshot(end["version"]).slices(start["row"], end["row"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Slice):
            yield from read(self._options.place, partition, self._schema)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}


def schema_of(given: Mapping[str, str]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(Table(parse(given).path).schema())


def open_batch(given: Mapping[str, str], schema: StructType) -> BatchReader:
    return BatchReader(parse(given), schema)


def open_stream(given: Mapping[str, str], schema: StructType) -> StreamReader:
    return StreamReader(parse(given), schema)
