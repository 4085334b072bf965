"""Kafka messages between bytes and objects: the adapter to kio.

Rules:
- Requests come out as kio's classes, through its native decoder, behind the walk of `guard`.
- Answers go in as plain nested mappings under kio's field names (see `encoder`).
- Only ProtocolError comes out of decoding, whatever the bytes. Bytes after the end of a message are ignored, as Kafka
  does.
- Decoders and encoders are compiled when they are first used (some milliseconds) and kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.core.errors import ProtocolError  # first: it hides Hypothesis from kio

# isort: split
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from headrace.wire.encoder import Joined, StructEncoder
from headrace.wire.guard import Walk, walk_of, without_unknown_tags
from headrace.wire.schema import Direction, message_class

ELEMENTS_PER_REQUEST: Final = 50_000  # of all arrays together: to do something for each costs far more than the walk
ELEMENTS_PER_RESPONSE: Final = 10_000_000

_UNREADABLE = (SerialError, ValueError, ArithmeticError, LookupError, TypeError, MemoryError)

Decode = Callable[[bytes, int], Any]
_request_decoders: dict[tuple[int, int], Decode] = {}
_response_decoders: dict[tuple[int, int], Decode] = {}
_request_encoders: dict[tuple[int, int], StructEncoder] = {}
_response_encoders: dict[tuple[int, int], StructEncoder] = {}


def decode_request(api_key: int, version: int, data: bytes, offset: int = 0) -> Any:
    """The request that starts at `offset`, as kio's class. Raises ProtocolError."""
    decode = _request_decoders.get((api_key, version))
    if decode is None:
        decode = _decoder(message_class(api_key, version, "request"), ELEMENTS_PER_REQUEST)
        _request_decoders[api_key, version] = decode
    return decode(data, offset)


def decode_response(api_key: int, version: int, data: bytes, offset: int = 0) -> Any:
    """The response that starts at `offset`, as kio's class. Raises ProtocolError."""
    decode = _response_decoders.get((api_key, version))
    if decode is None:
        decode = _decoder(message_class(api_key, version, "response"), ELEMENTS_PER_RESPONSE)
        _response_decoders[api_key, version] = decode
    return decode(data, offset)


def encode_answer(api_key: int, version: int, answer: Mapping[str, Any]) -> bytes:
    """The body of a response, without its header."""
    out = bytearray()
    _answer_encoder(api_key, version)(out, answer)
    return bytes(out)


def encode_answer_in_steps(api_key: int, version: int, answer: Mapping[str, Any], out: bytearray) -> Iterator[None]:
    """What `encode_answer` returns, appended to `out` little by little: one step for each element of its arrays."""
    return _answer_encoder(api_key, version).steps(out, answer)


def element_encoder(api_key: int, version: int, *path: str) -> Callable[[bytearray, Mapping[str, Any]], None]:
    """What writes one element of an array of an answer, named from the top; `Joined` may stand in their place."""
    encoder = _answer_encoder(api_key, version)
    for array in path:
        encoder = encoder.arrays[array]
    return encoder


def joined(encode: Callable[[bytearray, Mapping[str, Any]], None], rows: Sequence[Mapping[str, Any]]) -> Joined:
    """Rows that are encoded once and stand in several places."""
    out = bytearray()
    for row in rows:
        encode(out, row)
    return Joined(len(rows), bytes(out))


def encode_request(api_key: int, version: int, request: Mapping[str, Any]) -> bytes:
    """The body of a request, without its header."""
    encode = _request_encoders.get((api_key, version))
    if encode is None:
        encode = _request_encoders[api_key, version] = _encoder(api_key, version, "request")
    out = bytearray()
    encode(out, request)
    return bytes(out)


def _answer_encoder(api_key: int, version: int) -> StructEncoder:
    encode = _response_encoders.get((api_key, version))
    if encode is None:
        encode = _response_encoders[api_key, version] = _encoder(api_key, version, "response")
    return encode


def _encoder(api_key: int, version: int, direction: Direction) -> StructEncoder:
    return StructEncoder(message_class(api_key, version, direction), api_key, direction)


def _decoder(message: type[Any], max_elements: int) -> Decode:
    walk_message = walk_of(message)
    read = entity_reader(message)

    def decode(data: bytes, offset: int) -> Any:
        walk = Walk(max_elements)
        try:
            end = walk_message(data, offset, walk)
        except (IndexError, struct.error):
            raise ProtocolError(f"{message.__name__} is cut off") from None
        if end > len(data):
            raise ProtocolError(f"{message.__name__} is cut off")
        if walk.cuts:
            data, offset = without_unknown_tags(data, offset, walk), 0
        try:
            return read(data, offset)[0]
        except _UNREADABLE as error:
            raise ProtocolError(f"{message.__name__} cannot be read: {error}") from None

    return decode
