"""Frames into sinks, with the dead letters of their batches.

Rules:
- A batch and its dead letters are one query with one checkpoint, so none of them is ever ahead of the other for good.
- If all goes to topics, it is one write: rows and letters are in the same transaction, so that a reader of committed
  records sees both or neither.
- If a table takes part, no transaction spans both: the batch is computed once and written in turn, each write under
  the query's name and the batch's number. What a crash cut short is done again; whoever has the batch takes nothing.
- Spark lets streams only append to a topic: the other output modes are written batch by batch, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headrace.core.errors import ConfigError
from headrace.spark.options import BOOTSTRAP
from headrace.spark.pipeline.config import Decode, Pipeline, TableSink, TopicSink
from headrace.spark.pipeline.frames import place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECORD: Final = ("key", "value", "headers", "partition")
_QUERY_ID: Final = "sql.streaming.queryId"  # a local property of Spark's streaming threads
_SHAPE: Final = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go: a format and its options."""

    name: str  # within its query
    format: Literal["headrace", "headracelake"]
    options: Mapping[str, str]

    @property
    def topic(self) -> str:
        return self.options.get("topic", "")


class Flow(NamedTuple):
    """Rows in the shape that their target needs."""

    rows: DataFrame
    target: Target


def to_topic(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as records: columns `value` (and key, headers, partition) as they are, or the whole row as JSON."""
    from pyspark.sql import functions as f

    names = frame.columns
    if sink.key and sink.key not in names:
        raise ConfigError(
            f"sink {sink.name}: there is no column {sink.key!r} for the key; there are {', '.join(names)}"
        )
    key = [f.col(f"`{sink.key}`").cast("string").alias("key")] if sink.key else []
    if "value" in names and dict(frame.dtypes)["value"] in ("string", "binary"):
        own = [f.col(name) for name in _RECORD if name in names and not (name == "key" and sink.key)]
        return frame.select(*key, *own)
    return frame.select(*key, f.to_json(f.struct(*(f.col(f"`{name}`") for name in names))).alias("value"))


def sink_flow(pipeline: Pipeline, folder: Path, sink: TopicSink | TableSink, frame: DataFrame) -> Flow:
    """A sink's rows."""
    if isinstance(sink, TopicSink):
        own = {BOOTSTRAP: pipeline.broker, "topic": sink.topic, "delivery": sink.delivery}
        own |= {name: str(value) for name, value in sink.options.items()}
        return Flow(to_topic(frame, sink), Target(sink.name, "headrace", own))
    options = {"path": place(folder, sink.path), "partitionBy": ",".join(sink.partition_by)}
    return Flow(frame, Target(sink.name, "headracelake", options))


def letter_flow(pipeline: Pipeline, folder: Path, source: str, decode: Decode, bad: DataFrame) -> Flow:
    """A source's misfits."""
    from headrace.spark.values import dead_letters

    return Flow(dead_letters(bad) if decode.dlq else bad, letter_target(pipeline, folder, source, decode))


def letter_target(pipeline: Pipeline, folder: Path, source: str, decode: Decode) -> Target:
    name = f"{source}-dlq"
    if decode.dlq:
        own = {BOOTSTRAP: pipeline.broker, "topic": decode.dlq, "delivery": "exactly_once"}
        return Target(name, "headrace", own)
    return Target(name, "headracelake", {"path": place(folder, decode.dlq_table)})


def stream(flow: Flow, letters: Sequence[Flow] = (), *, mode: str = "append", staging: str = "") -> Any:
    """A writer for one query that carries all flows. `staging`: where large batches wait, if they go one by one."""
    flows = [flow, *letters]
    if letters and _in_one_cluster(flows):
        flows = [_routed(flows)]
    if len(flows) == 1 and (mode == "append" or flow.target.format != "headrace"):
        [(rows, target)] = flows
        return rows.writeStream.format(target.format).options(**target.options).outputMode(mode)
    rows = flows[0].rows if len(flows) == 1 else _tagged([each.rows for each in flows])
    return rows.writeStream.outputMode(mode).foreachBatch(_each_batch([each.target for each in flows], staging))


def _in_one_cluster(flows: Sequence[Flow]) -> bool:
    return all(each.target.topic for each in flows) and len({each.target.options[BOOTSTRAP] for each in flows}) == 1


def _routed(flows: Sequence[Flow]) -> Flow:
    """Records of several topics as one flow, each with its topic."""
    from pyspark.sql import functions as f

    def alike(each: Flow) -> DataFrame:
        columns = [
            (f.col(name) if name in each.rows.columns else f.lit(None)).cast(kind).alias(name)
            for name, kind in _SHAPE.items()
        ]
        return each.rows.select(*columns, f.lit(each.target.topic).alias("topic"))

    first = flows[0].target
    options = {name: value for name, value in first.options.items() if name != "topic"}
    return Flow(_union(map(alike, flows)), Target(first.name, first.format, options))


def _tagged(frames: Sequence[DataFrame]) -> DataFrame:
    """Rows of different shapes in one frame: row n of the shapes is in column `_n`, the others are null."""
    from pyspark.sql import functions as f

    kinds = [frame.schema for frame in frames]

    def alike(index: int) -> DataFrame:
        columns = [f.struct("*") if at == index else f.lit(None).cast(kind) for at, kind in enumerate(kinds)]
        return frames[index].select(*(column.alias(f"_{at}") for at, column in enumerate(columns)))

    return _union(map(alike, range(len(frames))))


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.union(right), frames)


def _each_batch(targets: Sequence[Target], staging: str) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as f

        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        assert query_id, "Spark no longer tells a batch its query's id"
        if len(targets) == 1:
            _write(batch, targets[0], query_id, batch_id, staging)
            return
        batch.persist()  # once: all see the same rows, and state is computed once
        try:
            for index, target in enumerate(targets):
                rows = batch.where(f.col(f"_{index}").isNotNull()).select(f"_{index}.*")
                if index == 0 or not rows.isEmpty():
                    _write(rows, target, query_id, batch_id, staging)
        finally:
            batch.unpersist()

    return write


def _write(rows: DataFrame, target: Target, query_id: str, batch_id: int, staging: str) -> None:
    options = dict(target.options)
    if options.get("delivery") != "at_least_once":
        options |= {"txnAppId": f"{query_id}-{target.name}", "txnVersion": str(batch_id)}
    if options.get("delivery") == "exactly_once" and staging:
        options.setdefault("stagingLocation", staging)
    rows.write.format(target.format).mode("append").options(**options).save()
