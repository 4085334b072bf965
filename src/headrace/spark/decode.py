"""Record batches of a Fetch answer, turned into Arrow columns.

Rules:
- Work per record is done by numba only; Python's work is per batch.
- Only the columns that were asked for are copied.
- Control batches are skipped always, aborted transactions if the reader is `read_committed`; records outside of the
  asked range of offsets are left out. Gaps (compaction, control records) are normal.
- Nothing that a broker sends is believed: every length is held against the bytes that are there. What does not fit
  is ApiError(corrupt_message).
- A page (one Arrow batch) holds whole record batches and ends at `PAGE_BYTES` of opened records, so that memory
  follows the largest record batch and not the answer.
- Compiled code is kept on disk by numba where it finds a place to write; otherwise each process compiles once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from headrace.core.errors import ApiError, ErrorCode
from headrace.spark import kernel
from headrace.spark.kernel import (
    ATTRIBUTES,
    BASE_OFFSET,
    CHECKSUM,
    COUNT,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PAYLOAD,
    PAYLOAD_END,
    POSITION,
    PRODUCER,
    SIZE,
)
from headrace.wire.batch import headers as batch_headers
from headrace.wire.batch import records
from headrace.wire.codecs import decompress
from headrace.wire.layout import ATTRIBUTES_AT, CODEC_MASK, CONTROL, HEADER_BYTES, RECORD_BYTES_MIN, TRANSACTIONAL

PAGE_BYTES: Final = (
    1 << 20
)  # Spark takes Arrow batches of about this size fastest (10,000 rows of 100 B, 1,000 of 1 KB)
PAGE_ROWS: Final = 16_384
OPENED_BYTES: Final = 512 << 20  # of one record batch
_ABORT: Final = b"\x00\x00"  # a control record's type, after its version
_NO_BYTES: Final = np.empty(0, np.uint8)
_NO_INTS: Final = np.empty(0, np.int32)

Aborted = Sequence[tuple[int, int]]  # (producer id, first offset)


def _corrupt(reason: str) -> ApiError:
    return ApiError(ErrorCode.corrupt_message, reason)


@dataclass(frozen=True, slots=True)
class Span:
    """The records that are wanted: offsets from `start` up to but without `end`, not older than `oldest_ms`."""

    start: int
    end: int
    oldest_ms: int = -1  # batches that are older as a whole are not opened; single records are not looked at


class Decoder:
    """Opens answers of one partition into batches of `schema` (columns under their names in the source)."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema, *, check_crcs: bool = True) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._check_crcs = check_crcs
        self._wanted = frozenset(schema.names)
        self._repeated: dict[str, pa.Array] = {}

    def pages(self, data: memoryview, span: Span, aborted: Aborted = ()) -> tuple[int, Iterator[pa.RecordBatch]]:
        """The offset that follows the whole batches in `data`, and what they hold of `span`.

        The offset is `span.start` if there is no whole batch. `data` must stay as it is until the iterator ends.
        """
        source = np.frombuffer(data.toreadonly(), np.uint8)  # one type for numba, compiled once
        table = np.empty((len(source) // HEADER_BYTES + 1, kernel.COLUMNS), np.int64)
        found = kernel.walk(source, table)
        if found < 0:
            raise _corrupt("the broker sent records of a format older than v2")
        table = table[:found]
        if not found:
            return span.start, iter(())
        return int(table[-1, LAST_OFFSET]) + 1, self._pages(data, source, table, span, aborted)

    def _pages(
        self, data: memoryview, source: Any, table: Any, span: Span, aborted: Aborted
    ) -> Iterator[pa.RecordBatch]:
        runs: list[_Run] = []
        size = 0
        for run in self._runs(data, source, self._kept(data, table, span, aborted)):
            if runs and size + run.size_bytes > 2 * PAGE_BYTES:
                yield from self._page(runs, span)
                runs, size = [], 0
            runs.append(run)
            size += run.size_bytes
            if size >= PAGE_BYTES:
                yield from self._page(runs, span)
                runs, size = [], 0
        if runs:
            yield from self._page(runs, span)

    def _kept(self, data: memoryview, table: Any, span: Span, aborted: Aborted) -> Any:
        """The rows of `table` whose records are wanted."""
        keep = (table[:, ATTRIBUTES] & CONTROL) == 0
        keep &= (table[:, LAST_OFFSET] >= span.start) & (table[:, BASE_OFFSET] < span.end) & (table[:, COUNT] > 0)
        if span.oldest_ms >= 0:
            keep &= table[:, MAX_TIMESTAMP] >= span.oldest_ms
        if aborted:
            keep[list(_rolled_back(data, table, aborted))] = False
        return table[keep]

    def _runs(self, data: memoryview, source: Any, table: Any) -> Iterator[_Run]:
        """Batches in their order: neighbours that are not compressed together, others opened one by one."""
        first = 0
        size = 0
        for index, (position, batch_size, attributes, checksum) in enumerate(
            table[:, [POSITION, SIZE, ATTRIBUTES, CHECKSUM]].tolist()
        ):
            content = data[position : position + batch_size]
            if self._check_crcs and crc32c(content[ATTRIBUTES_AT:]) != checksum:
                raise _corrupt(f"the checksum of a batch of {self._topic}-{self._partition} does not match")
            codec = attributes & CODEC_MASK
            if codec == 0 and size < PAGE_BYTES:
                size += batch_size
                continue
            if index > first:
                yield _Run(source, table[first:index], size)
            first, size = index, batch_size
            if codec:
                opened = decompress(codec, content[HEADER_BYTES:], OPENED_BYTES)
                table[index, PAYLOAD] = 0
                table[index, PAYLOAD_END] = len(opened)
                yield _Run(np.frombuffer(opened, np.uint8), table[index : index + 1], len(opened))
                first, size = index + 1, 0
        if first < len(table):
            yield _Run(source, table[first:], size)

    def _page(self, runs: list[_Run], span: Span) -> Iterator[pa.RecordBatch]:
        page = _Page(self._wanted, runs)
        for run in runs:
            page.add(run, span)
        rows = page.rows
        if not rows:
            return
        columns = [
            self._repeat(name, rows) if name in ("topic", "partition") else page.column(name, self._schema.field(name))
            for name in self._schema.names
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        for start in range(0, rows, PAGE_ROWS):
            yield batch.slice(start, PAGE_ROWS) if rows > PAGE_ROWS else batch

    def _repeat(self, name: str, rows: int) -> pa.Array:
        """A column with one value, kept for the next page."""
        kept = self._repeated.get(name)
        if kept is None or len(kept) < rows:
            value = self._topic if name == "topic" else self._partition
            kept = pa.repeat(pa.scalar(value, self._schema.field(name).type), max(rows, PAGE_ROWS))
            self._repeated[name] = kept
        return kept.slice(0, rows)


def _rolled_back(data: memoryview, table: Any, aborted: Aborted) -> Iterator[int]:
    """Rows of `table` that belong to aborted transactions."""
    waiting = sorted(aborted, key=lambda item: item[1])
    open_producers: set[int] = set()
    for index, (last_offset, attributes, producer, position) in enumerate(
        table[:, [LAST_OFFSET, ATTRIBUTES, PRODUCER, POSITION]].tolist()
    ):
        while waiting and waiting[0][1] <= last_offset:
            open_producers.add(waiting.pop(0)[0])
        if producer not in open_producers:
            continue
        if attributes & CONTROL:
            if _is_abort(data, position):
                open_producers.discard(producer)
        elif attributes & TRANSACTIONAL:
            yield index


def _is_abort(data: memoryview, position: int) -> bool:
    header = next(batch_headers(data, position))
    return any((record.key or b"")[2:4] == _ABORT for record in records(data, header))


@dataclass(frozen=True, slots=True)
class _Run:
    """Batches whose records lie in one buffer."""

    source: Any  # uint8 array
    table: Any
    size_bytes: int


class _Page:
    """The columns of one Arrow batch while they are filled."""

    def __init__(self, wanted: Iterable[str], runs: list[_Run]) -> None:
        self._wanted = frozenset(wanted)
        rows = sum(_count(run) for run in runs)
        size = sum(run.size_bytes for run in runs)
        self.rows = 0
        self._offsets = np.empty(rows, np.int64)
        self._timestamps = np.empty(rows, np.int64)
        self._timestamp_types = np.empty(rows, np.int32)
        self._key = _Texts(rows, size, "key" in self._wanted)
        self._value = _Texts(rows, size, "value" in self._wanted)
        headers = "headers" in self._wanted
        entries = min(size // 2, (1 << 31) - 1) if headers else 0  # a header takes two bytes at least
        self._headers = _Texts(rows, 0, headers)  # its ends count header entries
        self._names = _Texts(entries, size, headers)
        self._contents = _Texts(entries, size, headers)
        self._state = np.zeros(kernel.STATES, np.int64)

    def add(self, run: _Run, span: Span) -> None:
        fault = kernel.fill(
            run.source,
            run.table,
            span.start,
            span.end,
            ("key" in self._wanted, "value" in self._wanted, "headers" in self._wanted),
            (self._offsets, self._timestamps, self._timestamp_types),
            (self._key.ends, self._key.valid, self._key.content),
            (self._value.ends, self._value.valid, self._value.content),
            (self._headers.ends, self._headers.valid, self._names.ends, self._names.content),
            (self._contents.ends, self._contents.valid, self._contents.content),
            self._state,
        )
        if fault:
            raise _corrupt(kernel.FAULTS[fault])
        self.rows = int(self._state[kernel.ROWS])

    def column(self, name: str, field: pa.Field) -> pa.Array:
        rows, state = self.rows, self._state
        if name == "offset":
            return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(self._offsets)])
        if name == "timestamp":
            return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(self._timestamps)])
        if name == "timestampType":
            return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(self._timestamp_types)])
        if name == "key":
            return self._key.array(field.type, rows, int(state[kernel.KEY_NULLS]))
        if name == "value":
            return self._value.array(field.type, rows, int(state[kernel.VALUE_NULLS]))
        assert name == "headers", name
        return self._header_column(field.type)

    def _header_column(self, kind: pa.ListType) -> pa.Array:
        state = self._state
        entries = int(state[kernel.ENTRIES])
        entry = kind.value_type
        names = self._names.array(entry.field(0).type, entries, 0)
        contents = self._contents.array(entry.field(1).type, entries, int(state[kernel.CONTENT_NULLS]))
        structs = pa.Array.from_buffers(entry, entries, [None], null_count=0, children=[names, contents])
        nulls = int(state[kernel.HEADER_NULLS])
        return pa.Array.from_buffers(
            kind,
            self.rows,
            [pa.py_buffer(self._headers.valid) if nulls else None, pa.py_buffer(self._headers.ends)],
            null_count=nulls,
            children=[structs],
        )


class _Texts:
    """A column of variable length: where each value ends, which are there, and their bytes one after the other."""

    __slots__ = ("content", "ends", "valid")

    def __init__(self, rows: int, size: int, wanted: bool) -> None:
        # Memory that is not written to is never really taken.
        self.ends = np.empty(rows + 1, np.int32) if wanted else _NO_INTS
        self.valid = np.empty((rows + 7) // 8, np.uint8) if wanted else _NO_BYTES
        self.content = np.empty(size, np.uint8) if wanted and size else _NO_BYTES
        if wanted:
            self.ends[0] = 0

    def array(self, kind: pa.DataType, rows: int, nulls: int) -> pa.Array:
        valid = pa.py_buffer(self.valid) if nulls else None
        return pa.Array.from_buffers(
            kind, rows, [valid, pa.py_buffer(self.ends), pa.py_buffer(self.content)], null_count=nulls
        )


def _count(run: _Run) -> int:
    """How many records a run says it has. Raises if they cannot fit."""
    counts = run.table[:, COUNT]
    sizes = run.table[:, PAYLOAD_END] - run.table[:, PAYLOAD]
    if (counts * RECORD_BYTES_MIN > sizes).any():
        raise _corrupt("a batch claims more records than it can hold")
    return int(counts.sum())
