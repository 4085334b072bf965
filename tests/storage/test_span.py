"""A span knows how far it may reach before it is read, so that readers are told what was aborted up to there."""

from __future__ import annotations

from dataclasses import replace

from headrace.storage.log import Log
from headrace.storage.memory import MemoryFiles
from headrace.storage.span import ColdSpan
from headrace.storage.topic_config import TopicConfig
from headrace.storage.transactions import Marker, append_marker
from headrace.testing.logs import MAX_BATCH_BYTES
from headrace.wire import batch


def test_aborted_transactions_in_a_cold_segment_are_not_missed() -> None:
    config = replace(TopicConfig(), segment_bytes=600, index_interval_bytes=100)
    log = Log.open(MemoryFiles(), "topics/t-0", config, now_ms=1)
    for number in range(40):
        data = bytearray(
            batch.build(
                [(b"k", b"%d" % number)],
                timestamp_ms=1,
                producer_id=5,
                producer_epoch=0,
                base_sequence=number,
                transactional=True,
            )
        )
        log.append(data, batch.check(data, max_batch_bytes=MAX_BATCH_BYTES), leader_epoch=0, now_ms=1)
        append_marker(log, 5, 0, Marker(commit=False, coordinator_epoch=0), leader_epoch=0, now_ms=1)
    log.checkpoint()
    span = log.locate(1, 1 << 20, log.end_offset)  # the first segment's index was dropped long ago
    assert isinstance(span, ColdSpan)
    told = log.aborted_between(1, span.limit_offset)
    data = span.read()
    assert span.next_offset <= span.limit_offset
    records = [h.base_offset for h in batch.headers(data) if not batch.is_control(h)]
    assert records and {first for _, first in told} >= set(records)
