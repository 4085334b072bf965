"""Record batches, format v2 (magic 2): the unit that is checked, stamped, stored and sent.

Rules:
- The broker treats a batch as opaque: only `check` (header and CRC) and `stamp` run on the hot path.
- `base_offset` and `leader_epoch` lie outside the CRC, so stamping does not touch the checksum.
- Records are opened only by `records` and built only by `build`; decompression is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

HEADER_BYTES: Final = 61
LENGTH_OVERHEAD: Final = 12  # bytes before and including batch_length


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
    count: int


class Record(NamedTuple):
    """One opened record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def check(data: bytes, *, max_batch_bytes: int) -> list[BatchHeader]:
    """Validate what a producer sent: whole batches, magic 2, lengths, counts, CRC, known codec, no control bit.

    Raises ApiError: corrupt_message, invalid_record, unsupported_for_message_format, message_too_large.
    """
    raise NotImplementedError


def headers(data: bytes | memoryview, position: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
    """Headers of the whole batches in `data`, without checking CRCs; a partial batch at the end is left out."""
    raise NotImplementedError


def crc_matches(data: bytes | memoryview, header: BatchHeader) -> bool:
    raise NotImplementedError


def stamp(data: bytearray, header: BatchHeader, *, base_offset: int, leader_epoch: int) -> None:
    """Write offset and leader epoch into the batch in place."""
    raise NotImplementedError


def stamp_append_time(data: bytearray, header: BatchHeader, *, timestamp_ms: int) -> None:
    """Turn a batch into LogAppendTime: attribute bit, max timestamp, new CRC."""
    raise NotImplementedError


def records(data: bytes | memoryview, header: BatchHeader, *, max_bytes: int = 64 * 1024 * 1024) -> Iterator[Record]:
    """Open one batch. Raises ApiError(corrupt_message) for anything malformed or larger than `max_bytes` opened."""
    raise NotImplementedError


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
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """Make a batch of (key, value) records; every record gets the same timestamp and headers."""
    raise NotImplementedError
