"""Compression of record batches, with a bound on what comes out.

Rules:
- Output never grows beyond `max_bytes`, and memory stays within a small multiple of it: a compression bomb is an
  ApiError, never an allocation.
- Whatever a codec does not like is ApiError(corrupt_message). What opens to too much is a TooLargeToOpenError, also
  corrupt_message: it may be opened again with a larger bound.
- `open_into_room` may run in a worker: it holds the interpreter for no longer than it takes to copy `_AT_ONCE_BYTES`.
- What we compress, the Java client can read: snappy in xerial framing, lz4 frames with independent blocks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from mmap import mmap
from typing import Any, Final

import cramjam

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.layout import GZIP, LZ4, NONE, SNAPPY, ZSTD

Room = bytes | bytearray | mmap  # all can be indexed, sliced and searched

ZSTD_LEVEL: Final = 3
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LENGTH: Final = struct.Struct(">i")
_SNAPPY_EXPANSION: Final = 64  # more than any snappy element can expand (64 bytes out of 3)
_GZIP_MEMBERS: Final = 16  # producers write one; each further one costs a copy of what follows
_FIRST_GUESS_BYTES: Final = 4 * 1024
_GROWTH: Final = 8
_AT_ONCE_BYTES: Final = 1024 * 1024
_UNTOUCHED: Final = bytes.fromhex("8f1ad5c3e7904b26b05d7a13f86e2c49")  # arbitrary; marks the end of a room


class TooLargeToOpenError(ApiError):
    """Compressed records open to more than is allowed."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(ErrorCode.corrupt_message, f"compressed records open to more than {max_bytes} bytes")


def _corrupt(reason: object) -> ApiError:
    return ApiError(ErrorCode.corrupt_message, f"compressed records cannot be opened: {reason}")


def decompress(codec: int, data: bytes | memoryview, max_bytes: int) -> bytes:
    """The opened bytes, at most `max_bytes` of them; otherwise ApiError(corrupt_message)."""
    room, size = open_into_room(codec, data, max_bytes)
    if type(room) is bytes:
        return room
    with memoryview(room) as view:
        return bytes(view[:size])


def open_into_room(codec: int, data: bytes | memoryview, max_bytes: int, room: mmap | None = None) -> tuple[Room, int]:
    """The opened bytes, at the beginning of a room that may be larger, and how many they are.

    `room`: one from `room_for(max_bytes)`, that may be used again and again: fresh pages cost more than the codec.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise TooLargeToOpenError(max_bytes)
        return bytes(data), len(data)
    if codec == GZIP:
        return _gunzip(data, max_bytes, room)
    if codec == SNAPPY:
        return _unsnappy(data, max_bytes, room)
    if codec == LZ4:
        return _open_within(cramjam.lz4.decompress_into, data, max_bytes, room)
    if codec == ZSTD:
        return _open_within(cramjam.zstd.decompress_into, data, max_bytes, room)
    raise ApiError(ErrorCode.unsupported_compression_type, f"codec {codec} is not known")


def room_for(max_bytes: int) -> mmap:
    """Room for the largest output that is allowed."""
    return mmap(-1, max_bytes + len(_UNTOUCHED))


def _new_room(size: int) -> bytearray | mmap:
    """Room for `size` bytes. A large one has pages of its own, which are not touched before something is written."""
    return bytearray(size) if size <= _AT_ONCE_BYTES else mmap(-1, size)


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


def _gunzip(data: bytes | memoryview, max_bytes: int, given: mmap | None) -> tuple[Room, int]:
    # zlib, not cramjam: it stops at a given output length by itself.
    room: bytearray | mmap | None = None
    size = 0
    rest: bytes | memoryview = data
    for _ in range(_GZIP_MEMBERS):
        member = zlib.decompressobj(31)
        ended = False
        while not ended:
            try:
                part = member.decompress(rest, min(_AT_ONCE_BYTES, max_bytes - size + 1))
            except zlib.error as error:
                raise _corrupt(error) from None
            if size + len(part) > max_bytes:
                raise TooLargeToOpenError(max_bytes)
            rest, ended = member.unconsumed_tail, member.eof
            if not (part or rest or ended):
                raise _corrupt("gzip: it ends too early")
            if room is None:
                if ended and not member.unused_data:
                    return part, len(part)
                room = given or _new_room(max_bytes)
            room[size : size + len(part)] = part
            size += len(part)
        rest = member.unused_data
        if not rest:
            assert room is not None
            return room, size
    raise _corrupt("gzip: too many members")


def _unsnappy(data: bytes | memoryview, max_bytes: int, given: mmap | None) -> tuple[Room, int]:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnappy_block(data, max_bytes, max_bytes)
    room: bytearray | mmap | None = None
    size = 0
    position = len(_XERIAL_HEADER)
    end = len(data)
    while position < end:
        if end - position < _LENGTH.size:
            raise _corrupt("snappy: a block's length is cut off")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if not 0 < length <= end - position:
            raise _corrupt("snappy: a block's length is wrong")
        part, part_size = _unsnappy_block(data[position : position + length], max_bytes - size, max_bytes)
        position += length
        if room is None:
            if position == end:
                return part, part_size
            room = given or _new_room(max_bytes)
        with memoryview(part) as view:
            room[size : size + part_size] = view[:part_size]
        size += part_size
    return (b"", 0) if room is None else (room, size)


def _unsnappy_block(block: bytes | memoryview, left: int, max_bytes: int) -> tuple[Room, int]:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise TooLargeToOpenError(max_bytes)
        if size > len(block) * _SNAPPY_EXPANSION:
            raise _corrupt("snappy: a block claims more than it can hold")
        if not size:
            return bytes(cramjam.snappy.decompress_raw(block)), 0
        room = _new_room(size)
        return room, cramjam.snappy.decompress_raw_into(block, room)
    except cramjam.DecompressionError as error:
        raise _corrupt(error) from None


def _open_within(
    into: Callable[[Any, Any], int], data: bytes | memoryview, max_bytes: int, given: mmap | None
) -> tuple[Room, int]:
    """Open into a room that grows only as the content proves to need it, and never beyond `max_bytes`."""
    size = max(_FIRST_GUESS_BYTES, _GROWTH * len(data)) if given is None else max_bytes
    while True:
        if size > min(max_bytes, _AT_ONCE_BYTES):
            size = max_bytes  # pages that are not touched cost nothing
        room = given or _new_room(size + len(_UNTOUCHED))
        room[size : size + len(_UNTOUCHED)] = _UNTOUCHED
        try:
            written = into(data, room)
        except cramjam.DecompressionError as error:
            # Either the room is full or the input is bad. cramjam tells the two apart only in words; the end of the
            # room tells it too.
            if room[size : size + len(_UNTOUCHED)] == _UNTOUCHED:
                raise _corrupt(error) from None
            written = size + 1
        if written <= size:
            return room, written
        if size >= max_bytes:
            raise TooLargeToOpenError(max_bytes)
        size *= _GROWTH


def _xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)
