"""A dry run: everything about a pipeline that can be wrong before its first record, found without writing anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.connection import Connection
from headrace.core.errors import HeadraceError
from headrace.spark.cluster import Cluster, MissingError
from headrace.spark.lake.table import Table
from headrace.spark.options import parse
from headrace.spark.pipeline.config import ArchiveSink, Pipeline, TableSink, TopicSink, TopicSource
from headrace.spark.pipeline.frames import Frames, first_line, place, source_options
from headrace.spark.pipeline.lineage import couriers, with_letters
from headrace.spark.pipeline.sinks import to_topic
from headrace.spark.schema import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    told: str
    good: bool = True


def before_spark(pipeline: Pipeline) -> Iterator[Finding]:
    """What can be found within a second, without Spark: whether the broker answers and the topics are there."""
    if pipeline.broker:
        try:
            Connection(pipeline.broker).reach()
        except HeadraceError as error:
            yield Finding("broker", str(error), False)
            return
        yield Finding("broker", f"{pipeline.broker} answers")
    yield from _topics(pipeline)


def check(spark: SparkSession, pipeline: Pipeline, folder: Path) -> Iterator[Finding]:
    """Findings in the order of a run that come after `before_spark`; it ends where going on makes no sense."""
    try:
        views = Frames(spark, pipeline, folder, query="check").views
    except Exception as error:  # whatever a transformation may raise
        yield Finding("views", first_line(error), False)
        return
    for name, frame in views.items():
        kind = "stream" if frame.isStreaming else "table"
        yield Finding(f"view {name}", f"{kind} of {', '.join(f'{column} {kind}' for column, kind in frame.dtypes)}")
    for sink in pipeline.sinks:
        try:
            yield Finding(f"sink {sink.name}", _sink(sink, views[sink.view], folder))
        except Exception as error:
            yield Finding(f"sink {sink.name}", first_line(error), False)
    carriers = couriers(pipeline, folder)
    for name in with_letters(pipeline):
        yield Finding(f"dead letters of {name}", _letters(pipeline, name, carriers.get(name, "")))


def _topics(pipeline: Pipeline) -> Iterator[Finding]:
    for name, source in pipeline.sources.items():
        if not isinstance(source, TopicSource):
            continue
        try:
            mode = "batch" if source.static else "stream"
            given = source_options(pipeline, name, source, "check", streaming=not source.static)
            options = parse(given, "batch" if mode == "batch" else "stream")
            found = Cluster(options).partitions(options.subscription)
        except MissingError as error:
            yield Finding(f"source {name}", f"{error}; make it with: headrace topic create", False)
        except HeadraceError as error:
            yield Finding(f"source {name}", str(error), False)
        else:
            yield Finding(f"source {name}", f"{len({each[0] for each in found})} topics, {len(found)} partitions")


def _letters(pipeline: Pipeline, name: str, courier: str) -> str:
    source = pipeline.sources[name]
    assert isinstance(source, TopicSource) and source.decode is not None
    decode = source.decode
    where = f"topic {decode.dlq}" if decode.dlq else f"table {decode.dlq_table}"
    return f"{where}, with the batches of sink {courier}" if courier else f"{where}, by a query of their own"


def _sink(sink: object, frame: DataFrame, folder: Path) -> str:
    if not frame.isStreaming:
        raise ValueError("what it is from does not stream")
    if isinstance(sink, TopicSink):
        columns = to_topic(frame, sink).columns
        return f"topic {sink.topic} gets {', '.join(columns)} ({sink.delivery}, {sink.mode})"
    if isinstance(sink, TableSink):
        table = Table(place(folder, sink.path))
        if table.exists():
            table.ensure(to_arrow(frame.schema), sink.partition_by)
            return f"table {table.place.uri} is there and fits"
        return f"table {table.place.uri} will be made"
    if isinstance(sink, ArchiveSink):
        return f"archive in {place(folder, sink.path)}"
    return "the terminal"
