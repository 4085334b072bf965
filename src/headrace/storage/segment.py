"""One segment of a log: a file of whole batches and its sparse index.

Rules:
- A segment knows where its batches begin, never what is in them.
- `size` is what the log holds; the file may be longer while a failed append is still to be cut off.
- A segment that was removed from its log may still be in the hands of a reader: that reader gets
  OFFSET_OUT_OF_RANGE, never bytes of something else.
- A sealed segment may drop its index. Then a worker finds it again, in its file or from the log, and offers it; the
  owner accepts it if the segment is still what it was. So the owner waits for no disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.errors import CorruptionError
from headrace.storage import index as index_file
from headrace.storage.checked_ranges import CheckedRanges
from headrace.storage.index import Extent, Index
from headrace.wire.batch import HEADER_BYTES, LENGTH_OVERHEAD, BatchHeader, crc_matches, headers, horizon_of

if TYPE_CHECKING:
    from headrace.core.ports import File, Files

SCAN_BYTES: Final = 1024 * 1024
GLANCE_BYTES: Final = 16 * 1024


class SegmentSummary(NamedTuple):
    """What lists and catalogs show of a segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    sealed: bool
    min_timestamp: int  # -1 if no record has one
    max_timestamp: int


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


def walk(
    file: File, position: int, end: int, *, chunk_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """(position in the file, header, buffer it was read from) of each batch from `position` on. Blocking.

    Ends before `end` at the first bytes that cannot be a whole batch. Checks no CRC.
    """
    length = chunk_bytes
    while position < end:
        data = file.read(position, min(length, end - position))
        done = 0
        for header in headers(data):
            yield position + header.position, header, data
            done = header.position + header.size
        if done:
            position += done
            length = chunk_bytes
            continue
        if len(data) < HEADER_BYTES:
            return
        size = LENGTH_OVERHEAD + int.from_bytes(data[8:12], "big", signed=True)
        if size <= len(data) or size > end - position:
            return
        length = size


class Segment:
    """See the module."""

    __slots__ = (
        "_due",
        "_offered",
        "awaited",
        "base_offset",
        "checked",
        "end_offset",
        "file",
        "files",
        "first_timestamp",
        "gapped",
        "index",
        "interval_bytes",
        "max_timestamp",
        "min_timestamp",
        "path",
        "removed",
        "replaced",
        "sealed",
        "size",
        "stored_size",
    )

    def __init__(self, files: Files, folder: str, base_offset: int, file: File, *, interval_bytes: int) -> None:
        self.files = files
        self.path = f"{folder}/{segment_name(base_offset)}"  # without the extension
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.file = file
        self.size = 0
        self.index: Index | None = Index()
        self.stored_size = -1  # of the log when the index files were written
        self.interval_bytes = interval_bytes
        self.first_timestamp = -1
        self.min_timestamp = -1
        self.max_timestamp = -1
        self.gapped = False
        self.sealed = False
        self.removed = False
        self.replaced = False  # a compacted one has taken its place; readers may finish
        self.checked = CheckedRanges()
        self._due = 0
        self.awaited = False  # somebody was sent for the index
        self._offered: tuple[Extent, Index, bool] | None = None

    def note(self, base_offset: int, next_offset: int, size: int, first_timestamp: int, max_timestamp: int) -> None:
        """A batch of `size` bytes was appended at the end."""
        position = self.size
        index = self.index
        assert index is not None, "an open segment has its index"
        if position >= self._due:
            if position == 0:
                self.first_timestamp = max_timestamp
                self.min_timestamp = first_timestamp
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
            index.offsets.append(base_offset)
            index.positions.append(position)
            index.times.append(self.max_timestamp)
            self._due = position + self.interval_bytes
        elif max_timestamp > self.max_timestamp:
            self.max_timestamp = index.times[-1] = max_timestamp
        if first_timestamp < self.min_timestamp:
            self.min_timestamp = first_timestamp
        if base_offset != self.end_offset:
            self.gapped = True
        self.end_offset = next_offset
        self.size = position + size

    def note_header(self, header: BatchHeader) -> None:
        """`note` for a batch that was found in the file."""
        next_offset = header.base_offset + header.last_offset_delta + 1
        first_timestamp = header.max_timestamp if horizon_of(header) is not None else header.base_timestamp
        self.note(header.base_offset, next_offset, header.size, first_timestamp, header.max_timestamp)

    def shrink(self, size: int, end_offset: int) -> None:
        """Only the first `size` bytes are left, and no offset from `end_offset` on. Blocking: they are read."""
        fresh = Segment(self.files, "", self.base_offset, self.file, interval_bytes=self.interval_bytes)
        for _, header, _ in walk(self.file, 0, size):
            fresh.note_header(header)
        assert fresh.size == size, "a segment is cut between batches"
        assert fresh.index is not None
        self.adopt(fresh.index, fresh.extent())
        self.checked.clear()
        self.stored_size = -1
        self.end_offset = end_offset

    def warm(self) -> Index:
        """The index, loaded or built again if it was dropped. Blocking if it was."""
        if self.index is None and not self.accept():
            self.awaited = True
            self.offer_index()
            self.accept()
        assert self.index is not None
        return self.index

    def accept(self) -> bool:
        """Take over the index that a worker has found; False if there is none."""
        offered, self._offered = self._offered, None
        if offered is None or offered[0] != self.extent():
            return False
        self.index = offered[1]
        self.awaited = False
        if not offered[2]:
            self.stored_size = -1  # its file is no good: keep it
        return True

    def offer_index(self) -> Index:
        """The index, from memory or from the disk. Blocking; for any thread."""
        index = self.index
        if index is not None:
            return index
        extent = self.extent()
        loaded = self.load_index()
        stored = loaded is not None and loaded[1] == extent
        index = loaded[0] if loaded is not None and stored else self._rebuilt()
        if self.awaited:
            self._offered = (extent, index, stored)
        return index

    def cool(self) -> None:
        """Drop the index of a sealed segment from memory, if it can be loaded again."""
        if self.sealed and self.stored_size == self.size:
            self.index = self._offered = None
            self.awaited = False

    def _rebuilt(self) -> Index:
        fresh = Segment(self.files, "", self.base_offset, self.file, interval_bytes=self.interval_bytes)
        for position, header, data in walk(self.file, 0, self.size):
            if not crc_matches(data, header):
                raise CorruptionError(f"{self.path}.log: bad checksum at position {position}")
            fresh.note_header(header)
        if fresh.size != self.size:
            raise CorruptionError(f"{self.path}.log: bytes at position {fresh.size} are no batch")
        assert fresh.index is not None
        return fresh.index

    def extent(self) -> Extent:
        return Extent(
            self.base_offset,
            self.end_offset,
            self.size,
            self.first_timestamp,
            self.min_timestamp,
            self.max_timestamp,
            self.gapped,
        )

    def load_index(self) -> tuple[Index, Extent] | None:
        """What the index files say, if they are whole. Blocking."""
        files, path = self.files, self.path
        return index_file.decode(files.load(f"{path}.index"), files.load(f"{path}.timeindex"), self.base_offset)

    def adopt(self, index: Index, extent: Extent) -> None:
        """Take over what a stored index says, as of its time."""
        self.index = index
        (
            _,
            self.end_offset,
            self.size,
            self.first_timestamp,
            self.min_timestamp,
            self.max_timestamp,
            self.gapped,
        ) = extent
        self.stored_size = self.size
        self._due = index.positions[-1] + self.interval_bytes if len(index) else 0

    def store_index(self) -> None:
        """Write the index files, unsynced: whoever reads them checks them. Blocking."""
        if self.index is None:
            return
        offsets, times = self.index.encode(self.extent())
        rewrite(self.files, f"{self.path}.index", offsets)
        rewrite(self.files, f"{self.path}.timeindex", times)
        self.stored_size = self.size

    def position_of(self, offset: int, index: Index | None = None) -> tuple[int, int]:
        """(position, base offset) of the first batch that ends at or after `offset`. Blocking.

        (size, end offset) if there is none.
        """
        if index is None:
            index = self.warm()
        if offset >= self.end_offset or not len(index):
            return self.size, self.end_offset
        block = index.block_of_offset(offset)
        for position, header, _ in walk(self.file, index.positions[block], self.size, chunk_bytes=GLANCE_BYTES):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header.base_offset
        raise CorruptionError(f"{self.path}.log: offset {offset} is not where the index has it")

    def start_of(self, offset: int, index: Index) -> int:
        """Where to read from to find `offset`. There may be batches before it that were not asked for."""
        if self.gapped:
            # The block may end before `offset`: what is wanted may begin in the next one. This reads, but little.
            return self.position_of(offset, index)[0]
        return index.positions[index.block_of_offset(offset)]

    def summary(self) -> SegmentSummary:
        return SegmentSummary(
            self.base_offset, self.end_offset, self.size, self.sealed, self.min_timestamp, self.max_timestamp
        )

    def discard(self) -> list[str]:
        """Out of the log. Returns the files that are to be removed."""
        self.removed = True
        self.file.close()
        return [f"{self.path}{extension}" for extension in (".log", ".index", ".timeindex")]


def rewrite(files: Files, path: str, content: bytes) -> None:
    """Write a file that carries its own checksum. It is not synced: a torn one counts as missing. Blocking."""
    file = files.open(path, create=True)
    try:
        if file.size:
            file.truncate(0)
        file.append([content])
    finally:
        file.close()
