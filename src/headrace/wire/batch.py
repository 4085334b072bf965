"""Record batches, format v2 (magic 2): the unit that is checked, stamped, stored and sent.

Rules:
- `check` looks at header and CRC, `validation` at the records inside; `stamp` writes what the leader decides.
- `base_offset` and `leader_epoch` lie outside the CRC, so stamping does not touch the checksum.
- Records are opened only by `records` and built only by `build` (module `records`); decompression is bounded.

Differs from Kafka: a partial batch at the end is refused and not cut off; an unknown codec is
UNSUPPORTED_COMPRESSION_TYPE; times before 1970 and a client's own LogAppendTime bit are always INVALID_TIMESTAMP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.layout import (
    APPEND_TIME,
    ATTRIBUTES,
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NONE,
    PREFIX,
    RECORD_BYTES_MIN,
    STAMP,
    TIMESTAMP,
    TRANSACTIONAL,
    ZSTD,
)
from headrace.wire.records import Record, build, rebuild, records
from headrace.wire.skim import Glimpse, horizon_of, payload_of, recompress, repack, skim

__all__ = [
    "ATTRIBUTES_AT",
    "CONTROL",
    "HEADER_BYTES",
    "LENGTH_OVERHEAD",
    "MAGIC",
    "PREFIX",
    "TRANSACTIONAL",
    "BatchHeader",
    "Glimpse",
    "Record",
    "build",
    "check",
    "codec_of",
    "crc_matches",
    "headers",
    "horizon_of",
    "is_control",
    "is_transactional",
    "payload_of",
    "rebuild",
    "recompress",
    "records",
    "repack",
    "skim",
    "stamp",
    "stamp_append_time",
    "uses_append_time",
    "with_max_timestamp",
]

_FORBIDDEN = APPEND_TIME | CONTROL | DELETE_HORIZON
_unpack = HEADER.unpack_from
_tuple = tuple.__new__  # builds a NamedTuple at a third of the price of calling its class


class BatchHeader(NamedTuple):
    """One batch's header, and where it lies in the buffer that it was read from."""

    position: int  # of the batch's first byte in the buffer
    size: int  # whole batch in bytes, header and length prefix included
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a header


def codec_of(header: BatchHeader) -> int:
    return header.attributes & CODEC_MASK


def is_transactional(header: BatchHeader) -> bool:
    return bool(header.attributes & TRANSACTIONAL)


def is_control(header: BatchHeader) -> bool:
    return bool(header.attributes & CONTROL)


def uses_append_time(header: BatchHeader) -> bool:
    return bool(header.attributes & APPEND_TIME)


def check(
    data: bytes | bytearray | memoryview, *, max_batch_bytes: int, single: bool = True, zstd: bool = True
) -> list[BatchHeader]:
    """Validate what a producer sent: whole batches, magic 2, lengths, counts, CRC, known codec, no control bit.

    `single`: exactly one batch with base offset 0, as producers must send. `zstd`: allowed from Produce v7 on.
    Raises ApiError: corrupt_message, invalid_record, invalid_timestamp, message_too_large,
    unsupported_compression_type.
    """
    end = len(data)
    found: list[BatchHeader] = []
    position = 0
    with memoryview(data) as view:
        while end - position >= HEADER_BYTES:
            values = _unpack(data, position)
            base_offset, length, leader_epoch, magic, crc = values[:5]
            attributes, last_offset_delta, base_timestamp, max_timestamp = values[5:9]
            producer_id, producer_epoch, base_sequence, count = values[9:]
            size = length + LENGTH_OVERHEAD
            stop = position + size
            if magic != MAGIC or size < HEADER_BYTES or stop > end:
                raise _malformed(magic)
            if single and (base_offset or stop != end):
                raise _not_single(base_offset)
            if size > max_batch_bytes:
                raise ApiError(ErrorCode.message_too_large, f"a batch of {size} bytes; {max_batch_bytes} are allowed")
            if crc32c(view[position + ATTRIBUTES_AT : stop]) != crc:
                raise ApiError(ErrorCode.corrupt_message, "the CRC does not match")
            codec = attributes & CODEC_MASK
            header = _tuple(BatchHeader, (position, size, base_offset, leader_epoch, *values[4:]))
            if (
                count < 1
                or last_offset_delta != count - 1
                or attributes & _FORBIDDEN
                or codec > ZSTD
                or (codec == ZSTD and not zstd)
                or (codec == NONE and count * RECORD_BYTES_MIN > size - HEADER_BYTES)
                or max_timestamp < -1
                or base_timestamp < -1
                or (producer_id >= 0 and (base_sequence < 0 or producer_epoch < 0))
                or (producer_id < 0 and attributes & TRANSACTIONAL)
            ):
                raise _unacceptable(header)
            found.append(header)
            position = stop
    if position != end or not found:
        raise _cut_off(data, position)
    return found


def _malformed(magic: int) -> ApiError:
    if magic in (0, 1):
        return ApiError(ErrorCode.invalid_record, f"record format v{magic} is not supported; v2 is")
    if magic != MAGIC:
        return ApiError(ErrorCode.corrupt_message, f"magic {magic} is not known")
    return ApiError(ErrorCode.corrupt_message, "a batch's length does not match the bytes that were sent")


def _not_single(base_offset: int) -> ApiError:
    if base_offset:
        return ApiError(ErrorCode.invalid_record, f"a producer's base offset must be 0, not {base_offset}")
    return ApiError(ErrorCode.invalid_record, "a partition takes exactly one batch per request")


def _cut_off(data: bytes | bytearray | memoryview, position: int) -> ApiError:
    left = len(data) - position
    if not left:
        return ApiError(ErrorCode.invalid_record, "there is no batch at all")
    if left > MAGIC_AT and data[position + MAGIC_AT] in (0, 1):
        return _malformed(data[position + MAGIC_AT])
    return ApiError(ErrorCode.corrupt_message, "a batch is cut off")


def _unacceptable(header: BatchHeader) -> ApiError:
    """Which rule a whole, uncorrupted batch breaks."""
    codec = codec_of(header)
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        reason = f"{header.count} records do not span offsets 0 to {header.last_offset_delta}"
    elif is_control(header):
        reason = "clients must not write control records"
    elif uses_append_time(header):
        return ApiError(ErrorCode.invalid_timestamp, "clients must not set LogAppendTime")
    elif header.attributes & DELETE_HORIZON:
        reason = "clients must not set a delete horizon"
    elif codec > ZSTD:
        return ApiError(ErrorCode.unsupported_compression_type, f"codec {codec} is not known")
    elif codec == NONE and header.count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
        reason = f"{header.count} records do not fit into {header.size} bytes"
    elif header.max_timestamp < -1 or header.base_timestamp < -1:
        return ApiError(ErrorCode.invalid_timestamp, "timestamps before 1970 are not supported")
    elif header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        reason = f"producer {header.producer_id} sent epoch {header.producer_epoch}, sequence {header.base_sequence}"
    elif header.producer_id < 0 and is_transactional(header):
        reason = "a transactional batch needs a producer id"
    else:
        return ApiError(ErrorCode.unsupported_compression_type, "zstd needs Produce v7 or newer")
    return ApiError(ErrorCode.invalid_record, reason)


def headers(data: bytes | bytearray | memoryview, position: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
    """Headers of the whole batches in `data`, without checking CRCs; a partial batch at the end is left out.

    So is everything from the first bytes on that cannot be a v2 batch.
    """
    if end is None:
        end = len(data)
    while end - position >= HEADER_BYTES:
        base_offset, length, leader_epoch, magic, *rest = _unpack(data, position)
        size = length + LENGTH_OVERHEAD
        if magic != MAGIC or size < HEADER_BYTES or position + size > end:
            return
        yield _tuple(BatchHeader, (position, size, base_offset, leader_epoch, *rest))
        position += size


def crc_matches(data: bytes | bytearray | memoryview, header: BatchHeader) -> bool:
    with memoryview(data) as view:
        return crc32c(view[header.position + ATTRIBUTES_AT : header.position + header.size]) == header.crc


def stamp(data: bytearray, header: BatchHeader, *, base_offset: int, leader_epoch: int) -> None:
    """Write offset and leader epoch into the batch in place."""
    STAMP.pack_into(data, header.position, base_offset, header.size - LENGTH_OVERHEAD, leader_epoch)


def with_max_timestamp(data: bytes, header: BatchHeader, timestamp_ms: int) -> tuple[bytes, list[BatchHeader]]:
    """A lone batch with another largest timestamp, and a new CRC."""
    changed = bytearray(data)
    TIMESTAMP.pack_into(changed, header.position + MAX_TIMESTAMP_AT, timestamp_ms)
    with memoryview(changed) as view:
        crc = crc32c(view[header.position + ATTRIBUTES_AT : header.position + header.size])
    CRC.pack_into(changed, header.position + CRC_AT, crc)
    return bytes(changed), [header._replace(max_timestamp=timestamp_ms, crc=crc)]


def stamp_append_time(data: bytearray, header: BatchHeader, *, timestamp_ms: int) -> None:
    """Turn a batch into LogAppendTime: attribute bit, max timestamp, new CRC."""
    start = header.position
    ATTRIBUTES.pack_into(data, start + ATTRIBUTES_AT, header.attributes | APPEND_TIME)
    TIMESTAMP.pack_into(data, start + MAX_TIMESTAMP_AT, timestamp_ms)
    with memoryview(data) as view:
        crc = crc32c(view[start + ATTRIBUTES_AT : start + header.size])
    CRC.pack_into(data, start + CRC_AT, crc)
