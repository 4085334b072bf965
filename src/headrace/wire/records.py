"""Records: opened out of a batch, and built into one.

Rules:
- Nothing here runs on the hot path: Produce and Fetch build no records.
- Every length and count is checked against the bytes that are there. Anything malformed is
  ApiError(corrupt_message), whatever the bytes.
- Decompression is bounded (`codecs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import crc32c

from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import DECOMPRESSED_BYTES
from headrace.wire.codecs import compress, decompress
from headrace.wire.layout import (
    APPEND_TIME,
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from headrace.wire.batch import BatchHeader

Headers = tuple[tuple[str, bytes | None], ...]
_tuple = tuple.__new__  # builds a NamedTuple at a third of the price of calling its class


class Record(NamedTuple):
    """One opened record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def _corrupt(reason: str) -> NoReturn:
    raise ApiError(ErrorCode.corrupt_message, reason)


def read_varint(data: bytes, position: int, max_bytes: int = 5) -> tuple[int, int]:
    """A zigzag varint at `position`, and the position after it. IndexError at the end of the data."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    for at in range(position + 1, position + max_bytes):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    _corrupt("a varint is too long")


def records(data: bytes | memoryview, header: BatchHeader, *, max_bytes: int = DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Open one batch. Raises ApiError(corrupt_message) for anything malformed or larger than `max_bytes` opened.

    With LogAppendTime every record has the batch's max timestamp. A generator: errors come while iterating.
    """
    payload = _payload(data, header, max_bytes)
    end = len(payload)
    position = 0
    append_time = header.max_timestamp if header.attributes & APPEND_TIME else None
    for _ in range(header.count):
        try:
            length, start = read_varint(payload, position)
            position = start + length
            if length < 0 or position > end:
                _corrupt("a record is longer than its batch")
            record, stop = _record(payload, start, header, append_time)
        except IndexError:
            _corrupt("a record is cut off")
        if stop != position:
            _corrupt("a record's length does not match its content")
        yield record
    if position != end:
        _corrupt("bytes are left over after the last record")


def _payload(data: bytes | memoryview, header: BatchHeader, max_bytes: int) -> bytes:
    start = header.position + HEADER_BYTES
    stop = header.position + header.size
    if header.size < HEADER_BYTES or stop > len(data):
        _corrupt("the batch is cut off")
    with memoryview(data) as view:
        return decompress(header.attributes & CODEC_MASK, view[start:stop], max_bytes)


def _record(payload: bytes, position: int, header: BatchHeader, append_time: int | None) -> tuple[Record, int]:
    timestamp_delta, position = read_varint(payload, position + 1, 10)  # the attributes byte is unused
    offset_delta, position = read_varint(payload, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        _corrupt("a record's offset lies outside its batch")
    key, position = _nullable_bytes(payload, position)
    value, position = _nullable_bytes(payload, position)
    count, position = read_varint(payload, position)
    headers: Headers = ()
    if count:
        if not 0 < count <= len(payload) - position:
            _corrupt("a record's header count is wrong")
        headers, position = _headers(payload, position, count)
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    return _tuple(Record, (header.base_offset + offset_delta, timestamp, key, value, headers)), position


def _nullable_bytes(payload: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(payload, position)
    if length < 0:
        if length != -1:
            _corrupt("a length is negative")
        return None, position
    stop = position + length
    if stop > len(payload):
        _corrupt("a field is longer than its batch")
    return payload[position:stop], stop


def _headers(payload: bytes, position: int, count: int) -> tuple[Headers, int]:
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _nullable_bytes(payload, position)
        if name is None:
            _corrupt("a header has no name")
        value, position = _nullable_bytes(payload, position)
        try:
            found.append((name.decode(), value))
        except UnicodeDecodeError:
            _corrupt("a header's name is not UTF-8")
    return tuple(found), position


def build(
    items: Iterable[tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    codec: int = 0,
    control: bool = False,
    transactional: bool = False,
    headers: Headers = (),
) -> bytes:
    """Make a batch of (key, value) records; every record gets the same timestamp and headers."""
    tail = _encoded_headers(headers)
    body = bytearray()
    count = 0
    for key, value in items:
        _append_record(body, 0, count, key, value, tail)
        count += 1
    if not count:
        raise ValueError("a batch has at least one record")
    attributes = codec | (CONTROL if control else 0) | (TRANSACTIONAL if transactional else 0)
    return seal(
        body,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer=(producer_id, producer_epoch, base_sequence),
        count=count,
    )


def rebuild(header: BatchHeader, kept: Sequence[Record]) -> bytes:
    """The batch of `header` with only some of its records, for compaction.

    Offsets, timestamps, codec, producer and the batch's range of offsets stay what they were.
    """
    body = bytearray()
    for record in kept:
        delta = record.timestamp - header.base_timestamp
        offset_delta = record.offset - header.base_offset
        _append_record(body, delta, offset_delta, record.key, record.value, _encoded_headers(record.headers))
    append_time = header.attributes & APPEND_TIME
    newest = max((record.timestamp for record in kept), default=header.max_timestamp)
    return seal(
        body,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp if append_time else newest,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        count=len(kept),
    )


def seal(
    body: bytes | bytearray,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: tuple[int, int, int],
    count: int,
    level: int | None = None,
) -> bytes:
    """Compress records, and put the header of their batch in front."""
    payload = compress(attributes & CODEC_MASK, bytes(body), level)
    batch = bytearray(HEADER_BYTES + len(payload))
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    batch[HEADER_BYTES:] = payload
    with memoryview(batch) as view:
        CRC.pack_into(batch, CRC_AT, crc32c.crc32c(view[ATTRIBUTES_AT:]))
    return bytes(batch)


def append_varint(out: bytearray, value: int) -> None:
    value = value << 1 if value >= 0 else ~(value << 1)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1
    else:
        append_varint(out, len(value))
        out += value


def _append_record(
    body: bytearray, timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, tail: bytes
) -> None:
    record = bytearray(1)
    append_varint(record, timestamp_delta)
    append_varint(record, offset_delta)
    _append_bytes(record, key)
    _append_bytes(record, value)
    record += tail
    append_varint(body, len(record))
    body += record


def _encoded_headers(headers: Headers) -> bytes:
    out = bytearray()
    append_varint(out, len(headers))
    for name, value in headers:
        _append_bytes(out, name.encode())
        _append_bytes(out, value)
    return bytes(out)
