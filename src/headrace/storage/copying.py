"""What a follower appends: the batches of its leader, byte for byte.

Rules:
- Offsets and epochs are kept. They go up; where the leader has compacted its log, offsets are missing. Only what is
  committed is ever compacted: above the leader's high watermark nothing may be missing.
- A batch that is damaged, cut off, of an epoch that the leader cannot have, or that does not come after what is there
  is never appended, and nothing of the rest is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import ApiError, CorruptionError, ErrorCode
from headrace.storage.swapping import note_gap
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.storage.log import Log


def append_copied(log: Log, data: bytes, *, leader_epoch: int, high_watermark: int, now_ms: int) -> None:
    """Append batches of the leader of `leader_epoch`, which says that `high_watermark` is committed.

    Raises StorageError; ApiError(offset_not_available) if offsets are missing that the leader cannot have compacted, or
    does not know yet that it could. Then nothing was appended.
    """
    headers = list(batch.headers(data))
    end_offset, epoch, gap = log.end_offset, log.epochs.latest, -1
    for header in headers:
        if header.base_offset > end_offset:
            gap = header.base_offset
            if gap > high_watermark:
                raise ApiError(
                    ErrorCode.offset_not_available, f"offsets {end_offset} to {gap - 1} are missing and not committed"
                )
        if not epoch <= header.leader_epoch <= leader_epoch or header.base_offset < end_offset:
            raise CorruptionError(f"{log.path}: a batch at offset {header.base_offset} does not fit")
        if header.last_offset_delta < 0 or not batch.crc_matches(data, header):
            raise CorruptionError(f"{log.path}: a batch at offset {header.base_offset} is damaged")
        end_offset, epoch = header.base_offset + header.last_offset_delta + 1, header.leader_epoch
    if not headers or headers[-1].position + headers[-1].size != len(data):
        raise CorruptionError(f"{log.path}: what the leader sent ends within a batch")
    if gap >= 0:
        note_gap(log, gap)
    log.append(bytearray(data), headers, leader_epoch=epoch, now_ms=now_ms, stamp=False)
