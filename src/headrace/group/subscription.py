"""Reads the topics out of the consumer protocol's subscription.

The broker looks inside a member's metadata for one purpose only: to know which topics a group is subscribed to.
The layout: version (int16), then an array of topic names; later versions only append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER = "consumer"
_START = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics of one subscription, or None if the bytes are not one."""
    try:
        version, count = _START.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        position = _START.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(str(metadata[position : position + length], "utf-8"))
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions together, or None if one of them cannot be read."""
    together: set[str] = set()
    for metadata in subscriptions:
        topics = topics_of(metadata)
        if topics is None:
            return None
        together |= topics
    return frozenset(together)
