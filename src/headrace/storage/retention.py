"""Which segments of a log have had their time. Pure: numbers in, a number out.

Rules (Kafka's):
- The oldest go first, and only in a row: nothing is removed behind a segment that stays.
- By time: when a segment's newest record is older than `retention_ms`. Records without a timestamp never grow old.
- By size: while the log without its oldest segment would still have `retention_bytes`.
- The open segment never goes by size. When all of it is too old by time, the log rolls first, so that it can go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.storage.segment import SegmentSummary
    from headrace.storage.topic_config import TopicConfig


def expired_segments(segments: Sequence[SegmentSummary], config: TopicConfig, now_ms: int, limit_offset: int) -> int:
    """How many of the oldest segments are to go; all of them if the open one is too old as well.

    Nothing at or above `limit_offset` goes.
    """
    if not config.deletes:
        return 0
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        if not segment.size_bytes or segment.end_offset > limit_offset:
            break
        too_old = 0 <= config.retention_ms < now_ms - segment.max_timestamp and segment.max_timestamp >= 0
        too_much = config.retention_bytes >= 0 and segment.sealed and excess_bytes >= segment.size_bytes
        if not (too_old or too_much):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count
