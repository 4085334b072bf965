"""A segment's sparse index: which batch begins where, and how far time had come by then.

Rules:
- Entries lie at batch boundaries, in order. `times[i]` is the largest timestamp from the segment's first batch up to
  the end of block `i` (the bytes from entry `i` to entry `i + 1`), so both offsets and times can be bisected.
- A position is never computed from an offset: offsets may have gaps.
- An index file is a cache. It carries a checksum, it need not be synced, and one that is missing or bad is built again
  from the log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

_OFFSETS: Final = struct.Struct("<4sHHqqqqqqI")
_TIMES: Final = struct.Struct("<4sHHqqI")
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 1
_GAPPED: Final = 1


class Extent(NamedTuple):
    """What a segment holds, as far as an index of it reaches."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp: int  # largest timestamp of the first batch; -1 if there is none
    min_timestamp: int
    max_timestamp: int
    gapped: bool  # some offsets between base and end are missing


class Index:
    """See the module."""

    __slots__ = ("offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("I")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def block_of_offset(self, offset: int) -> int:
        """The number of the block in which `offset` lies, if it lies anywhere."""
        return max(0, bisect_right(self.offsets, offset) - 1)

    def block_of_time(self, timestamp: int) -> int:
        """The number of the first block with a batch at or after `timestamp`; `len(self)` if there is none."""
        return bisect_left(self.times, timestamp)

    def last_boundary(self, start: int, max_bytes: int, end: int, end_offset: int) -> tuple[int, int]:
        """(position, offset) of the last batch boundary known at or before `start + max_bytes`, or else the next one.

        `end` and `end_offset` are the boundary that is not to be passed.
        """
        positions = self.positions
        entry = bisect_right(positions, start + max_bytes) - 1
        if positions[entry] <= start:
            entry += 1  # at least one batch, however large
        if entry < len(positions) and positions[entry] < end:
            return positions[entry], self.offsets[entry]
        return end, end_offset

    def encode(self, extent: Extent) -> tuple[bytes, bytes]:
        """The content of the offset index file and of the time index file."""
        flags = _GAPPED if extent.gapped else 0
        count = len(self.offsets)
        offsets = (
            _OFFSETS.pack(b"HRIX", _VERSION, flags, *extent[:6], count)
            + _little(self.offsets)
            + _little(self.positions)
        )
        times = _TIMES.pack(b"HRTX", _VERSION, 0, extent.base_offset, extent.size_bytes, count) + _little(self.times)
        return offsets + _CRC.pack(crc32c(offsets)), times + _CRC.pack(crc32c(times))


def decode(offsets_file: bytes | None, times_file: bytes | None, base_offset: int) -> tuple[Index, Extent] | None:
    """Both files, if they are whole, belong together and belong to the segment at `base_offset`."""
    offsets = _checked(offsets_file, _OFFSETS.size)
    times = _checked(times_file, _TIMES.size)
    if offsets is None or times is None:
        return None
    magic, version, flags, *_ = header = _OFFSETS.unpack_from(offsets)
    count = header[-1]
    times_magic, times_version, _, times_base, times_bytes, times_count = _TIMES.unpack_from(times)
    extent = Extent._make((*header[3:9], bool(flags & _GAPPED)))
    if (magic, version, extent.base_offset) != (b"HRIX", _VERSION, base_offset):
        return None
    if (times_magic, times_version, times_base) != (b"HRTX", _VERSION, base_offset):
        return None
    if times_bytes != extent.size_bytes or times_count != count:
        return None
    if len(offsets) != _OFFSETS.size + 12 * count or len(times) != _TIMES.size + 8 * count:
        return None
    index = Index()
    split = _OFFSETS.size + 8 * count
    _fill(index.offsets, offsets[_OFFSETS.size : split])
    _fill(index.positions, offsets[split:])
    _fill(index.times, times[_TIMES.size :])
    return index, extent


def _checked(content: bytes | None, least: int) -> bytes | None:
    if content is None or len(content) < least + _CRC.size:
        return None
    body = content[: -_CRC.size]
    return body if _CRC.unpack_from(content, len(body))[0] == crc32c(body) else None


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _fill(numbers: array[int], content: bytes) -> None:
    numbers.frombytes(content)
    if sys.byteorder == "big":
        numbers.byteswap()
