"""Lines of JSON with a checksum in front: the form of small files that people may read, too."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from crc32c import crc32c

_CHECK_BYTES: Final = 9  # eight hexadecimal digits and a space
_encoder: Final = msgspec.json.Encoder()


def render(document: tuple[Any, ...]) -> bytes:
    body = _encoder.encode(document)
    return b"%08x %b\n" % (crc32c(body), body)


def parse(line: bytes) -> list[Any] | None:
    """What a line says, without its end; None if it is damaged."""
    body = line[_CHECK_BYTES:]
    if line[:_CHECK_BYTES] != b"%08x " % crc32c(body):
        return None
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return document if isinstance(document, list) and document else None
