"""A walk over a message before kio decodes it.

Why: kio's native decoder allocates for any array count that it reads, and a count of two thousand million ends the
process. It also stops at tagged fields that it does not know, which KIP-482 tells us to skip, and lets null through
where an array must be.

Rules:
- After a walk every count fits into the bytes that follow, the number of elements is bounded, no array is null that
  must not be, no text is longer than Kafka takes, and every length is one that kio reads in the same way.
- Tagged fields that the schema does not know are collected for removal.
- A walk allocates nothing. It raises ProtocolError, or IndexError and struct.error where the bytes end too early.
- Walks are compiled once per struct: (bytes to skip, step) pairs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.core.errors import ProtocolError
from headrace.wire.headers import unsigned_varint
from headrace.wire.schema import FIXED, WireField, wire_fields

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_UUID_BYTES: Final = 16
_TEXT_BYTES: Final = 0x7FFF  # whatever the version: an older one could not tell a longer text to anybody


@dataclass(slots=True)
class Walk:
    """What one walk may spend, and what it found."""

    budget: int  # elements of arrays that the message may still have
    cuts: list[tuple[int, int, bytes]] = field(default_factory=list)  # from, to, replacement


Step = Callable[[bytes, int, Walk], int]


def without_unknown_tags(data: bytes, offset: int, walk: Walk) -> bytes:
    """The message from `offset` on, as if its sender had not known the tagged fields that kio does not know."""
    parts: list[bytes] = []
    position = offset
    for start, stop, replacement in sorted(walk.cuts):
        parts.append(data[position:start])
        parts.append(replacement)
        position = stop
    parts.append(data[position:])
    return b"".join(parts)


def walk_of(message: type[Any]) -> Step:
    """The walk over a struct: takes the data and the struct's position, returns the position after it."""
    flexible: bool = message.__flexible__
    steps: list[tuple[int, Step]] = []
    tagged: dict[int, Step] = {}
    skip = 0
    for item in wire_fields(message):
        size = _fixed_size(item)
        if item.tag is not None:
            tagged[item.tag] = _field_step(item, flexible)
        elif size:
            skip += size
        else:
            steps.append((skip, _field_step(item, flexible)))
            skip = 0

    def walk_struct(data: bytes, position: int, walk: Walk) -> int:
        for ahead, step in steps:
            position = step(data, position + ahead, walk)
        return position + skip

    def walk_flexible_struct(data: bytes, position: int, walk: Walk) -> int:
        for ahead, step in steps:
            position = step(data, position + ahead, walk)
        position += skip
        if data[position] == 0:
            return position + 1
        return _walk_tagged(data, position, walk, tagged)

    return walk_flexible_struct if flexible else walk_struct


def min_bytes(message: type[Any]) -> int:
    """The fewest bytes that a struct can take."""
    flexible: bool = message.__flexible__
    total = 1 if flexible else 0
    for item in wire_fields(message):
        if item.tag is None:
            total += _fixed_size(item) or _min_size(item, flexible)
    return total


def _fixed_size(item: WireField) -> int:
    """Bytes of a field whose size does not depend on the data; 0 if it does."""
    return 0 if item.array else _kind_size(item.kind)


def _kind_size(kind: str) -> int:
    if kind == "uuid":
        return _UUID_BYTES
    return struct.calcsize(">" + FIXED[kind]) if kind in FIXED else 0


def _min_size(item: WireField, flexible: bool) -> int:
    if item.array:
        return 1 if flexible else 4
    if item.struct is not None:
        return 1 if item.nullable else min_bytes(item.struct)
    if flexible:
        return 1
    return 2 if item.kind == "string" else 4


def _field_step(item: WireField, flexible: bool) -> Step:
    if item.array:
        return _array_step(item, flexible)
    if size := _kind_size(item.kind):
        return lambda data, position, walk: position + size
    if item.struct is not None:
        inner = walk_of(item.struct)
        return _nullable_struct_step(inner) if item.nullable else inner
    return _bytes_step(item, flexible)


def _bytes_step(item: WireField, flexible: bool) -> Step:
    if flexible:
        return _walk_compact_text if item.kind == "string" else _walk_compact
    return _walk_string if item.kind == "string" else _walk_bytes


def _walk_compact_text(data: bytes, position: int, walk: Walk) -> int:
    length = data[position]
    if length >= 0x80:
        length, after = unsigned_varint(data, position)
        if length > _TEXT_BYTES + 1:
            raise ProtocolError(f"a text of {length - 1} bytes; {_TEXT_BYTES} are allowed")
        return after + max(length - 1, 0)
    return position + length if length else position + 1


def _walk_compact(data: bytes, position: int, walk: Walk) -> int:
    length = data[position]
    if length >= 0x80:
        length, after = unsigned_varint(data, position)
        return after + max(length - 1, 0)
    return position + length if length else position + 1


def _walk_string(data: bytes, position: int, walk: Walk) -> int:
    length: int = _int16(data, position)[0]
    if length < 0:
        if length != -1:
            raise ProtocolError("a length is negative")
        return position + 2
    return position + 2 + length


def _walk_bytes(data: bytes, position: int, walk: Walk) -> int:
    length: int = _int32(data, position)[0]
    if length < 0:
        if length != -1:
            raise ProtocolError("a length is negative")
        return position + 4
    return position + 4 + length


def _nullable_struct_step(inner: Step) -> Step:
    def walk_nullable_struct(data: bytes, position: int, walk: Walk) -> int:
        marker = data[position]
        if marker == 1:
            return inner(data, position + 1, walk)
        if marker == 0xFF:
            return position + 1
        raise ProtocolError("a struct is neither there nor null")

    return walk_nullable_struct


def _array_step(item: WireField, flexible: bool) -> Step:
    nullable = item.nullable
    size = _kind_size(item.kind)
    if item.struct is not None:
        least, step = min_bytes(item.struct), walk_of(item.struct)
    else:
        least = size or (1 if flexible else 2 if item.kind == "string" else 4)
        step = _bytes_step(item, flexible)

    def walk_array(data: bytes, position: int, walk: Walk) -> int:
        if flexible:
            count = data[position]
            if count < 0x80:
                position += 1
            else:
                count, position = unsigned_varint(data, position)
            count -= 1
        else:
            count = _int32(data, position)[0]
            position += 4
        if count <= 0:
            if count < -1 or (count == -1 and not nullable):
                raise ProtocolError("an array is null or has a negative count")
            return position
        if count * least > len(data) - position:
            raise ProtocolError("an array has more elements than bytes follow")
        walk.budget -= count
        if walk.budget < 0:
            raise ProtocolError("a message has too many elements")
        if size:
            return position + count * size
        for _ in range(count):
            position = step(data, position, walk)
        return position

    return walk_array


def _walk_tagged(data: bytes, start: int, walk: Walk, known: dict[int, Step]) -> int:
    count, after_count = unsigned_varint(data, start)
    walk.budget -= count
    if walk.budget < 0:
        raise ProtocolError("a message has too many tagged fields")
    position = after_count
    unknown = 0
    for _ in range(count):
        at = position
        tag, position = unsigned_varint(data, position)
        size, position = unsigned_varint(data, position)
        stop = position + size
        step = known.get(tag)
        if step is None:
            unknown += 1
            walk.cuts.append((at, stop, b""))
        elif step(data, position, walk) != stop:
            # kio goes by the value and not by the size: the two must agree, or it would read other bytes than we.
            raise ProtocolError("a tagged field's size does not match its value")
        position = stop
    if unknown:
        walk.cuts.append((start, after_count, varint(count - unknown)))
    return position


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
