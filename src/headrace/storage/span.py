"""A run of whole batches that is ready to be read.

Rules:
- A span is made by the log's owner and may be read by a worker thread: it changes nothing of the log.
- What was not written or checked by this process, and what comes from a disk that had to be waited for, is checked
  batch by batch: CRC, offsets, leader epoch. What this process wrote and finds in memory is not checked again.
- A span whose segment was removed or cut meanwhile answers OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import ApiError, CorruptionError, ErrorCode, StorageError
from headrace.storage.segment import Segment
from headrace.wire.batch import crc_matches, headers

if TYPE_CHECKING:
    from headrace.storage.epochs import Epochs


class Span:
    """See the module. `next_offset` follows its last record."""

    __slots__ = ("_epochs", "_length", "_position", "_segment", "_wanted", "next_offset")

    def __init__(
        self, segment: Segment, position: int, length: int, wanted: int, next_offset: int, epochs: Epochs
    ) -> None:
        self._segment = segment
        self._position = position
        self._length = length
        self._wanted = wanted  # skip batches that end before this offset; -1 if the first one is right
        self._epochs = epochs
        self.next_offset = next_offset

    @property
    def size_bytes(self) -> int:
        """At most so many bytes will be read."""
        return self._length

    @property
    def limit_offset(self) -> int:
        """Nothing from here on will be read."""
        return self.next_offset

    def read_now(self) -> bytes | None:
        """The batches, or None if a disk would have to be waited for."""
        try:
            data = self._segment.file.read_now(self._position, self._length)
        except StorageError as error:
            raise self._reason(error) from error
        if data is None:
            return None
        if len(data) != self._length:
            raise self._reason(CorruptionError(f"{self._segment.path}.log is shorter than the log"))
        if self._position < self._segment.unseen_bytes:
            self._check(data)
        return data if self._wanted < 0 else self._trim(data)

    def read(self) -> bytes:
        """Blocking; for a worker thread."""
        try:
            data = self._segment.file.read(self._position, self._length)
        except StorageError as error:
            raise self._reason(error) from error
        if len(data) != self._length:
            raise self._reason(CorruptionError(f"{self._segment.path}.log is shorter than the log"))
        self._check(data)
        return data if self._wanted < 0 else self._trim(data)

    def _check(self, data: bytes) -> None:
        """Every batch must be whole, undamaged, and where it belongs."""
        epochs = self._epochs
        gapped = self._segment.gapped
        expected = None
        end = 0
        for header in headers(data):
            base_offset = header.base_offset
            if expected is not None and (base_offset < expected or (base_offset > expected and not gapped)):
                raise self._reason(self._corruption(header.position))
            epoch = epochs.epoch_at(base_offset)
            if not crc_matches(data, header) or (header.leader_epoch != epoch and epoch >= 0):
                raise self._reason(self._corruption(header.position))
            expected = base_offset + header.last_offset_delta + 1
            end = header.position + header.size
        if end != len(data) or (expected != self.next_offset and not gapped):
            raise self._reason(self._corruption(end))

    def _trim(self, data: bytes) -> bytes:
        """Drop batches that end before the wanted offset."""
        end = 0
        for header in headers(data):
            if header.base_offset + header.last_offset_delta >= self._wanted:
                return data[header.position :] if header.position else data
            end = header.position + header.size
        raise self._reason(self._corruption(end))

    def _corruption(self, position: int) -> CorruptionError:
        return CorruptionError(f"{self._segment.path}.log: damaged batch at position {self._position + position}")

    def _reason(self, error: StorageError) -> Exception:
        """What really happened, if the log was cut under the reader."""
        segment = self._segment
        if segment.removed or self._position + self._length > segment.size:
            return ApiError(ErrorCode.offset_out_of_range, "the records were removed while they were read")
        return error


class ColdSpan(Span):
    """A span in a sealed segment whose index is not in memory: it finds its place when it is read.

    Until then `size_bytes` is a guess, and `next_offset` is where it begins.
    """

    __slots__ = ("_limit_offset", "_max_bytes", "_offset")

    def __init__(self, segment: Segment, offset: int, max_bytes: int, limit_offset: int, epochs: Epochs) -> None:
        super().__init__(segment, 0, min(max_bytes, segment.size), -1, offset, epochs)
        self._offset = offset
        self._max_bytes = max_bytes
        self._limit_offset = limit_offset

    @property
    def limit_offset(self) -> int:
        return min(self._limit_offset, self._segment.end_offset)

    def read_now(self) -> bytes | None:
        return None

    def read(self) -> bytes:
        segment, offset, limit_offset = self._segment, self._offset, self._limit_offset
        try:
            index = segment.offer_index()
            start, self._wanted = segment.start_of(offset, index)
            end, next_offset = segment.size, segment.end_offset
            if limit_offset < next_offset:
                end, boundary = segment.position_of(limit_offset, index)
                next_offset = min(boundary, limit_offset)
        except StorageError as error:
            raise self._reason(error) from error
        if offset >= next_offset or end <= start:
            return b""
        if end - start > self._max_bytes:
            end, next_offset = index.last_boundary(start, self._max_bytes, end, next_offset)
        self._position, self._length, self.next_offset = start, end - start, next_offset
        return super().read()
