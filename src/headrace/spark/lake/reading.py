"""Tables for every engine, always through the log: exactly the files of one version, never what else lies about.

`read_table` for Spark, `duckdb_table` for DuckDB, `polars_table` for Polars, `arrow_table` for pyarrow and pandas
(`arrow_table(path).to_pandas()`). None of them needs a jar, an extension or the network.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError
from headrace.spark.lake.table import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

Path = str | os.PathLike[str]


def read_table(spark: SparkSession, path: Path, *, handle: DeltaTable | None = None) -> DataFrame:
    """A table in Spark, read by Spark's own Parquet reader. `handle` pins a version."""
    from pyspark.sql.pandas.types import from_arrow_schema

    table = Table(path)
    handle = handle or table.open()
    schema = from_arrow_schema(table.schema(handle))
    files = sorted(handle.file_uris())
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", table.place.uri).parquet(*files)


def arrow_table(path: Path, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """A table as pyarrow has it. `filters` as in pyarrow: [("date", "=", ...)]."""
    return Table(path).open().to_pyarrow_table(columns=list(columns) if columns else None, filters=filters)


def newest_values(path: Path, topic: str, most: int) -> list[bytes | None]:
    """Some values of a topic in an archive, from the newest days that it has."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = Table(path)
    found: list[bytes | None] = []
    for name in sorted(table.paths(), reverse=True):
        with table.place.files.open_input_file(table.place.path(name)) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=["topic", "value"]):
                found += batch.filter(pc.equal(batch["topic"], topic))["value"].to_pylist()[: most - len(found)]
                if len(found) >= most:
                    return found
    return found


def duckdb_table(path: Path, connection: Any = None) -> Any:
    """A table as a DuckDB relation: `duckdb_table(path).filter("partition = 0").aggregate("count(*)")`."""
    duckdb = connection or _needed("duckdb")
    files = Table(path).files()
    if not files:
        return duckdb.from_arrow(arrow_table(path))
    return duckdb.read_parquet(files, hive_partitioning=True)


def polars_table(path: Path) -> Any:
    """A table as a lazy Polars frame."""
    table = Table(path)
    table.open()  # for its clear error
    return _needed("polars").scan_delta(table.place.uri)


def _needed(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{name} is not installed; try: pip install {name}") from None
