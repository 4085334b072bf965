"""A run of whole batches that is ready to be read.

Rules:
- A span is made by the log's owner and may be read by a worker thread: it changes nothing of the log.
- Every batch is checked when it is read, whoever wrote it: CRC, offsets, leader epoch. What is in the page cache may be
  what we wrote, or what the disk made of it: pages are dropped and read back unseen, by the kernel's readahead or for
  another process.
- To check is dear where many read the same (docs/performance.md). So what a read from the page cache found whole is
  believed, by reads from the page cache, for some seconds: until the log's owner calls `Log.doubt`, or a read misses a
  page of the segment, which shows that pages were dropped. What a disk was waited for is checked always.
- What is whole before the first damaged batch is returned, and `damage` says what follows. If nothing is, the damage is
  raised. Batches before the wanted offset are not returned and need not be whole.
- One thing no checksum covers: in a compacted segment, where offsets are missing, a base offset that is wrong and
  still lies between its neighbours is not noticed.
- A span whose segment was removed or cut meanwhile answers OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from headrace.core.errors import ApiError, CorruptionError, ErrorCode, StorageError
from headrace.storage.segment import Segment
from headrace.wire.batch import ATTRIBUTES_AT, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, PREFIX

if TYPE_CHECKING:
    from headrace.storage.epochs import Epochs

_unpack = PREFIX.unpack_from


class _Sound(NamedTuple):
    """What is whole and wanted of some bytes."""

    start: int  # -1 if nothing is
    end: int  # where the damage begins, if not at the end of the bytes
    next_offset: int


class Span:
    """Batches from the one that holds `offset` on. `next_offset` follows the last record of those that were read."""

    __slots__ = ("_end_offset", "_epochs", "_length", "_offset", "_position", "_segment", "damage", "next_offset")

    def __init__(
        self, segment: Segment, position: int, length: int, offset: int, end_offset: int, epochs: Epochs
    ) -> None:
        """The batch that holds `offset` lies at `position` or behind; `end_offset` follows the last one."""
        self._segment = segment
        self._position = position
        self._length = length
        self._offset = offset
        self._end_offset = end_offset
        self._epochs = epochs
        self.next_offset = end_offset
        self.damage: CorruptionError | None = None

    @property
    def size_bytes(self) -> int:
        """At most so many bytes will be read."""
        return self._length

    @property
    def limit_offset(self) -> int:
        """Nothing from here on will be read."""
        return self._end_offset

    def read_now(self) -> bytes | bytearray | None:
        """The batches, or None if a disk would have to be waited for. Raises StorageError, ApiError."""
        try:
            data = self._segment.file.read_now(self._position, self._length)
        except StorageError as error:
            raise self._reason(error) from error
        segment, position = self._segment, self._position
        if data is None:
            segment.checked.clear()
            return None
        start, end = self._start(data) if segment.checked else -1, self._length
        if start < 0 or not segment.checked.covers(position + start, position + end):
            start, end = self._checked(data)
            segment.checked.add(position + start, position + end)
        return data if end - start == len(data) else data[start:end]

    def read(self) -> bytes:
        """Blocking; for a worker thread. Raises StorageError, ApiError."""
        try:
            data = self._segment.file.read(self._position, self._length)
        except StorageError as error:
            raise self._reason(error) from error
        start, end = self._checked(data)
        return data if end - start == len(data) else data[start:end]

    def verify(self) -> None:
        """Read again, and raise CorruptionError if something is damaged. Blocking; for a worker thread."""
        self.read()
        if self.damage is not None:
            raise self.damage

    def _start(self, data: bytes | bytearray) -> int:
        """Where the wanted batch begins; -1 if it is not found easily. Checks nothing but offsets."""
        position, wanted = 0, self._offset
        while 0 <= position <= len(data) - HEADER_BYTES:
            base_offset, size, _, _, _, _, last_delta = _unpack(data, position)
            if base_offset + last_delta >= wanted:
                return position if base_offset <= wanted or (self._segment.gapped and not position) else -1
            position += size + LENGTH_OVERHEAD
        return -1

    def _checked(self, data: bytes | bytearray) -> tuple[int, int]:
        """From where to where the bytes that were read are whole and wanted."""
        start, end, next_offset = self._examine(data)
        self.damage, self.next_offset = None, next_offset
        if end == self._length and start >= 0 and (next_offset == self._end_offset or self._segment.gapped):
            self.next_offset = self._end_offset
            return start, end
        place = f"at offset {next_offset}, position {self._position + end}"
        damage = CorruptionError(f"{self._segment.path}.log: damaged batch {place}")
        reason = self._reason(damage)
        if reason is not damage or start < 0 or end == self._length:
            raise reason
        self.damage = damage
        return start, end

    def _examine(self, data: bytes | bytearray) -> _Sound:
        segment, epochs, wanted = self._segment, self._epochs, self._offset
        gapped, length = segment.gapped, len(data)
        position = 0
        start = end_before = epoch = epoch_end = -1
        expected, offset_before = wanted, wanted
        with memoryview(data) as view:
            while length - position >= HEADER_BYTES:
                base_offset, size, leader_epoch, magic, crc, _, last_delta = _unpack(data, position)
                following = position + size + LENGTH_OVERHEAD
                next_offset = base_offset + last_delta + 1
                if magic != MAGIC or size < HEADER_BYTES - LENGTH_OVERHEAD or following > length:
                    break
                if start < 0 and next_offset <= wanted:
                    position = following
                    continue
                if base_offset != expected and (start >= 0 or base_offset > expected):
                    if start >= 0 and (base_offset < expected if gapped else end_before == start):
                        # Which of the two has the wrong offset, this batch or the one before? Neither is served.
                        position, expected = end_before, offset_before
                        break
                    if not gapped:
                        break
                if base_offset >= epoch_end:
                    epoch, epoch_end = epochs.epoch_from(base_offset)
                if crc32c(view[position + ATTRIBUTES_AT : following]) != crc or (leader_epoch != epoch and epoch >= 0):
                    break
                if start < 0:
                    start = position
                end_before, position = position, following
                offset_before, expected = expected, next_offset
        return _Sound(start if position > start else -1, position, expected)

    def _reason(self, error: StorageError) -> Exception:
        """What really happened, if the log was cut under the reader."""
        segment = self._segment
        if segment.removed or self._position + self._length > segment.size:
            return ApiError(ErrorCode.offset_out_of_range, "the records were removed while they were read")
        return error


class ColdSpan(Span):
    """A span whose place is not known without reading: it finds it when it is read.

    Until then `size_bytes` is a guess, and `next_offset` is where it begins.
    """

    __slots__ = ("_end", "_limit_offset", "_max_bytes")

    def __init__(self, segment: Segment, offset: int, max_bytes: int, limit_offset: int, epochs: Epochs) -> None:
        super().__init__(segment, 0, min(max_bytes, segment.size), offset, offset, epochs)
        self._end = segment.size, segment.end_offset  # of a segment that may grow while a worker reads
        self._max_bytes = max_bytes
        self._limit_offset = limit_offset

    @property
    def limit_offset(self) -> int:
        return min(self._limit_offset, self._end[1])

    def read_now(self) -> bytes | bytearray | None:
        return None

    def read(self) -> bytes:
        segment, offset, limit_offset = self._segment, self._offset, self._limit_offset
        self.damage = None
        try:
            index = segment.offer_index()
            start = segment.start_of(offset, index)
            end, next_offset = self._end
            if limit_offset < next_offset:
                end, boundary = segment.position_of(limit_offset, index)
                next_offset = min(boundary, limit_offset)
        except StorageError as error:
            raise self._reason(error) from error
        if offset >= next_offset or end <= start:
            return b""
        if end - start > self._max_bytes:
            end, next_offset = index.last_boundary(start, self._max_bytes, end, next_offset)
        self._position, self._length = start, end - start
        self._end_offset = self.next_offset = next_offset
        return super().read()
