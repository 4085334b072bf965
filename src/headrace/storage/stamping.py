"""What happens to batches before they are written: times are checked or set, offsets and leader epoch are stamped.

Rules:
- Nothing is refused after the first byte was changed.
- The cost is per batch. A batch's header tells its first and its largest timestamp; that the records in it agree is
  seen to before (`headrace.record.validation=full`), or not: then one that is too old passes, unlike in Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.batch import stamp, stamp_append_time

if TYPE_CHECKING:
    from headrace.storage.producers import Sent
    from headrace.storage.topic_config import TopicConfig
    from headrace.wire.batch import BatchHeader


@dataclass(slots=True)
class Appended:
    """Where an append landed."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic stamps LogAppendTime
    duplicate: bool = False  # the producer had sent this batch before; the offsets are those of the first time


def stamp_batches(
    data: bytearray,
    headers: Sequence[BatchHeader],
    config: TopicConfig,
    *,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
) -> tuple[int, int, int]:
    """(next offset, newest timestamp, append time or -1). Raises ApiError(invalid_timestamp)."""
    newest = append_time_ms = -1
    if config.timestamp_type == "CreateTime":
        earliest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
        for header in headers:
            newest = max(newest, header.max_timestamp)
            if newest > latest or -1 < header.base_timestamp < earliest:
                raise ApiError(
                    ErrorCode.invalid_timestamp,
                    f"timestamps from {header.base_timestamp} to {header.max_timestamp} are too far from {now_ms}",
                )
    else:
        append_time_ms = newest = now_ms
        for header in headers:
            stamp_append_time(data, header, timestamp_ms=now_ms)
    for header in headers:
        stamp(data, header, base_offset=base_offset, leader_epoch=leader_epoch)
        base_offset += header.last_offset_delta + 1
    return base_offset, newest, append_time_ms


def repeat(first: Sent, last: Sent, config: TopicConfig) -> Appended:
    """The answer to batches that were appended before."""
    append_time_ms = last.timestamp if config.timestamp_type == "LogAppendTime" else -1
    return Appended(first.base_offset, last.last_offset, append_time_ms, duplicate=True)


def follow(headers: Sequence[BatchHeader], next_offset: int) -> tuple[int, int]:
    """(next offset, newest timestamp) of batches that a leader has stamped.

    Raises ApiError(offset_out_of_range) if they do not come after `next_offset`, in order.
    """
    newest = -1
    for header in headers:
        if header.base_offset < next_offset:
            raise ApiError(ErrorCode.offset_out_of_range, f"offset {next_offset} should come next")
        next_offset = header.base_offset + header.last_offset_delta + 1
        newest = max(newest, header.max_timestamp)
    return next_offset, newest
