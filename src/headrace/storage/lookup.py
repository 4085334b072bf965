"""Find the first record at or after a time.

Rules:
- The time index says in which block the batch must be; only the batches from there on are read and checked, and only
  those that can hold the record are opened.
- A lookup is made by the log's owner and may be run by a worker thread: it changes nothing of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import ApiError, CorruptionError, ErrorCode, StorageError
from headrace.storage.segment import GLANCE_BYTES, Segment, walk
from headrace.wire import batch


class Found(NamedTuple):
    """A record's place."""

    timestamp: int
    offset: int
    leader_epoch: int


class TimeLookup:
    """See the module."""

    __slots__ = ("_places", "_start_offset", "_timestamp")

    def __init__(self, timestamp: int, start_offset: int, places: list[tuple[Segment, int, int]]) -> None:
        self._timestamp = timestamp
        self._start_offset = start_offset
        self._places = places  # segment, position to begin at (-1: the index knows), size of the segment

    def run(self) -> Found | None:
        """The first record at or after the time; None if there is none. Blocking."""
        for segment, position, size in self._places:
            try:
                if position < 0:
                    index = segment.offer_index()
                    position = index.positions[index.block_of_time(self._timestamp)]
                found = self._search(segment, position, size)
            except StorageError as error:
                if segment.removed or size > segment.size:
                    raise ApiError(ErrorCode.offset_out_of_range, "the records were removed meanwhile") from error
                raise
            if found is not None:
                return found
        return None

    def _search(self, segment: Segment, position: int, size: int) -> Found | None:
        for _, header, data in walk(segment.file, position, size, chunk_bytes=GLANCE_BYTES):
            if not batch.crc_matches(data, header):  # else a wrong time could hide what is looked for
                raise CorruptionError(f"{segment.path}.log: bad checksum at offset {header.base_offset}")
            last_offset = header.base_offset + header.last_offset_delta
            if header.max_timestamp < self._timestamp or last_offset < self._start_offset or not header.count:
                continue
            if batch.uses_append_time(header):
                return Found(header.max_timestamp, max(header.base_offset, self._start_offset), header.leader_epoch)
            try:
                for record in batch.records(data, header):
                    if record.timestamp >= self._timestamp and record.offset >= self._start_offset:
                        return Found(record.timestamp, record.offset, header.leader_epoch)
            except ApiError as error:
                # The producer's bytes were never opened before; they are not ours to judge.
                if error.code is not ErrorCode.corrupt_message:
                    raise
                return Found(header.max_timestamp, max(header.base_offset, self._start_offset), header.leader_epoch)
        return None


class LatestTimeLookup:
    """The first record that has the largest timestamp of all."""

    __slots__ = ("_guess", "_segments", "_start_offset")

    def __init__(self, start_offset: int, segments: list[tuple[Segment, int]], guess: TimeLookup) -> None:
        self._start_offset = start_offset
        self._segments = segments  # with their sizes
        self._guess = guess

    def run(self) -> Found | None:
        """None if no record has a timestamp. Blocking."""
        found = self._guess.run()
        if found is not None:
            return found
        # The record with the largest timestamp lies below the start offset. Rare enough to read all headers.
        latest = -1
        places = []
        for segment, size in self._segments:
            places.append((segment, 0, size))
            for _, header, _ in walk(segment.file, 0, size):
                if header.base_offset + header.last_offset_delta >= self._start_offset:
                    latest = max(latest, header.max_timestamp)
        return TimeLookup(latest, self._start_offset, places).run() if latest >= 0 else None
