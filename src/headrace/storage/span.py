"""A run of whole batches that is ready to be read.

Rules:
- A span is made by the log's owner and may be read by a worker thread: it changes nothing of the log.
- What comes from a disk that had to be waited for (`read`) is checked, batch by batch. What comes from memory
  (`read_now`) was checked when it was written, and is not checked again.
- A span whose segment was removed or cut meanwhile answers OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

from headrace.core.errors import ApiError, CorruptionError, ErrorCode, StorageError
from headrace.storage.segment import Segment
from headrace.wire.batch import crc_matches, headers


class Span:
    """See the module. `next_offset` follows its last record."""

    __slots__ = ("_length", "_position", "_segment", "_wanted", "next_offset")

    def __init__(self, segment: Segment, position: int, length: int, wanted: int, next_offset: int) -> None:
        self._segment = segment
        self._position = position
        self._length = length
        self._wanted = wanted  # skip batches that end before this offset; -1 if the first one is right
        self.next_offset = next_offset

    @property
    def size_bytes(self) -> int:
        """At most so many bytes will be read."""
        return self._length

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
        return data if self._wanted < 0 else self._trim(data)

    def read(self) -> bytes:
        """Blocking; for a worker thread. Checks every batch."""
        try:
            data = self._segment.file.read(self._position, self._length)
        except StorageError as error:
            raise self._reason(error) from error
        if len(data) != self._length:
            raise self._reason(CorruptionError(f"{self._segment.path}.log is shorter than the log"))
        end = 0
        for header in headers(data):
            if not crc_matches(data, header):
                raise self._reason(self._corruption(header.position))
            end = header.position + header.size
        if end != len(data):
            raise self._reason(self._corruption(end))
        return data if self._wanted < 0 else self._trim(data)

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
