"""Parquet files below a table, written by tasks.

Rules:
- A file has a name that nobody else uses and is not part of the table until a commit names it. Nothing is ever
  deleted here: files of failed attempts are left to `vacuum`, because a task cannot know whether it was committed.
- Rows are gathered into row groups of some size; memory is one row group per open file, and few files are open.
- Partition columns are in the path, not in the file. Statistics of plain columns go with the file into the log.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.lake.place import Place

GROUP_BYTES: Final = 32 << 20
FILE_BYTES: Final = 256 << 20
OPEN_FILES: Final = 16
NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_LETTERS: Final = 32  # of a string in the statistics; longer ones have none

Values = tuple[tuple[str, str | None], ...]  # partition columns and their values, as in a path


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file that is written, as a commit needs it. It travels as JSON."""

    path: str
    size_bytes: int
    rows: int
    partition: dict[str, str | None]
    least: dict[str, Any] = field(default_factory=dict)
    most: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)


def folder(values: Values) -> str:
    return "".join(f"{name}={NULL_VALUE if value is None else quote(value, safe=' ')}/" for name, value in values)


class PartWriter:
    """Writes batches of one schema into files, one open file per combination of partition values."""

    def __init__(self, place: Place, schema: pa.Schema, *, stem: str = "part", **parquet: Any) -> None:
        self._place = place
        self._schema = schema
        self._stem = stem
        self._parquet = {"compression": "zstd", "write_page_checksum": True, **parquet}
        self._counted = [each.name for each in schema if _is_plain(each.type)]
        self._open: dict[Values, _Part] = {}
        self._done: list[PartFile] = []

    def add(self, values: Values, batch: pa.RecordBatch) -> None:
        """Write rows that belong under `values`. The batch has the writer's schema."""
        part = self._open.pop(values, None)
        if part is None:
            while len(self._open) >= OPEN_FILES:  # the one that was longest without rows
                self._finish(next(iter(self._open)))
            part = _Part(self._place, self._name(values), self._schema, self._parquet)
        self._open[values] = part
        part.add(batch, self._counted)
        if part.written_bytes >= FILE_BYTES:
            self._finish(values)

    def close(self) -> list[PartFile]:
        """Finish all files; what was written."""
        for values in list(self._open):
            self._finish(values)
        return self._done

    def _name(self, values: Values) -> str:
        return f"{folder(values)}{self._stem}-{uuid.uuid4().hex}.parquet"

    def _finish(self, values: Values) -> None:
        part = self._open.pop(values)
        size = part.close()
        self._done.append(PartFile(part.path, size, part.rows, dict(values), part.least, part.most))


class _Part:
    """One open file."""

    def __init__(self, place: Place, path: str, schema: pa.Schema, parquet: Mapping[str, Any]) -> None:
        self.path = path
        self.rows = 0
        self.least: dict[str, Any] = {}
        self.most: dict[str, Any] = {}
        self._unbounded: set[str] = set()  # columns with a value that statistics cannot show
        self._place = place
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        full = place.path(path)
        place.files.create_dir(full.rpartition("/")[0], recursive=True)
        self._sink = place.files.open_output_stream(full)
        self._writer = pq.ParquetWriter(self._sink, schema, **parquet)

    @property
    def written_bytes(self) -> int:
        return int(self._sink.tell())

    def add(self, batch: pa.RecordBatch, counted: Iterable[str]) -> None:
        self.rows += batch.num_rows
        for name in counted:
            self._count(name, batch.column(name))
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def _count(self, name: str, column: pa.Array) -> None:
        found = pc.min_max(column)
        if name in self._unbounded or not found["min"].is_valid:
            return
        low, high = _shown(found["min"], False), _shown(found["max"], True)
        if low is None or high is None:
            # Bounds of the other rows would hide this one from readers that skip files by their statistics.
            self._unbounded.add(name)
            self.least.pop(name, None)
            self.most.pop(name, None)
            return
        self.least[name] = min(low, self.least.get(name, low))
        self.most[name] = max(high, self.most.get(name, high))

    def _flush(self) -> None:
        if self._waiting:
            rows = sum(each.num_rows for each in self._waiting)
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=rows)
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> int:
        self._flush()
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return size


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is not None)
        or pa.types.is_string(kind)
    )


def _shown(scalar: pa.Scalar, upper: bool) -> Any:
    """A value as Delta writes it in statistics, or None if it has no such form.

    Times are rounded away from the middle, to whole milliseconds. A producer may set one that no calendar has.
    """
    try:
        value = scalar.as_py()
        if isinstance(value, datetime.datetime):
            rest = value.microsecond % 1000
            value += datetime.timedelta(microseconds=(1000 - rest if upper and rest else -rest))
            return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    except (OverflowError, ValueError):
        return None
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str) and len(value) > _LETTERS:
        return None
    return value
