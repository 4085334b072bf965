"""Rows as the sink takes them: which columns there are, and batches of Arrow as records for a producer.

Rules:
- `value` is needed; `key`, `headers`, `topic`, `partition` are used if they are there; other columns are left out, as
  Spark's own connector does. Names are case-insensitive. Text becomes its UTF-8 bytes.
- A null value is a tombstone; a null partition is chosen by key; a null topic without the option `topic` is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ANY_PARTITION: Final = -1
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
}
_SUM: Final = (1 << 64) - 1

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[str, int, bytes | None, bytes | None, Headers | None]  # topic, partition, key, value, headers


class Columns(NamedTuple):
    """The numbers of the columns; -1 for one that is not there."""

    value: int
    key: int = -1
    topic: int = -1
    partition: int = -1
    headers: int = -1

    @classmethod
    def of(cls, schema: StructType, topic: str) -> Columns:
        """Raises ConfigError if rows of this schema cannot be written."""
        places: dict[str, int] = {}
        for index, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _TYPES:
                continue
            if name in places:
                raise ConfigError(f"there are two columns {name!r}")
            kind = field.dataType.simpleString()
            if kind not in _TYPES[name]:
                raise ConfigError(f"column {field.name!r} must be {' or '.join(_TYPES[name])}, not {kind}")
            places[name] = index
        if "value" not in places:
            raise ConfigError(f"a column 'value' is needed; there are {', '.join(schema.fieldNames()) or 'none'}")
        if not topic and "topic" not in places:
            raise ConfigError("where to write? Give the option 'topic' or a column 'topic'")
        if topic:
            places.pop("topic", None)
        return cls(**places)

    def narrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Only the columns that are written, under their names and in the order of this tuple."""
        import pyarrow as pa

        names = [name for name in self._fields if getattr(self, name) >= 0]
        columns = [_plain(batch.column(getattr(self, name))) for name in names]
        return pa.record_batch(columns, names=names)


def _plain(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_large_string(column.type) or pa.types.is_string(column.type):
        return column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    return column


def records(batch: pa.RecordBatch, topic: str) -> Iterator[Record]:
    """What `narrow` gave, row by row. Raises ConfigError for a row that has no topic."""
    names = batch.schema.names

    def column(name: str) -> list[Any] | None:
        return batch.column(name).to_pylist() if name in names else None

    topics = column("topic")
    if topics is not None and None in topics:
        raise ConfigError("a row has a null topic; give the option 'topic' or fill the column")
    partitions = column("partition")
    keys = column("key")
    headers = column("headers")
    yield from zip(
        repeat(topic) if topics is None else (name.decode() for name in topics),
        repeat(ANY_PARTITION) if partitions is None else [ANY_PARTITION if one is None else one for one in partitions],
        repeat(None) if keys is None else keys,
        batch.column("value").to_pylist(),
        repeat(None) if headers is None else map(_headers, headers),
        strict=False,
    )


def _headers(row: list[dict[str, Any] | None] | None) -> Headers | None:
    if not row:
        return None
    found: Headers = []
    for entry in row:
        if entry is None or entry["key"] is None:
            raise ConfigError("a header has no key")
        found.append((entry["key"], entry["value"]))
    return found


class Digest:
    """Tells whether two sequences have the same records, in whatever order."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, record: Record) -> None:
        topic, partition, key, value, headers = record
        seed = zlib.crc32(topic.encode(), partition & 0xFFFFFFFF)
        if headers:
            seed = zlib.crc32(repr(headers).encode(), seed)
        low = zlib.crc32(value, seed) if value is not None else seed ^ 0x5A5A5A5A
        high = zlib.crc32(key, low) if key is not None else low ^ 0x3C3C3C3C
        self.rows += 1
        # Multiplied, for a plain sum of checksums would not see bits that move from one record to another.
        self._sum = (self._sum + ((high << 32 | low) * 0x9E3779B97F4A7C15)) & _SUM

    def __str__(self) -> str:
        return f"{self.rows}:{self._sum:016x}"
