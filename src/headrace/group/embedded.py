"""The consumer protocol inside the classic one: what a member's metadata and assignment bytes say.

Layout, big-endian, later versions only append: subscription = version (int16), topics (array of string), user data
(bytes), from 1 on owned partitions (array of topic and array of int32), from 2 on generation (int32), from 3 on rack
(string). Assignment = version, partitions (as above), user data. `subscription` reads only the topics, and cheaper.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

Named = tuple[tuple[str, tuple[int, ...]], ...]

OWNED_SINCE = 1
RACK_SINCE = 3


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: Named = ()
    rack_id: str | None = None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        return self._int(">h", 2)

    def int32(self) -> int:
        return self._int(">i", 4)

    def _int(self, layout: str, size: int) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += size
        return int(value)

    def take(self, length: int) -> bytes:
        if length < 0 or self._at + length > len(self._data):
            raise ValueError("too short")
        self._at += length
        return self._data[self._at - length : self._at]

    def count(self) -> int:
        """Of an array; each element takes at least two bytes."""
        count = self.int32()
        if count * 2 > len(self._data) - self._at:
            raise ValueError("too short")
        return max(count, 0)

    def string(self) -> str:
        return str(self.take(self.int16()), "utf-8")

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else str(self.take(length), "utf-8")

    def skip_bytes(self) -> None:
        length = self.int32()
        if length > 0:
            self.take(length)

    def partitions(self) -> Named:
        return tuple((self.string(), tuple(self.int32() for _ in range(self.count()))) for _ in range(self.count()))


def subscription_of(metadata: bytes) -> Subscription | None:
    """None if the bytes are no subscription."""
    reader = _Reader(metadata)
    try:
        version = reader.int16()
        if version < 0:
            return None
        topics = frozenset(reader.string() for _ in range(reader.count()))
        reader.skip_bytes()
        owned = reader.partitions() if version >= OWNED_SINCE else ()
        rack_id = None
        if version >= RACK_SINCE:
            reader.int32()
            rack_id = reader.nullable_string()
    except (struct.error, ValueError):
        return None
    return Subscription(version, topics, owned, rack_id)


def assignment_of(assignment: bytes) -> Named | None:
    """None if the bytes are no assignment; no bytes are no partitions."""
    if not assignment:
        return ()
    reader = _Reader(assignment)
    try:
        return reader.partitions() if reader.int16() >= 0 else None
    except (struct.error, ValueError):
        return None


def assignment_bytes(version: int, topics: Mapping[str, list[int]]) -> bytes:
    parts = [struct.pack(">hi", version, len(topics))]
    for name, indexes in topics.items():
        encoded = name.encode()
        parts.append(struct.pack(f">h{len(encoded)}si{len(indexes)}i", len(encoded), encoded, len(indexes), *indexes))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)
