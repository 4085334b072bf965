"""Frames in the shape that a sink needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import ConfigError
from headrace.spark.pipeline.config import TopicSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECORD: Final = ("key", "value", "headers", "partition")
REASON: Final = "the value does not fit the schema"


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


def dead_letters(bad: DataFrame, *, as_headers: bool) -> DataFrame:
    """Records that did not decode, with where they were and why: as headers of the same record, or as columns."""
    from pyspark.sql import functions as f

    if not as_headers:
        return bad.select(
            "topic", "partition", "offset", "timestamp", "key", "value", "headers", f.lit(REASON).alias("reason")
        )
    told = {
        "headrace.error": f.lit(REASON),
        "headrace.topic": f.col("topic"),
        "headrace.partition": f.col("partition").cast("string"),
        "headrace.offset": f.col("offset").cast("string"),
    }
    added = f.array(*(f.struct(f.lit(k).alias("key"), v.cast("binary").alias("value")) for k, v in told.items()))
    empty = f.coalesce(f.col("headers"), f.array().cast("array<struct<key:string,value:binary>>"))
    return bad.select("key", "value", f.concat(empty, added).alias("headers"))
