"""Is it a torn write, or were durable bytes damaged?

Recovery asks this about the first bytes above the recovery point that are not a valid batch. Bytes there may never have
been synced, so they may be cut; or they were synced and acknowledged a moment before the checkpoint, and must not be.

What a torn write leaves: a file that ends early, zeros where pages were never written, garbage up to the end. In
particular:
- Whoever syncs, syncs everything before it. So valid batches *behind* the bad bytes mean that these were once
  written too. Unless pages were written out of order: then the bad bytes have a hole of zeros.
- No torn write differs from the right bytes in just one bit, unless only zeros follow and that bit is the last that
  should not be zero. Such zeros begin where a sector does, or go on behind the batch. A CRC tells so: each one-bit
  error has its own syndrome, whatever the rest of the bytes is.

Therefore: damage, if one flipped bit explains the bad bytes, or if valid batches follow and there is no hole. All else
is a torn write. Where a guess is wrong, it is wrong on the safe side: the partition goes offline, nothing is cut.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from headrace.wire.batch import HEADER_BYTES, LENGTH_OVERHEAD

_PREFIX: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, CRC
_MAGIC: Final = 2
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_SECTOR_BYTES: Final = 512  # what a disk writes whole
_HOLE_BYTES: Final = 256  # a sector is larger; its first and last bytes may happen to be right
_POLYNOMIAL: Final = 0x82F63B78
_OFFSETS_AHEAD: Final = 2**31
_SYNDROME_BYTES: Final = 4 * 1024 * 1024  # beyond this, looking for one wrong bit takes too long


def is_damage(tail: bytes, expected_offset: int, position: int) -> bool:
    """Whether `tail`, which should begin with the batch at `expected_offset` and does not, was once durable.

    `position` is where it begins in its file.
    """
    if one_bit_explains(tail, expected_offset, position):
        return True
    survivor = _survivor(tail, expected_offset)
    return survivor >= 0 and not _has_hole(tail[:survivor], expected_offset, position)


def one_bit_explains(tail: bytes, expected_offset: int, position: int) -> bool:
    """Whether `tail` begins with the right batch but for one bit."""
    if len(tail) < HEADER_BYTES:
        return False
    base_offset, length, _, magic, crc = _PREFIX.unpack_from(tail)
    right_offset = base_offset == expected_offset
    right_magic = magic == _MAGIC
    size = LENGTH_OVERHEAD + length
    if HEADER_BYTES <= size <= len(tail):
        syndrome = crc32c(tail[_PREFIX.size : size]) ^ crc
        if not right_offset or not right_magic:
            wrong_bits = (base_offset ^ expected_offset).bit_count() + (magic ^ _MAGIC).bit_count()
            return bool(syndrome == 0 and wrong_bits == 1)
        if syndrome == 0:
            return True  # only the leader epoch is left to be wrong
        wrong_byte = _wrong_byte(syndrome, size)
        if wrong_byte >= 0:
            never_written = (position + wrong_byte) % _SECTOR_BYTES == 0 or len(tail) > size
            return any(tail[wrong_byte:]) or not never_written
    if not (right_offset and right_magic):
        return False
    sizes = (LENGTH_OVERHEAD + (length & 0xFFFFFFFF ^ 1 << bit) for bit in range(32))
    return any(HEADER_BYTES <= size <= len(tail) and crc32c(tail[_PREFIX.size : size]) == crc for size in sizes)


def _wrong_byte(syndrome: int, size: int) -> int:
    """Where a batch of `size` bytes must have one wrong bit to make this difference of CRCs; -1 if one cannot."""
    if syndrome.bit_count() == 1:
        return _CRC_AT
    # Run the register backwards: the state that a flipped bit left behind has but that bit set.
    for bits in range(min(size - _PREFIX.size, _SYNDROME_BYTES) * 8):
        if syndrome & 0x80000000:
            syndrome = ((syndrome ^ _POLYNOMIAL) << 1) | 1
        else:
            syndrome <<= 1
        if syndrome == 1:
            return size - 1 - bits // 8
    return -1


def _survivor(tail: bytes, expected_offset: int) -> int:
    """Where the next valid batch begins behind the first byte; -1 if nowhere."""
    magic_at = tail.find(_MAGIC, _MAGIC_AT + 1)
    while magic_at >= 0:
        start = magic_at - _MAGIC_AT
        if start + HEADER_BYTES > len(tail):
            return -1
        base_offset, length, _, _, crc = _PREFIX.unpack_from(tail, start)
        size = LENGTH_OVERHEAD + length
        if (
            HEADER_BYTES <= size <= len(tail) - start
            and 0 <= base_offset - expected_offset < _OFFSETS_AHEAD
            and crc32c(tail[start + _PREFIX.size : start + size]) == crc
        ):
            return start
        magic_at = tail.find(_MAGIC, magic_at + 1)
    return -1


def _has_hole(region: bytes, expected_offset: int, position: int) -> bool:
    """Whether part of the region was never written."""
    # What is left of the sector in which it begins; the batches before it were durable there.
    first = min(_SECTOR_BYTES - position % _SECTOR_BYTES, _MAGIC_AT + 1)
    if not any(region[:first]) and (first >= LENGTH_OVERHEAD or (first >= 8 and expected_offset > 0)):
        return True  # an offset or a length should be there
    return bytes(_HOLE_BYTES) in region
