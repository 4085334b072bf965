"""What lies in a segment is checked when it is read, whoever wrote it; what is whole before the damage is served."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.core.errors import CorruptionError, DiskFailedError
from headrace.storage.checked_ranges import CheckedRanges
from headrace.storage.log import Log
from headrace.storage.span import Span
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, compact, make_batch, read_records, records_in, sync
from headrace.wire import batch

PATH = "topics/orders-0"
FIRST = f"{PATH}/{0:020d}.log"
CONFIG = replace(TopicConfig(), segment_bytes=1 << 20, index_interval_bytes=400)
BATCHES = 40


def written_here(files: FaultyFiles, config: TopicConfig = CONFIG) -> Log:
    """A log whose every byte this process has written and synced."""
    log = Log.open(files, PATH, config, now_ms=1)
    for number in range(BATCHES):
        append(log, make_batch([b"%d" % number * 10, b"-%d" % number]))
    sync(log)
    return log


def place_of(files: FaultyFiles, number: int) -> batch.BatchHeader:
    return list(batch.headers(files.peek(FIRST)))[number]


def read(span: Span | None, *, cold: bool) -> bytes:
    assert span is not None
    data = span.read() if cold else span.read_now()
    assert data is not None
    return bytes(data)


@pytest.mark.parametrize("cold", [False, True])
def test_bits_that_flip_under_a_running_broker_are_not_served(cold: bool) -> None:
    for seed in range(300):
        rng = Random(seed)
        files = FaultyFiles()
        log = written_here(files)
        right = set(records_in(files.peek(FIRST)))
        files.flip(FIRST, rng.randrange(8 * len(files.peek(FIRST))))
        found = 0
        offset = 0
        while offset < log.end_offset:
            span = log.locate(offset, rng.choice((1, 900, 1 << 20)), log.end_offset)
            assert span is not None
            try:
                data = read(span, cold=cold)
            except CorruptionError:
                found += 1
                offset += 1
                continue
            assert data and set(records_in(data)) <= right, seed
            assert offset < span.next_offset
            offset = span.next_offset
        assert found, seed


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("byte", [3, 9, 13, 16, 18, 70], ids=["offset", "length", "epoch", "magic", "crc", "record"])
def test_whole_batches_before_the_damage_are_served_and_the_error_names_the_place(byte: int, cold: bool) -> None:
    files = FaultyFiles()
    log = written_here(files)
    damaged = place_of(files, 25)
    files.flip(FIRST, 8 * (damaged.position + byte) + 1)
    span = log.locate(0, 1 << 20, log.end_offset)
    assert span is not None
    assert [offset for offset, _ in records_in(read(span, cold=cold))] == list(range(50))
    assert span.next_offset == 50
    assert span.damage is not None and f"position {damaged.position}" in str(span.damage)
    with pytest.raises(CorruptionError, match=f"offset 50.* position {damaged.position}"):
        read(log.locate(50, 1 << 20, log.end_offset), cold=cold)
    with pytest.raises(CorruptionError):
        span.verify()
    files.flip(FIRST, 8 * (damaged.position + byte) + 1)
    span.verify()
    assert len(records_in(read(span, cold=cold))) == 2 * BATCHES


def test_what_lies_behind_a_damaged_batch_is_served() -> None:
    files = FaultyFiles()
    log = written_here(files)
    files.flip(FIRST, 8 * (place_of(files, 25).position + 70))
    for offset in range(52, 2 * BATCHES):
        found = records_in(read(log.locate(offset, 1 << 20, log.end_offset), cold=False))
        assert found[0][0] == offset - offset % 2 and found[-1][0] == 2 * BATCHES - 1


def test_reads_that_fail_pass_when_the_disk_is_well_again() -> None:
    files = FaultyFiles()
    files.cold = True
    log = written_here(files)
    files.fail("read", path=".log", repeat=True)
    with pytest.raises(DiskFailedError):
        read(log.locate(0, 1 << 20, log.end_offset), cold=True)
    files.heal()
    assert len(read_records(log)) == 2 * BATCHES


def keyed(number: int) -> bytes:
    return batch.build([(b"key-%d" % number, b"%d" % number)], timestamp_ms=1)


def test_a_log_with_gaps_whose_place_cannot_be_found_is_looked_for_in_a_worker() -> None:
    """To find an offset between gaps is to read: what goes wrong there must not come to the loop."""
    files = FaultyFiles()
    config = replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    log = Log.open(files, PATH, config, now_ms=1)
    for number in range(30):
        append(log, keyed(number % 20))
    log.roll_if_due(10**15)
    append(log, keyed(100))
    assert compact(log, now_ms=10**15) is not None
    assert log.segments()[0].size_bytes
    files.fail("read", repeat=True)
    span = log.locate(15, 1 << 20, log.end_offset)
    assert span is not None and span.read_now() is None
    with pytest.raises(DiskFailedError):
        span.read()
    files.heal()
    assert records_in(bytes(span.read()))[0][0] >= 15


def test_compaction_copies_no_damage_that_came_while_it_ran() -> None:
    """Batches that stay are read a second time when the first one that goes is found."""
    files = FaultyFiles()
    config = replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    log = Log.open(files, PATH, config, now_ms=1)
    for number in (*range(30), 29, 30):
        append(log, keyed(number))
    log.roll_if_due(10**15)
    append(log, keyed(100))
    log.checkpoint()
    reads = 0

    def block(operation: str, path: str) -> None:
        nonlocal reads
        if operation == "read" and path == FIRST:
            reads += 1
            if reads == 3:  # once for the keys, once to choose what stays
                files.flip(FIRST, 8 * 100)

    files.on_block = block
    with pytest.raises(CorruptionError):
        compact(log, now_ms=10**15)
    assert reads >= 3


def test_what_was_found_whole_is_believed_for_a_while_but_not_once_pages_were_dropped() -> None:
    files = FaultyFiles()
    log = written_here(files)

    def value_of_the_first() -> bytes | None:
        return records_in_without_a_check(read(log.locate(0, 1 << 20, log.end_offset), cold=False))

    right = value_of_the_first()
    bit = 8 * 70
    files.flip(FIRST, bit)
    assert value_of_the_first() != right, "that it is believed is what makes it cheap"
    log.doubt()
    with pytest.raises(CorruptionError):
        value_of_the_first()
    files.flip(FIRST, bit)
    assert value_of_the_first() == right
    files.flip(FIRST, bit)
    files.cold = True
    span = log.locate(60, 1 << 20, log.end_offset)
    assert span is not None and span.read_now() is None, "a page is missing"
    files.cold = False
    with pytest.raises(CorruptionError):
        value_of_the_first()


def records_in_without_a_check(data: bytes) -> bytes | None:
    return next(iter(batch.records(data, next(iter(batch.headers(data)))))).value


def test_ranges_that_were_checked_are_those_and_no_others() -> None:
    for seed in range(200):
        rng = Random(seed)
        ranges, truth = CheckedRanges(), [False] * 64
        for _ in range(12):
            start, end = sorted(rng.sample(range(65), 2))
            if rng.random() < 0.5:
                ranges.add(start, end)
                truth[start:end] = [True] * (end - start)
            assert ranges.covers(start, end) == all(truth[start:end])
