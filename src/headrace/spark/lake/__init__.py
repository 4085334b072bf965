"""Tables: topics archived as Delta through delta-rs, and how every engine reads them. No jar.

`Archive` writes, `Table` looks after, `verify` proves, `read_table` and its neighbours read.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.lake.archive import Archive, Archived
    from headrace.spark.lake.proof import Proof, verify
    from headrace.spark.lake.reading import arrow_table, duckdb_table, polars_table, read_table
    from headrace.spark.lake.table import Table, TableError

__all__ = [
    "Archive",
    "Archived",
    "Proof",
    "Table",
    "TableError",
    "arrow_table",
    "duckdb_table",
    "polars_table",
    "read_table",
    "verify",
]

_HOMES = {
    "Archive": "archive",
    "Archived": "archive",
    "Proof": "proof",
    "Table": "table",
    "TableError": "table",
    "verify": "proof",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are used: a reader of tables does not need PySpark."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'reading')}"), name)
