"""`format("headracelake")` for PySpark: Delta tables through delta-rs, as a sink and as a source of snapshots.

Every planner process of Spark imports this: it must import nothing heavy, and must never fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Tables at the option `path` (`save(path)`, `load(path)`, `start(path)`); `partitionBy` names columns."""

    @classmethod
    def name(cls) -> str:
        return "headracelake"

    def schema(self) -> StructType:
        from headrace.spark.lake.snapshot import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.lake.snapshot import open_batch

        return open_batch(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from headrace.spark.lake.snapshot import open_stream

        return open_stream(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headrace.spark.lake.sink import open_batch

        return open_batch(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from headrace.spark.lake.sink import open_stream

        return open_stream(self.options, schema)
