"""`format("headrace")` for PySpark, which looks for modules called `pyspark_*` and takes their `DefaultSource`.

Every planner process of Spark imports this: it must import nothing heavy, and must never fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Topics of Headrace, or of any Kafka, as tables and streams. The options are those of Spark's `kafka` format."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        from headrace.spark.entry import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.entry import open_batch

        return open_batch(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from headrace.spark.entry import open_stream

        return open_stream(self.options, schema)

    # Spark calls these two by keyword: the names of the parameters are part of its interface.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.sink import open_batch_sink

        return open_batch_sink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from headrace.spark.sink import open_stream_sink

        return open_stream_sink(self.options, schema, overwrite)
