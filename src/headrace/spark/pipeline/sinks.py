"""Frames in the shape that a sink needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import ConfigError
from headrace.spark.pipeline.config import TopicSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECORD: Final = ("key", "value", "headers", "partition")


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
