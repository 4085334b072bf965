"""Records looked at without being opened: where each lies, its key, and whether it has a value.

Compaction reads millions of records to keep some of them. It needs no `Record` objects: the bytes of a record that is
kept stay as they are, with headers and all, whatever is in them.

Rules:
- Every length is checked against the bytes that are there; anything malformed is ApiError(corrupt_message). What comes
  behind the key is looked at only as far as to tell whether there is a value.
- `repack` keeps a batch's offsets, producer and codec. Records keep their own times, also when the batch gets a delete
  horizon, which takes the place of its base timestamp (KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import DECOMPRESSED_BYTES
from headrace.wire.codecs import decompress
from headrace.wire.layout import APPEND_TIME, CODEC_MASK, DELETE_HORIZON, HEADER_BYTES
from headrace.wire.records import append_varint, read_varint, seal

if TYPE_CHECKING:
    from headrace.wire.batch import BatchHeader

AT_ONCE: Final = 256  # records that are looked at in one go
_LATEST: Final = 2**61  # no horizon lies behind this, so that every difference of times fits into 64 bits


# One record of an opened batch: where it begins in the payload (its length included), where it ends, where the part
# behind its timestamp begins, timestamp, offset, key, whether it has a value. A plain tuple: millions are made.
Glimpse = tuple[int, int, int, int, int, bytes | None, bool]


def payload_of(data: bytes | memoryview, header: BatchHeader, *, max_bytes: int = DECOMPRESSED_BYTES) -> bytes:
    """The records of a batch, decompressed. Raises ApiError(corrupt_message)."""
    with memoryview(data) as view:
        records = view[header.position + HEADER_BYTES : header.position + header.size]
        return decompress(header.attributes & CODEC_MASK, records, max_bytes)


def skim(payload: bytes, header: BatchHeader, *, at_once: int = AT_ONCE) -> Iterator[list[Glimpse]]:
    """Every record of an opened batch, in order, in lists of a few. Raises ApiError(corrupt_message)."""
    left = header.count
    position = 0
    while left > 0:
        count = min(left, at_once)
        try:
            found, position = _skim(payload, header, position, count)
        except IndexError:
            _corrupt("a record is cut off")
        left -= count
        yield found
    if position != len(payload):
        _corrupt("bytes are left over after the last record")


def _skim(payload: bytes, header: BatchHeader, end: int, count: int) -> tuple[list[Glimpse], int]:
    """`count` records from position `end` on, and where they end. Short varints are read on the spot."""
    base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.attributes & APPEND_TIME else None
    size = len(payload)
    found: list[Glimpse] = []
    for _ in range(count):
        start = end
        value = payload[start]
        position = start + 1
        if value > 0x7F:
            byte = payload[position]
            if byte < 0x80:
                value += (byte << 7) - 0x80
                position += 1
            else:
                value, position = _unsigned(payload, start)
        end = position + (value >> 1)
        if value & 1 or end > size:
            _corrupt("a record is longer than its batch")
        rest = position + 2  # behind the attributes byte, which is unused, and a timestamp of one byte
        value = payload[position + 1]
        if value > 0x7F:
            value, rest = _unsigned(payload, position + 1, 10)
        timestamp = base_timestamp + ((value >> 1) ^ -(value & 1)) if append_time is None else append_time
        value = payload[rest]
        position = rest + 1
        if value > 0x7F:
            byte = payload[position]
            if byte < 0x80:
                value += (byte << 7) - 0x80
                position += 1
            else:
                value, position = _unsigned(payload, rest)
        delta = value >> 1
        if value & 1 or delta > last_delta:
            _corrupt("a record's offset lies outside its batch")
        value = payload[position]
        position += 1
        if value > 0x7F:
            value, position = _unsigned(payload, position - 1)
        if value & 1:
            key = None
            if value != 1:
                _corrupt("a length is negative")
        else:
            stop = position + (value >> 1)
            key = payload[position:stop]
            position = stop
        if position >= end:
            _corrupt("a record's fields do not fit into it")
        # A value's length of -1 is the byte 1: there is none.
        found.append((start, end, rest, timestamp, base_offset + delta, key, payload[position] != 1))
    return found, end


def _unsigned(payload: bytes, position: int, max_bytes: int = 5) -> tuple[int, int]:
    """A varint as it stands, before its sign is taken out of it."""
    value, position = read_varint(payload, position, max_bytes)
    return (value << 1 if value >= 0 else ~(value << 1)), position


def repack(header: BatchHeader, payload: bytes, kept: Sequence[Glimpse], *, horizon_ms: int | None = None) -> bytes:
    """The batch of `header` with only some of its records, which may be none.

    With `horizon_ms` it says from when on its tombstones, or its marker, may go.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is None:
        body = b"".join([payload[each[0] : each[1]] for each in kept])
    else:
        attributes |= DELETE_HORIZON
        base_timestamp = min(horizon_ms, _LATEST)
        body = b"".join([_redated(payload, each, base_timestamp) for each in kept])
    newest = header.max_timestamp
    if not kept:
        attributes &= ~CODEC_MASK  # there is nothing to compress: a header is all that is left
    elif not attributes & APPEND_TIME:
        newest = max(each[3] for each in kept)
    return seal(
        body,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        count=len(kept),
    )


def recompress(data: bytes, header: BatchHeader, codec: int, *, level: int | None, max_bytes: int) -> bytes:
    """The same batch in another codec. Raises ApiError(corrupt_message), also if it opens to more than `max_bytes`."""
    return seal(
        payload_of(data, header, max_bytes=max_bytes),
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & ~CODEC_MASK | codec,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        count=header.count,
        level=level,
    )


def horizon_of(header: BatchHeader) -> int | None:
    """From when on what the batch deletes need not be remembered; None if that is not settled yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def _redated(payload: bytes, record: Glimpse, base_timestamp: int) -> bytes:
    _, end, rest, timestamp, *_ = record
    inside = bytearray(1)  # the attributes
    append_varint(inside, timestamp - base_timestamp)
    inside += payload[rest:end]
    out = bytearray()
    append_varint(out, len(inside))
    return bytes(out + inside)


def _corrupt(reason: str) -> NoReturn:
    raise ApiError(ErrorCode.corrupt_message, reason)
