"""A slow disk: what the loop calls waits for no disk; what waits is left to workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from headrace.core.errors import ApiError
from headrace.storage.log import Log
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, make_batch, read_records, records_in, sync

PATH = "topics/orders-0"
CONFIG = replace(TopicConfig(), segment_bytes=3000, index_interval_bytes=500)


def filled() -> tuple[FaultyFiles, Log]:
    """Thirty segments: far more than keep their index in memory."""
    files = FaultyFiles()
    log = Log.open(files, PATH, CONFIG, now_ms=1)
    for number in range(300):
        append(log, make_batch([b"%d" % number * 30] * 2, timestamp_ms=number))
        if number % 10 == 0:
            sync(log)
    sync(log)
    assert len(log.segments()) > 20
    return files, log


def test_nothing_that_the_loop_calls_waits_for_the_disk() -> None:
    files, log = filled()
    waits: Counter[tuple[str, str]] = Counter()
    rng = Random(1)
    for turn in range(1000):
        files.on_block = lambda operation, path: waits.update([(operation, path)])
        log.delete_before(log.start_offset + turn % 2)
        offset = rng.randrange(log.start_offset, log.end_offset)
        span = log.locate(offset, rng.choice((1, 500, 100_000)), log.flushed_offset)
        if span is not None:
            span.read_now()
        lookup = log.find_time(rng.randrange(300))
        append(log, make_batch([b"%d" % turn * 20], timestamp_ms=300))
        pending = log.begin_sync()
        files.on_block = None
        assert pending is not None
        pending.run()
        lookup.run()
        log.end_sync(pending)
    assert waits == {}


def test_a_reader_of_cold_segments_gets_what_a_hot_one_gets() -> None:
    _, log = filled()
    want = dict(read_records(log))
    rng = Random(2)
    for _ in range(2000):
        offset, limit = rng.randrange(log.end_offset), rng.randrange(log.end_offset + 1)
        max_bytes = rng.choice((1, 700, 5000))
        span = log.locate(offset, max_bytes, limit)
        data = b"" if span is None else span.read_now()
        if data is None:
            assert span is not None
            data = span.read()
        found = records_in(data)
        assert all(want[number] == value and number < limit for number, value in found)
        if limit >= offset + 2:  # a batch holds two
            assert offset in dict(found)
            assert span is not None
            assert found[-1][0] + 1 == span.next_offset


def test_only_a_few_indexes_stay_in_memory() -> None:
    _, log = filled()
    for offset in [*range(0, log.end_offset, 7), *range(log.end_offset - 1, 0, -7)]:
        span = log.locate(offset, 1, log.end_offset)
        assert span is not None
        span.read()
    assert sum(segment.index is not None for segment in log._shelf.segments) <= 6


def test_a_cold_span_of_a_segment_that_goes_is_out_of_range() -> None:
    _, log = filled()
    span = log.locate(0, 100, log.end_offset)
    assert span is not None
    assert span.read_now() is None
    log.delete_before(log.flushed_offset)
    sync(log)
    with pytest.raises(ApiError):
        span.read()
