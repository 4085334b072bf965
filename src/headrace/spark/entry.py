"""What `pyspark_headrace.DefaultSource` calls: options in, readers out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.spark.options import parse, read_columns
from headrace.spark.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.spark.source import BatchReader, StreamReader


def schema_of(options: Mapping[str, str]) -> str:
    """The columns of a read or a write. Only what concerns columns is checked: Spark does not say which it will be."""
    columns, include_headers = read_columns(options)
    return ddl(columns, include_headers=include_headers)


def open_batch(options: Mapping[str, str], schema: StructType) -> BatchReader:
    from headrace.spark.source import BatchReader, PruningBatchReader

    parsed = parse(options, "batch")
    return PruningBatchReader(parsed, schema) if parsed.pushdown else BatchReader(parsed, schema)


def open_stream(options: Mapping[str, str], schema: StructType) -> StreamReader:
    from headrace.spark.source import StreamReader

    return StreamReader(parse(options, "stream"), schema)
