"""The writers that Spark calls: batch and stream, in three deliveries.

Rules:
- `write` runs in tasks, `commit` in a process of the driver's; both get a copy of the writer, and share nothing else.
- What the interface does not say (query, batch, partition) is in the task's context, under names of Spark's own.
- `abort` deletes nothing and undoes nothing: Spark also calls it when a commit failed after it took effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.core.errors import ConfigError
from headrace.spark.option import Mode
from headrace.spark.sink_options import SinkOptions, parse
from headrace.spark.sink_rows import Columns, records
from headrace.spark.staging import Part, Staging, absolute

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.spark.sink_driver import Publisher
    from headrace.spark.sink_producer import Outlet

QUERY_ID: Final = "sql.streaming.queryId"  # Spark's names; a test pins them
BATCH_ID: Final = "streaming.sql.batchId"

_publishers: dict[tuple[str, str], Publisher] = {}
_outlets: dict[str, Outlet] = {}
_checked: set[str] = set()


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    query_id: str
    part: Part


class Task(NamedTuple):
    """Which task this is."""

    query_id: str
    batch_id: int
    partition: int

    @property
    def name(self) -> str:
        return f"{self.query_id}-{self.partition}"


def this_task(query_id: str = "", batch_id: int = 0) -> Task:
    """Streams are asked without arguments: the context knows them."""
    context = TaskContext.get()
    if context is None:
        raise ConfigError("a sink writes in tasks of Spark only")
    if query_id:
        return Task(query_id, batch_id, context.partitionId())
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise ConfigError(f"this version of Spark does not tell tasks {QUERY_ID} and {BATCH_ID}")
    return Task(query, int(batch), context.partitionId())


class Sink:
    """What both writers share."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = replace(options, staging=absolute(options.staging))  # here on the driver: tasks run elsewhere
        self._columns = Columns.of(schema, options.topic)
        _check_client(options)

    def write_rows(self, iterator: Iterator[pa.RecordBatch], task: Task, group: str) -> Written:
        """A task's work. `group` is the marker's, if it is one that may be forgotten."""
        batches = (self._columns.narrow(batch) for batch in iterator)
        if self._options.delivery == "exactly_once":
            parts = self.staging(task.query_id)
            return Written(task.query_id, parts.pack(batches, _part_name(task.batch_id, task.partition)))
        if self._options.delivery == "exactly_once_partitioned":
            from headrace.spark.sink_partition import TaskWriter

            group = group or self._options.marker_prefix + task.name
            TaskWriter(self._options, self._options.prefix + task.name, group).write(task.batch_id, batches)
            return Written(task.query_id, Part())
        _write_at_once(self._options, batches)
        return Written(task.query_id, Part())

    def staging(self, query_id: str) -> Staging:
        location = f"{self._options.staging}/{query_id}" if self._options.staging else ""
        return Staging(location, self._options.stage_above_bytes)


class StreamSink(Sink, DataSourceStreamArrowWriter):
    """A stream into topics."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator, this_task(), "")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._options.delivery != "exactly_once":
            return
        parts, query_id = _collected(messages)
        if parts:
            staging = self.staging(query_id)
            _publisher(self._options, query_id).publish(batchId, parts, staging)
            staging.clean(_part_name(batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class BatchSink(Sink, DataSourceArrowWriter):
    """A table into topics.

    With an application's id and version it may be repeated, as in foreachBatch: a version is written once. Without,
    every write is a query of its own, and what it marks is forgotten in time: the group is not called by the prefix.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._query_id = options.app_id or f"once-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = this_task(self._query_id, self._options.version)
        return self.write_rows(iterator, task, "" if self._options.app_id else task.name)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts, _ = _collected(messages)
        if self._options.delivery != "exactly_once" or not parts:
            return
        from headrace.spark.sink_driver import Publisher

        if self._options.app_id:
            publisher = _publisher(replace(self._options, version=0), self._query_id)
        else:
            publisher = Publisher(self._options, self._options.prefix + self._query_id, self._query_id)
        staging = self.staging(self._query_id)
        publisher.publish(self._options.version, parts, staging)
        staging.clean(_part_name(self._options.version))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


def open_stream_sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    return StreamSink(_parsed(options, overwrite, "stream"), schema)


def open_batch_sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    return BatchSink(_parsed(options, overwrite, "batch"), schema)


def _parsed(options: Mapping[str, str], overwrite: bool, mode: Mode) -> SinkOptions:
    if overwrite:
        raise ConfigError("a topic can only be appended to: use mode('append') or, in streams, outputMode('append')")
    return parse(options, mode)


def _check_client(options: SinkOptions) -> None:
    """Let librdkafka look at its settings now, on the driver, once."""
    from headrace.spark.sink_producer import configuration, make_producer

    settings = configuration(options, options.prefix if options.delivery != "at_least_once" else "")
    key = repr(sorted(settings.items()))
    if key not in _checked:
        make_producer(settings)
        _checked.add(key)


def _part_name(batch_id: int, partition: int | None = None) -> str:
    """Sorts by batch."""
    return f"{batch_id:020d}-" + ("" if partition is None else f"{partition}")


def _collected(messages: Sequence[WriterCommitMessage | None]) -> tuple[list[Part], str]:
    found = [message for message in messages if isinstance(message, Written) and message.part.rows]
    return [message.part for message in found], found[0].query_id if found else ""


def _publisher(options: SinkOptions, query_id: str) -> Publisher:
    from headrace.spark.sink_driver import Publisher

    key = repr((options, query_id)), query_id
    for other in [other for other in _publishers if other[1] == query_id and other != key]:
        _publishers.pop(other).close()
    if key not in _publishers:
        _publishers[key] = Publisher(options, options.prefix + query_id, options.marker_prefix + query_id)
    return _publishers[key]


def _write_at_once(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> None:
    """One producer per process and settings. One that has failed is not used again."""
    from headrace.spark.sink_producer import Outlet

    key = repr(options)
    outlet = _outlets.pop(key, None) or Outlet(options)
    for batch in batches:
        outlet.send(records(batch, options.topic))
    outlet.flush()
    _outlets[key] = outlet
