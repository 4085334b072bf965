"""Topics into a Delta table, exactly once, at the speed of the bytes.

How: Structured Streaming plans offset ranges, retries and checkpoints. A task fetches its range, decodes it and
writes Parquet with pyarrow; only its report (one line of JSON) goes through the JVM. For every micro-batch the driver
collects the reports and commits files and ranges to Delta in one commit with the application transaction
(query id, batch id).

Why it is exactly once:
- Only reports of attempts that won reach the driver. Files of the others are in no commit.
- A batch that Spark runs again after a crash is found by its transaction and not committed again.
- A commit that does not go on exactly where the table ends is refused, whatever a checkpoint says and whoever else
  archives into the same table. A query without a
  checkpoint starts where the table ends: the table is the truth, and a checkpoint may be deleted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.datasource import DataSource, InputPartition

from headrace.core.errors import ConfigError
from headrace.spark.lake import ledger
from headrace.spark.lake.files import PartFile
from headrace.spark.lake.ledger import ArchivedRange
from headrace.spark.lake.place import Place
from headrace.spark.lake.rows import DATE, RECORD, read_report, table_schema, write_range
from headrace.spark.lake.table import OvertakenError, Table, TableError
from headrace.spark.lake.typed import read_by, read_objects
from headrace.spark.options import parse
from headrace.spark.ranges import from_json, to_json
from headrace.spark.source import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from headrace.spark.values.codec import Decoder

FORMAT: Final = "headrace_archive"
PATH: Final = "archive.path"
DATA: Final = "archive.data"  # the type of decoded values, as Spark's JSON
DECODER: Final = "archive.decoder"  # what decodes them, if they are not JSON: see TypedValues
QUERY_ID: Final = "sql.streaming.queryId"  # a local property of Spark's streaming threads
COMPACT_AFTER: Final = 64
_REPORT: Final = "report string"
_GUARD: Final = "headrace.archive"
_TRIES: Final = 20  # commits of other archives of the same table that may come first


class ArchiveSource(DataSource):
    """A stream of reports: reading it writes files."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return _REPORT

    def streamReader(self, schema: StructType) -> ArchiveReader:  # noqa: N802
        return ArchiveReader(self.options)


class ArchiveReader(StreamReader):
    """The stream reader, which starts where the table ends and whose tasks write what they read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        from pyspark.sql.types import StructType

        mine = {name.lower(): value for name, value in given.items() if name.lower().startswith("archive.")}
        rest = {name: value for name, value in given.items() if name.lower() not in mine}
        if not any(name.lower().startswith("starting") for name in rest):
            rest["startingOffsets"] = "earliest"
        super().__init__(parse(rest, "stream"), StructType())
        self._path = mine[PATH]
        self._data = mine.get(DATA)
        self._decoder = mine.get(DECODER)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        start = from_json(super().initialOffset())
        ends = Table(self._path).ends()
        return to_json({place: ends.get(place, offset) for place, offset in start.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from headrace.spark.fetch import Fetcher

        task = partition.value
        if task is None:
            return
        batches = Fetcher(task, RECORD, self._options).batches()
        span = (task.topic, task.partition, task.start, task.end)
        read = read_objects if self._decoder is None else read_by(TypedValues.parse(self._decoder).decoder())
        report = write_range(Place.of(self._path), batches, span, RECORD, data_type(self._data), read)
        yield pa.RecordBatch.from_pydict({"report": [report]}, schema=pa.schema([("report", pa.string())]))


def data_type(text: str | None) -> pa.StructType | None:
    """Spark's JSON of a struct as an Arrow type."""
    if text is None:
        return None
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return pa.struct(list(to_arrow_schema(StructType.fromJson(json.loads(text)), timezone="UTC")))


@dataclass(frozen=True, slots=True)
class TypedValues:
    """What values are, for typed columns beside the raw ones. All of it travels to the tasks.

    `schema` is DDL (or what else `struct_of` takes) for JSON, the text of an Avro schema, or Protobuf's set of
    descriptors in base64, of which `message` names one.
    """

    schema: str
    format: Literal["json", "avro", "protobuf"] = "json"
    message: str = ""

    @classmethod
    def of_file(cls, path: Path, format: Literal["avro", "protobuf"], message: str = "") -> TypedValues:
        """Raises ConfigError."""
        from headrace.spark.values.schemas import read_bytes, read_text

        text = read_text(path) if format == "avro" else base64.b64encode(read_bytes(path)).decode()
        return cls(text, format, message)

    def decoder(self) -> Decoder:
        from headrace.spark.values import decoder_of

        schema = base64.b64decode(self.schema) if self.format == "protobuf" else self.schema
        return decoder_of(self.format, schema, self.message)

    def text(self) -> str:
        return json.dumps([self.schema, self.format, self.message])

    @classmethod
    def parse(cls, text: str) -> TypedValues:
        return cls(*json.loads(text))

    def options(self) -> dict[str, str]:
        """For the source. Raises ConfigError if the schema cannot be read."""
        if self.format == "json":
            return {DATA: _struct(self.schema)}
        from headrace.spark.values.codec import nullable

        return {DATA: str(nullable(self.decoder().schema).json()), DECODER: self.text()}


@dataclass(frozen=True, slots=True)
class Archived:
    """What one micro-batch added."""

    batch_id: int
    rows: int
    offsets: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Archive:
    """Topics (options of the source) into the table at `path`. `data` says what values are; text is DDL of JSON."""

    options: Mapping[str, str]
    path: str
    checkpoint: str
    data: TypedValues | str | None = None
    name: str = "archive"
    compact_after: int = COMPACT_AFTER  # small files of one day, then they are joined between two batches; 0: never
    on_commit: Callable[[Archived], None] | None = None

    def start(
        self, spark: SparkSession, *, once: bool = False, interval: str | None = None, every: int = ledger.FOLD_AFTER
    ) -> StreamingQuery:
        """Start the query: until stopped, or with `once` until all that is there now is archived."""
        values = TypedValues(self.data) if isinstance(self.data, str) else self.data
        typed = {} if values is None else values.options()
        Table(self.path).ensure(table_schema(RECORD, data_type(typed.get(DATA))), [DATE], name=self.name)
        spark.dataSource.register(ArchiveSource)
        given = {**self.options, PATH: Place.of(self.path).uri, **typed}
        writer = (
            spark.readStream.format(FORMAT)
            .options(**given)
            .load()
            .writeStream.queryName(self.name)
            .option("checkpointLocation", self.checkpoint)
            .foreachBatch(self._sink(every))
        )
        if once:
            writer = writer.trigger(availableNow=True)
        elif interval is not None:
            writer = writer.trigger(processingTime=interval)
        return writer.start()

    def _sink(self, every: int) -> Callable[[DataFrame, int], None]:
        table = Table(self.path)
        on_commit = self.on_commit
        upkeep = Upkeep(table, self.compact_after)

        def sink(reports: DataFrame, batch_id: int) -> None:
            query_id = reports.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
            assert query_id, "Spark no longer tells a batch its query's id"
            if table.is_committed((query_id, batch_id)):
                return
            found = commit(table, (row.report for row in reports.collect()), (query_id, batch_id))
            table.fold(at_least=every)
            upkeep.after(found)
            if on_commit is not None:
                on_commit(found)

        return sink


class Upkeep:
    """Joins small files now and then: it looks when as many files were added as one compaction is worth."""

    def __init__(self, table: Table, compact_after: int) -> None:
        self._table = table
        self._after = compact_after
        self._added = compact_after  # of what a run before this one left, nothing is known: look at once

    def after(self, batch: Archived) -> None:
        self._added += batch.files
        if self._after and self._added >= self._after:
            self._added = 0
            self._table.tidy(at_least=self._after)


def commit(table: Table, reports: Iterable[str], transaction: tuple[str, int]) -> Archived:
    """Commit what tasks report. Raises TableError if it would leave a gap or add an offset twice."""
    ranges: list[ArchivedRange] = []
    files: list[PartFile] = []
    for text in reports:
        span, written = read_report(text)
        ranges.append(span)
        files += written
    ranges.sort()
    if ranges:
        _commit(table, ranges, files, transaction)
    return Archived(
        transaction[1],
        sum(each.rows for each in ranges),
        sum(each.end - each.start for each in ranges),
        len(files),
        sum(each.size_bytes for each in files),
    )


def _commit(table: Table, ranges: list[ArchivedRange], files: list[PartFile], transaction: tuple[str, int]) -> None:
    """What was checked is what is committed to: another archive of this table that comes between is noticed."""
    metadata = ledger.metadata_of(ledger.merged(ranges))
    for last in (*[False] * _TRIES, True):
        handle = table.open()
        table.fold_in_time(handle)
        _check_order(table, ranges, handle)
        try:
            table.commit(files, transaction=transaction, metadata=metadata, after=handle, guard=_GUARD)
            return
        except OvertakenError:
            if last:
                raise


def _check_order(table: Table, ranges: Iterable[ArchivedRange], handle: DeltaTable) -> None:
    ends = table.ends(handle)
    for each in ranges:
        end = ends.get(each.place, each.start)
        if each.start != end:
            raise TableError(
                f"the table at {table.place.uri} ends at offset {end} of {each.topic}-{each.partition}, but the next "
                f"batch starts at {each.start}; this checkpoint belongs to another table or an older state of it: "
                "delete the checkpoint, and the archive goes on where the table ends"
            )
        ends[each.place] = each.end


def _struct(ddl: str) -> str:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromDDL(ddl).json()
    except PySparkException as error:
        raise ConfigError(f"the schema {ddl!r} cannot be read: {str(error).splitlines()[0]}") from None
