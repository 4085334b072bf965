"""The columns of the source: those of Spark's own Kafka connector, in its order and with its types.

Rules:
- A user's `.schema(...)` or the option `columns` may leave columns out and order them; it cannot invent or retype any.
- Arrow types are exactly those that Spark derives from the schema; it refuses any others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
HEADERS: Final = "headers"


def ddl(columns: tuple[str, ...], *, include_headers: bool) -> str:
    """The schema as Spark's DDL: the named columns, or all of them (headers only if asked for)."""
    names = columns or tuple(name for name in COLUMNS if include_headers or name != HEADERS)
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in names)


def check(schema: StructType, columns: tuple[str, ...] = ()) -> None:
    """Raises ConfigError if the source cannot give what the schema asks for."""
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise ConfigError(f"the schema asks for column {field.name!r}; there are {', '.join(COLUMNS)}")
        if field.dataType.simpleString() != kind:
            raise ConfigError(f"column {field.name!r} is {kind}, not {field.dataType.simpleString()}")
    names = schema.fieldNames()
    if len(set(names)) != len(names):
        raise ConfigError(f"the schema asks for a column twice: {', '.join(names)}")
    if columns and set(names) != set(columns):
        raise ConfigError(
            f"option 'columns' ({', '.join(columns)}) and the schema ({', '.join(names)}) contradict each other"
        )


def to_arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
