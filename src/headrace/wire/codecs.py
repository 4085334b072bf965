"""Compression of record batches, with a bound on what comes out.

Rules:
- Output never grows beyond `max_bytes`, and memory stays within a small multiple of it: a compression bomb is an
  ApiError, never an allocation.
- Whatever a codec does not like is ApiError(corrupt_message).
- What we compress, the Java client can read: snappy in xerial framing, lz4 frames with independent blocks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.layout import GZIP, LZ4, NONE, SNAPPY, ZSTD

ZSTD_LEVEL: Final = 3
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LENGTH: Final = struct.Struct(">i")
_SNAPPY_EXPANSION: Final = 64  # more than any snappy element can expand (64 bytes out of 3)
_GZIP_MEMBERS: Final = 16  # producers write one; each further one costs a copy of what follows
_FIRST_GUESS_BYTES: Final = 64 * 1024
_GROWTH: Final = 8
_UNTOUCHED: Final = bytes.fromhex("8f1ad5c3e7904b26b05d7a13f86e2c49")  # arbitrary; marks the end of a buffer


def _corrupt(reason: object) -> ApiError:
    return ApiError(ErrorCode.corrupt_message, f"compressed records cannot be opened: {reason}")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(ErrorCode.corrupt_message, f"compressed records open to more than {max_bytes} bytes")


def decompress(codec: int, data: bytes | memoryview, max_bytes: int) -> bytes:
    """The opened bytes, at most `max_bytes` of them; otherwise ApiError(corrupt_message)."""
    if codec == NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return bytes(data)
    if codec == GZIP:
        return _gunzip(data, max_bytes)
    if codec == SNAPPY:
        return _unsnappy(data, max_bytes)
    if codec == LZ4:
        return _open_within(cramjam.lz4.decompress_into, data, max_bytes)
    if codec == ZSTD:
        return _open_within(cramjam.zstd.decompress_into, data, max_bytes)
    raise ApiError(ErrorCode.unsupported_compression_type, f"codec {codec} is not known")


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """Without `level`: the one that the codec's own clients use."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return zlib.compress(data, -1 if level is None else level, wbits=31)
    if codec == SNAPPY:
        return _xerial(data)
    if codec == LZ4:
        frame = cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
        frame.compress(data)
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, ZSTD_LEVEL if level is None else level))
    raise ApiError(ErrorCode.unsupported_compression_type, f"codec {codec} is not known")


def _gunzip(data: bytes | memoryview, max_bytes: int) -> bytes:
    # zlib, not cramjam: it stops at a given output length by itself.
    parts: list[bytes] = []
    left = max_bytes
    rest: bytes | memoryview = data
    for _ in range(_GZIP_MEMBERS):
        member = zlib.decompressobj(31)
        try:
            part = member.decompress(rest, left + 1)
        except zlib.error as error:
            raise _corrupt(error) from None
        if len(part) > left:
            raise _too_large(max_bytes)
        if not member.eof:
            raise _corrupt("gzip: it ends too early")
        parts.append(part)
        left -= len(part)
        rest = member.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _corrupt("gzip: too many members")


def _unsnappy(data: bytes | memoryview, max_bytes: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(data, max_bytes, max_bytes)
    parts: list[bytes] = []
    left = max_bytes
    position = len(_XERIAL_HEADER)
    end = len(data)
    while position < end:
        if end - position < _LENGTH.size:
            raise _corrupt("snappy: a block's length is cut off")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if not 0 < length <= end - position:
            raise _corrupt("snappy: a block's length is wrong")
        part = _unsnappy_block(data[position : position + length], left, max_bytes)
        parts.append(part)
        left -= len(part)
        position += length
    return b"".join(parts)


def _unsnappy_block(block: bytes | memoryview, left: int, max_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise _too_large(max_bytes)
        if size > len(block) * _SNAPPY_EXPANSION:
            raise _corrupt("snappy: a block claims more than it can hold")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _corrupt(error) from None


def _open_within(into: Callable[[Any, Any], int], data: bytes | memoryview, max_bytes: int) -> bytes:
    """Open into a buffer that grows only as the content proves to need it, and never beyond `max_bytes`."""
    size = min(max_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        room = bytearray(size)
        if size < max_bytes:
            room[-len(_UNTOUCHED) :] = _UNTOUCHED
        try:
            written = into(data, room)
        except cramjam.DecompressionError as error:
            # Either the room is full or the input is bad. cramjam tells the two apart only in words; the end of the
            # room tells it too.
            if size >= max_bytes or room.endswith(_UNTOUCHED):
                raise _corrupt(f"{error} (at most {max_bytes} bytes may come out)") from None
            size = min(max_bytes, size * _GROWTH)
            continue
        with memoryview(room) as view:
            return bytes(view[:written])


def _xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)
