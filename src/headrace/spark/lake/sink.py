"""Any DataFrame into a Delta table: tasks write Parquet, the driver commits.

Rules:
- A streaming batch is committed with the application transaction (query id, batch id): run again, it adds nothing. A
  batch write can say its own (`txnAppId`, `txnVersion`), as Delta's writers do: so writes foreachBatch exactly once.
- `abort` deletes nothing: Spark calls it also when a commit failed after it took effect. `vacuum` clears what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.core.errors import ConfigError
from headrace.spark.lake.files import PartFile, PartWriter, Values
from headrace.spark.lake.options import LakeOptions, parse
from headrace.spark.lake.table import Table
from headrace.spark.schema import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote, for the driver."""

    files: list[PartFile]
    query_id: str


def write(batches: Iterator[pa.RecordBatch], options: LakeOptions, schema: pa.Schema) -> Written:
    """A task's work."""
    stored = pa.schema([each for each in schema if each.name not in options.partition_by])
    writer = PartWriter(options.place, stored)
    for batch in batches:
        for values, piece in split(batch.cast(schema), options.partition_by):
            writer.add(values, piece.select(stored.names))
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
    return Written(writer.close(), query_id or "")


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """A batch in pieces, each with one combination of partition values."""
    if not partition_by:
        yield (), batch
        return
    table = pa.Table.from_batches([batch])
    names = list(partition_by)
    for each in table.select(names).group_by(names).aggregate([]).to_batches():
        for row in range(each.num_rows):
            keep = None
            values = []
            for name in names:
                value = each.column(name)[row]
                same = pc.equal(batch.column(name), value) if value.is_valid else pc.is_null(batch.column(name))
                keep = same if keep is None else pc.and_(keep, same)
                values.append((name, _text(value)))
            yield tuple(values), batch.filter(pc.fill_null(keep, False))


def _text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    found = value.as_py()
    if isinstance(found, bool):
        return str(found).lower()
    if pa.types.is_timestamp(value.type) or pa.types.is_binary(value.type) or pa.types.is_nested(value.type):
        raise ConfigError(f"a table cannot be partitioned by a column of type {value.type}; a date or a word will do")
    return str(found)


class _Writer:
    """What batch and stream share."""

    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)

    def _prepare(self) -> Table:
        table = Table(self._options.path)
        table.ensure(self._schema, self._options.partition_by)
        return table


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A whole DataFrame in one commit."""

    def __init__(self, options: LakeOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema)
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write(iterator, self._options, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [each for message in messages if isinstance(message, Written) for each in message.files]
        table, transaction = self._prepare(), self._options.transaction
        if files or self._overwrite or transaction is None:
            table.commit(files, transaction=transaction, overwrite=self._overwrite)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Micro-batches, each in one commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write(iterator, self._options, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, Written)]
        files = [each for message in written for each in message.files]
        table = self._prepare()
        if files:
            table.commit(files, transaction=(written[0].query_id, batchId))


def open_batch(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    return BatchWriter(parse(given), schema, overwrite=overwrite)


def open_stream(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    return StreamWriter(parse(given), schema)
