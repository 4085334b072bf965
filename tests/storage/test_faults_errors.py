"""Full disks and failing ones: an error, nothing half visible, nothing acknowledged that is not durable."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.core.errors import DiskFailedError, DiskFullError, StorageError
from headrace.storage.log import Log
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, make_batch, read_records, sync

PATH = "topics/orders-0"
CONFIG = TopicConfig()


def open_log(files: FaultyFiles, config: TopicConfig = CONFIG) -> Log:
    return Log.open(files, PATH, config, now_ms=1)


def values(log: Log, *, cold: bool = False) -> list[bytes | None]:
    return [value for _, value in read_records(log, cold=cold)]


def test_a_full_disk_refuses_the_batch_whole_and_takes_it_when_there_is_room() -> None:
    content = make_batch([b"second" * 20])
    for room in range(0, len(content), 3):
        files = FaultyFiles()
        log = open_log(files)
        append(log, make_batch([b"first"]))
        sync(log)
        size = log.size_bytes
        files.space_left = room
        with pytest.raises(DiskFullError):
            append(log, content)
        assert (log.end_offset, log.size_bytes, values(log)) == (1, size, [b"first"])
        files.heal()
        assert append(log, content).base_offset == 1
        sync(log)
        assert values(open_log(files.killed())) == [b"first", b"second" * 20]


def test_a_crash_after_a_full_disk_finds_no_half_batch() -> None:
    files = FaultyFiles()
    log = open_log(files)
    append(log, make_batch([b"first"]))
    sync(log)
    files.space_left = 30
    with pytest.raises(DiskFullError):
        append(log, make_batch([b"second"]))
    after = files.killed()
    log = open_log(after)
    assert values(log) == [b"first"]
    append(log, make_batch([b"third"]))
    assert values(log) == [b"first", b"third"]


def test_a_full_disk_does_not_spoil_the_producers_sequence() -> None:
    files = FaultyFiles()
    log = open_log(files)
    append(log, make_batch([b"a"], producer_id=7, sequence=0))
    files.space_left = 10
    with pytest.raises(DiskFullError):
        append(log, make_batch([b"b"], producer_id=7, sequence=1))
    files.heal()
    where = append(log, make_batch([b"b"], producer_id=7, sequence=1))
    assert (where.duplicate, values(log)) == (False, [b"a", b"b"])
    assert append(log, make_batch([b"b"], producer_id=7, sequence=1)).duplicate


def test_a_disk_that_is_full_at_a_roll_rolls_later() -> None:
    for seed in range(150):
        rng = Random(seed)
        files = FaultyFiles()
        log = open_log(files, replace(CONFIG, segment_bytes=500))
        want: list[bytes] = []
        for number in range(20):
            files.space_left = rng.choice((None, None, rng.randrange(600)))
            value = b"%d " % number * rng.randrange(1, 60)
            try:
                append(log, make_batch([value]))
                want.append(value)
                sync(log)
            except DiskFullError:
                pass
            assert values(log) == want, seed
        files.heal()
        sync(log)
        assert log.flushed_offset == log.end_offset == len(want)
        assert values(open_log(files.power_cut(rng)), cold=True) == want, seed


def test_a_failed_write_leaves_nothing() -> None:
    for nth in (1, 2, 3):
        files = FaultyFiles()
        log = open_log(files)
        append(log, make_batch([b"first"]))
        sync(log)
        files.fail("write", nth=nth, path=".log")
        done = [b"first"]
        for number in range(3):
            try:
                append(log, make_batch([b"%d" % number]))
                done.append(b"%d" % number)
            except DiskFailedError:
                break
        assert len(done) == nth
        assert (log.end_offset, log.flushed_offset) == (nth, 1)
        with pytest.raises(StorageError):
            append(log, make_batch([b"a disk that failed is not tried again"]))
        assert values(open_log(files.killed())) == done


def test_a_failed_sync_is_never_acknowledged_and_never_tried_again() -> None:
    files = FaultyFiles()
    log = open_log(files)
    append(log, make_batch([b"first"]))
    sync(log)
    append(log, make_batch([b"second"]))
    files.fail("sync", path=".log")
    pending = log.begin_sync()
    assert pending is not None
    with pytest.raises(DiskFailedError) as raised:
        pending.run()
    log.fail(raised.value)
    assert log.flushed_offset == 1
    with pytest.raises(StorageError):
        append(log, make_batch([b"third"]))
    operations = files.operations
    with pytest.raises(StorageError):
        log.begin_sync()
    assert files.operations == operations
    assert log.flushed_offset == 1
    for seed in range(20):
        found = values(open_log(files.copy() if seed == 0 else files.power_cut(Random(seed))))
        assert found[:1] == [b"first"]


def test_a_failed_read_is_an_error_and_not_an_end() -> None:
    files = FaultyFiles()
    log = open_log(files)
    append(log, make_batch([b"first"]))
    files.cold = True
    files.fail("read", repeat=True, path=".log")
    with pytest.raises(DiskFailedError):
        read_records(log)
    files.heal()
    assert values(log) == [b"first"]


def test_any_single_failing_operation_ends_in_an_error_and_loses_nothing() -> None:
    """EIO in each kind of call in turn, at each of its first calls."""
    kinds = ("write", "sync", "store", "sync_directory", "open", "remove", "rename", "read")
    for kind in kinds:
        for nth in range(1, 12):
            files = FaultyFiles()
            config = replace(CONFIG, segment_bytes=400)
            files.fail(kind, nth=nth)
            want: list[bytes] = []
            flushed = 0
            try:
                log = open_log(files, config)
                for number in range(12):
                    value = b"%d " % number * 30
                    append(log, make_batch([value]))
                    want.append(value)
                    if number % 2:
                        sync(log)
                        flushed = log.flushed_offset
            except StorageError:
                pass
            files.heal()
            found = values(open_log(files.power_cut(Random(nth)), config))
            assert len(found) >= flushed, (kind, nth)
            assert found == want[: len(found)], (kind, nth)


def scattered(files: FaultyFiles, config: TopicConfig) -> tuple[FaultyFiles, list[str]]:
    """After a crash: a first segment that is durable, a second that is lost, and a third of the same, lost, history."""
    log = open_log(files, config)
    append(log, make_batch([b"durable" * 20]))
    sync(log)
    append(log, make_batch([b"lost" * 60]))
    append(log, make_batch([b"old" * 60]))
    after = files.killed()
    segments = [path for path in after.paths() if path.endswith(".log")]
    assert len(segments) == 3
    after.remove(segments[1])
    return after, segments


def test_a_segment_of_a_lost_history_never_comes_back() -> None:
    """Its file is removed by recovery; a power cut may bring it back just where the new history has arrived."""
    config = replace(CONFIG, segment_bytes=200)
    for seed in range(60):
        files, _ = scattered(FaultyFiles(), config)
        files = files.copy()
        log = open_log(files, config)
        assert values(log) == [b"durable" * 20]
        append(log, make_batch([b"new" * 60]))
        append(log, make_batch([b"newer" * 40]))
        found = values(open_log(files.power_cut(Random(seed)), config))
        assert found == [b"durable" * 20, b"new" * 60, b"newer" * 40][: len(found)], seed


def test_a_full_disk_during_recovery_does_not_remove_a_later_segment() -> None:
    config = replace(CONFIG, segment_bytes=200)
    files, _ = scattered(FaultyFiles(), config)
    files = files.copy()
    files.space_left = 0
    log = open_log(files, config)
    files.space_left = None
    want = [b"durable" * 20, b"new" * 60, b"newer" * 40, b"newest" * 30]
    for value in want[1:]:
        append(log, make_batch([value]))
    sync(log)
    assert values(log) == want
    assert values(open_log(files.killed(), config), cold=True) == want
