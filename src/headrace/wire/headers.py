"""Request and response headers, by hand: they are on the path of every request.

Rules:
- A request header is v2 (with tagged fields) if the API's version is flexible, else v1. The client id is an old-style
  string in both (KIP-482 keeps it, so that a broker can read the header of a version that it does not know).
- A response header is v1 if the version is flexible, else v0; ApiVersions always v0 (KIP-511).
- Anything that does not fit into the frame is a ProtocolError.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headrace.core.errors import ProtocolError

API_VERSIONS: Final = 18
_NEVER: Final = 1 << 16

# First flexible version -> API keys. A test compares it with kio's schema.
_FLEXIBLE_FROM: Final[dict[int, tuple[int, ...]]] = {
    0: (45, 46, 50, 51, 52, 55, *range(56, 93)),
    1: (27, 44, 48, 49, 53, 54),
    2: (21, 22, 29, 30, 31, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43),
    3: (10, 16, 18, 24, 25, 26, 28),
    4: (12, 13, 14, 20, 23, 32),
    5: (15, 19),
    6: (2, 9, 11),
    8: (8,),
    9: (0, 3),
    12: (1,),
    _NEVER: (17, 47),
}
FIRST_FLEXIBLE: Final = {key: version for version, keys in _FLEXIBLE_FROM.items() for key in keys}

_FIXED: Final = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_unpack = _FIXED.unpack_from
_tuple = tuple.__new__  # builds a NamedTuple at a third of the price of calling its class
_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_AND_NO_TAGS: Final = struct.Struct(">ix")


class RequestHeader(NamedTuple):
    """Who asks for what; the request's body starts at `body_offset` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str  # "" if the client did not name itself
    body_offset: int


def parse_request_header(frame: bytes) -> RequestHeader:
    """Read the header of a request. An unknown API key is read as if it were not flexible: the caller decides."""
    try:
        api_key, version, correlation_id, length = _unpack(frame)
        position = 10
        client_id = ""
        if length > 0:
            position = 10 + length
            client_id = str(frame[10:position], "utf-8")
        elif length < -1:
            raise ProtocolError("the client id has a negative length")
        if version >= FIRST_FLEXIBLE.get(api_key, _NEVER):
            # Nearly always there are no tagged fields.
            position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
    except (struct.error, IndexError):
        raise ProtocolError("the request header is cut off") from None
    except UnicodeDecodeError:
        raise ProtocolError("the client id is not UTF-8") from None
    if position > len(frame):
        raise ProtocolError("the request header is cut off")
    return _tuple(RequestHeader, (api_key, version, correlation_id, client_id, position))


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    if version >= FIRST_FLEXIBLE.get(api_key, _NEVER) and api_key != API_VERSIONS:
        return _CORRELATION_AND_NO_TAGS.pack(correlation_id)
    return _CORRELATION.pack(correlation_id)


def unsigned_varint(data: bytes, position: int) -> tuple[int, int]:
    """The varint at `position` and the position after it. IndexError at the end; ProtocolError over 31 bits."""
    value = shift = 0
    for at in range(position, position + 5):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                break
            return value, at + 1
        shift += 7
    raise ProtocolError("a varint is too large")


def skip_tagged_fields(frame: bytes, position: int) -> int:
    count, position = unsigned_varint(frame, position)
    for _ in range(count):
        _, position = unsigned_varint(frame, position)
        size, position = unsigned_varint(frame, position)
        position += size
    return position
