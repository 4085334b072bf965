"""What a log promises to those who append and read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, DiskFullError, ErrorCode, StorageError
from headrace.storage.log import Appended, Log, verify
from headrace.storage.memory import MemoryFiles
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, make_batch, read_records, records_in, sync
from headrace.wire import batch

PATH = "topics/orders-0"
CONFIG = TopicConfig()
SMALL = replace(CONFIG, segment_bytes=400, index_interval_bytes=0)
HOUR_MS = 3_600_000


def open_log(files: MemoryFiles | FaultyFiles | None = None, config: TopicConfig = CONFIG, now_ms: int = 1) -> Log:
    return Log.open(files if files is not None else MemoryFiles(), PATH, config, now_ms=now_ms)


def put(log: Log, count: int = 1, *, value: bytes = b"v", timestamp_ms: int = 1, now_ms: int = 1) -> Appended:
    content = make_batch([value] * count, timestamp_ms=timestamp_ms)
    return append(log, content, now_ms=now_ms)


def offsets_from(log: Log, offset: int, max_bytes: int = 1 << 20, limit_offset: int | None = None) -> list[int]:
    """Base offsets of the batches that a fetch gets."""
    span = log.locate(offset, max_bytes, log.end_offset if limit_offset is None else limit_offset)
    if span is None:
        return []
    data = span.read_now()
    assert data is not None
    assert data == span.read()
    return [header.base_offset for header in batch.headers(data)]


def code_of(raised: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return raised.value.code


# ---------------------------------------------------------------------- append


def test_offsets_follow_each_other_and_are_stamped_with_the_leader_epoch() -> None:
    log = open_log()
    assert append(log, make_batch([b"a", b"b"]), leader_epoch=3) == Appended(0, 1, -1)
    assert append(log, make_batch([b"c"]), leader_epoch=4) == Appended(2, 2, -1)
    data = log.locate(0, 1 << 20, 3).read_now()  # type: ignore[union-attr]
    assert data is not None
    assert [(header.base_offset, header.leader_epoch) for header in batch.headers(data)] == [(0, 3), (2, 4)]
    assert records_in(data) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert log.end_offset == 3
    assert log.size_bytes == len(data)


def test_append_time_is_stamped_where_the_topic_wants_it() -> None:
    log = open_log(config=replace(CONFIG, timestamp_type="LogAppendTime"))
    assert put(log, timestamp_ms=5, now_ms=77).append_time_ms == 77
    data = log.locate(0, 1 << 20, 1).read_now()  # type: ignore[union-attr]
    assert data is not None
    header = next(batch.headers(data))
    assert batch.crc_matches(data, header)
    assert batch.uses_append_time(header)
    assert header.max_timestamp == 77
    assert log.offset_for_timestamp(77) == (77, 0, 0)


@pytest.mark.parametrize(("timestamp_ms", "fits"), [(100, True), (89, False), (90, True), (120, True), (121, False)])
def test_producers_times_must_be_near_the_brokers(timestamp_ms: int, fits: bool) -> None:
    log = open_log(config=replace(CONFIG, timestamp_before_max_ms=10, timestamp_after_max_ms=20))
    if fits:
        put(log, timestamp_ms=timestamp_ms, now_ms=100)
        return
    with pytest.raises(ApiError) as raised:
        put(log, timestamp_ms=timestamp_ms, now_ms=100)
    assert code_of(raised) is ErrorCode.invalid_timestamp
    assert log.end_offset == log.size_bytes == 0


def test_a_leaders_batches_keep_their_offsets_and_epochs() -> None:
    log = open_log()
    data = bytearray(batch.build([(None, b"a")], timestamp_ms=1, base_offset=5, leader_epoch=7))
    assert log.append(data, list(batch.headers(data)), leader_epoch=-1, now_ms=1, stamp=False).base_offset == 5
    assert log.end_offset == 6
    assert log.epochs.entries == ((7, 5),)
    with pytest.raises(ApiError):
        log.append(data, list(batch.headers(data)), leader_epoch=-1, now_ms=1, stamp=False)


def test_a_segment_is_sealed_before_it_grows_too_large() -> None:
    log = open_log(config=SMALL)
    for _ in range(20):
        put(log)
    segments = log.segments()
    assert len(segments) > 3
    assert all(segment.size_bytes <= 400 for segment in segments)
    assert [segment.sealed for segment in segments] == [True] * (len(segments) - 1) + [False]
    assert [s.end_offset for s in segments[:-1]] == [s.base_offset for s in segments[1:]]
    assert len(read_records(log)) == 20


def test_a_batch_larger_than_a_segment_gets_one_to_itself() -> None:
    log = open_log(config=SMALL)
    put(log)
    put(log, value=b"x" * 1000)
    put(log)
    assert [segment.base_offset for segment in log.segments()] == [0, 1, 2]


def test_a_segment_is_sealed_when_it_grows_too_old() -> None:
    log = open_log(config=replace(CONFIG, segment_ms=100))
    put(log, timestamp_ms=1000, now_ms=1000)
    put(log, timestamp_ms=1100, now_ms=1100)
    assert len(log.segments()) == 1
    put(log, timestamp_ms=1101, now_ms=1101)
    assert [segment.base_offset for segment in log.segments()] == [0, 2]
    assert not log.roll_if_due(1201)
    assert log.roll_if_due(1202)
    assert not log.roll_if_due(9999), "an empty segment never grows old"


def test_a_segment_never_spans_more_offsets_than_its_index_can_tell() -> None:
    log = open_log()
    put(log)
    for base_offset in (2**31 - 2, 2**31 - 1):
        data = bytearray(batch.build([(None, b"a")], timestamp_ms=1, base_offset=base_offset, leader_epoch=0))
        log.append(data, list(batch.headers(data)), leader_epoch=-1, now_ms=1, stamp=False)
    assert [segment.base_offset for segment in log.segments()] == [0, 2**31 - 1]


def test_a_full_disk_refuses_an_append_and_takes_it_later() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put(log, value=b"first")
    size = log.size_bytes
    files.space_left = 10
    with pytest.raises(DiskFullError):
        append(log, make_batch([b"second"], producer_id=4, sequence=0))
    assert (log.end_offset, log.size_bytes, len(log.producers)) == (1, size, 0)
    assert log.failed is None
    assert offsets_from(log, 0) == [0]
    files.space_left = None
    assert append(log, make_batch([b"second"], producer_id=4, sequence=0)).duplicate is False
    assert read_records(log) == [(0, b"first"), (1, b"second")]


def test_a_full_disk_at_a_roll_changes_nothing() -> None:
    files = FaultyFiles()
    log = open_log(files, SMALL)
    while len(log.segments()) == 1:
        put(log)
    sync(log)
    end_offset = log.end_offset
    files.space_left = 0
    for _ in range(10):
        with pytest.raises(DiskFullError):
            put(log, value=b"x" * 300)
    files.space_left = None
    assert put(log, value=b"x" * 300).base_offset == end_offset
    assert len(read_records(log)) == end_offset + 1


def test_a_failed_disk_takes_the_log_offline() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put(log)
    files.fail("write")
    with pytest.raises(DiskFailedError):
        put(log)
    assert log.end_offset == 1
    assert isinstance(log.failed, DiskFailedError)
    with pytest.raises(DiskFailedError):
        put(log)
    with pytest.raises(DiskFailedError):
        log.locate(0, 1, 1)


# ---------------------------------------------------------------------- read


def test_an_offset_inside_a_batch_gets_the_whole_batch() -> None:
    log = open_log()
    for _ in range(5):
        put(log, 3)
    for offset in range(15):
        assert offsets_from(log, offset) == list(range(offset - offset % 3, 15, 3))


def test_offsets_outside_the_log_are_out_of_range() -> None:
    log = open_log()
    put(log, 3)
    log.delete_before(1)
    assert log.locate(3, 1, 3) is None
    assert offsets_from(log, 1) == [0]
    for offset in (-1, 0, 4):
        with pytest.raises(ApiError) as raised:
            log.locate(offset, 1, 3)
        assert code_of(raised) is ErrorCode.offset_out_of_range


def test_nothing_at_or_above_the_limit_is_read() -> None:
    log = open_log()
    for number in range(6):
        put(log, 2)
        if number == 3:
            sync(log)
    for limit_offset in range(13):
        expected = list(range(0, limit_offset - limit_offset % 2, 2))
        assert offsets_from(log, 0, limit_offset=limit_offset) == expected, limit_offset
    assert offsets_from(log, 7, limit_offset=log.flushed_offset) == [6]
    assert offsets_from(log, 8, limit_offset=log.flushed_offset) == []
    assert offsets_from(log, 9, limit_offset=log.flushed_offset) == []


def test_at_least_one_batch_comes_however_large_it_is() -> None:
    log = open_log()
    for _ in range(4):
        put(log, value=b"x" * 10_000)
    assert offsets_from(log, 1, 1) == [1]
    assert offsets_from(log, 1, 25_000) == [1, 2]


def test_a_fetch_ends_close_to_the_bytes_that_were_asked_for() -> None:
    log = open_log()
    for _ in range(1000):
        put(log, value=b"x" * 50)
    for max_bytes in (1, 4096, 20_000, 60_000):
        offset = 0
        while offset < 1000:
            span = log.locate(offset, max_bytes, 1000)
            assert span is not None
            data = span.read_now()
            assert data is not None
            assert 0 < len(data) <= max(max_bytes, 4096 + 200)
            assert next(batch.headers(data)).base_offset == offset
            offset = span.next_offset


def test_two_readers_do_not_disturb_each_other() -> None:
    log = open_log(config=SMALL)
    for _ in range(50):
        put(log)
    for offset in (0, 30, 5, 31, 6, 49, 0):
        assert offsets_from(log, offset)[0] == offset


def test_a_reader_at_the_end_goes_on_in_the_next_segment() -> None:
    log = open_log(config=SMALL)
    offset = 0
    for number in range(40):
        put(log)
        span = log.locate(offset, 1 << 20, log.end_offset)
        assert span is not None
        assert records_in(span.read()) == [(number, b"v")]
        offset = span.next_offset


def test_records_removed_under_a_reader_are_out_of_range() -> None:
    log = open_log(config=SMALL)
    for _ in range(30):
        put(log)
    span = log.locate(0, 1 << 20, 30)
    search = log.find_time(0)
    assert span is not None
    log.delete_before(25)
    for read in (span.read, span.read_now, search.run):
        with pytest.raises(ApiError) as raised:
            read()
        assert code_of(raised) is ErrorCode.offset_out_of_range


def test_records_cut_under_a_reader_are_out_of_range() -> None:
    log = open_log()
    for _ in range(30):
        put(log)
    span = log.locate(10, 1 << 20, 30)
    assert span is not None
    log.truncate(12, now_ms=1)
    for read in (span.read, span.read_now):
        with pytest.raises(ApiError):
            read()


def test_places_that_were_remembered_are_forgotten_when_the_log_is_cut() -> None:
    log = open_log()
    for number in range(10):
        put(log)
        assert offsets_from(log, number) == [number], "each fetch remembers where the next one begins"
    log.truncate(3, now_ms=1)
    for number in range(3, 20):
        put(log, value=b"longer" * number)
    assert all(offsets_from(log, offset)[0] == offset for offset in range(20))


def test_a_damaged_header_is_corruption_and_no_crash() -> None:
    files = FaultyFiles()
    log = open_log(files)
    for _ in range(10):
        put(log, 3)
    path = f"{PATH}/{0:020d}.log"
    assert verify(log) == []
    files.flip(path, (log.size_bytes // 2 + 16) * 8)
    assert [(fault.offset, fault.reason) for fault in verify(log)] == [(15, "no batch")]
    span = log.locate(29, 1 << 20, 30)
    assert span is not None
    with pytest.raises(CorruptionError):
        span.read()


def test_gaps_in_the_offsets_are_stepped_over() -> None:
    log = open_log(config=replace(SMALL, cleanup_policy=("compact",)))
    bases = [3, 4, 10, 40, 41, 100, 101, 102, 250, 300]
    for base_offset in bases:
        data = bytearray(batch.build([(b"k", b"v")], timestamp_ms=1, base_offset=base_offset, leader_epoch=0))
        log.append(data, list(batch.headers(data)), leader_epoch=-1, now_ms=1, stamp=False)
    for offset in range(log.start_offset, 301):
        assert offsets_from(log, offset, 1)[0] == min(base for base in bases if base >= offset)


# ---------------------------------------------------------------------- durability


def test_the_flushed_offset_moves_only_with_a_sync_that_covers_it() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put(log)
    pending = log.begin_sync()
    assert pending is not None
    assert pending.end_offset == 1
    put(log)
    pending.run()
    assert log.flushed_offset == 0
    log.end_sync(pending)
    assert log.flushed_offset == 1
    sync(log)
    assert log.flushed_offset == 2
    assert log.begin_sync() is None


def test_a_sync_covers_segments_that_were_rolled_since_the_last_one() -> None:
    files = FaultyFiles()
    log = open_log(files, SMALL)
    for _ in range(20):
        put(log)
    synced: list[str] = []
    files.on_block = lambda operation, path: synced.append(path) if operation == "sync" else None
    sync(log)
    assert len([path for path in synced if path.endswith(".log")]) == len(log.segments())


def test_a_sync_that_was_given_up_is_made_up_for_by_the_next_one() -> None:
    files = FaultyFiles()
    log = open_log(files, SMALL)
    for _ in range(20):
        append(log, make_batch([b"v"]), leader_epoch=5)
    assert log.begin_sync() is not None
    sync(log)
    assert log.flushed_offset == 20
    assert files.exists(f"{PATH}/leader-epochs")
    assert files.exists(f"{PATH}/{0:020d}.index")


def test_appending_reading_rolling_and_retaining_never_wait_for_a_disk() -> None:
    files = FaultyFiles()
    log = open_log(files, replace(SMALL, retention_bytes=1000))
    blocked: list[tuple[str, str]] = []
    files.on_block = lambda operation, path: blocked.append((operation, path))
    for number in range(60):
        put(log)
        span = log.locate(max(number - 3, log.start_offset), 1 << 20, log.end_offset)
        assert span is not None
        assert span.read_now()
        log.retain(1)
        log.roll_if_due(1)
    log.delete_before(log.end_offset)
    assert log.begin_sync() is not None
    assert blocked == []


# ---------------------------------------------------------------------- retention


def test_old_segments_go_by_time_and_the_open_one_is_sealed_first() -> None:
    log = open_log(config=replace(SMALL, retention_ms=HOUR_MS))
    for number in range(30):
        put(log, timestamp_ms=1000 + number, now_ms=1000)
    assert log.retain(1000 + HOUR_MS) == []
    bases = [segment.base_offset for segment in log.segments()]
    middle = log.segments()[2]
    assert log.retain(middle.max_timestamp + HOUR_MS + 1) == bases[:3]
    assert log.start_offset == bases[3]
    assert log.retain(5000 + HOUR_MS) == bases[3:]
    assert (log.start_offset, log.end_offset, log.size_bytes) == (30, 30, 0)
    assert put(log).base_offset == 30


def test_the_log_shrinks_to_its_size_limit_but_not_below() -> None:
    log = open_log(config=replace(SMALL, retention_bytes=1000))
    for _ in range(30):
        put(log)
    log.retain(1)
    assert 1000 <= log.size_bytes < 1400
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments())
    assert log.retain(1) == []


def test_compacted_topics_and_unlimited_ones_keep_everything() -> None:
    for config in (replace(SMALL, cleanup_policy=("compact",), retention_ms=1), replace(SMALL, retention_ms=-1)):
        log = open_log(config=config)
        for _ in range(10):
            put(log)
        assert log.retain(10 * HOUR_MS) == []


def test_nothing_above_the_high_watermark_goes() -> None:
    log = open_log(config=replace(SMALL, retention_ms=0))
    for _ in range(10):
        put(log)
    second = log.segments()[1]
    assert log.retain(1000, limit_offset=second.end_offset - 1) == [0]


def test_removed_segments_free_their_files_with_the_next_sync() -> None:
    files = MemoryFiles()
    log = open_log(files, replace(SMALL, retention_ms=0))
    for _ in range(10):
        put(log)
    sync(log)
    log.retain(1000)
    sync(log)
    assert [name for name in files.names(PATH) if name.endswith((".log", ".index", ".timeindex"))] == [f"{10:020d}.log"]
    log.close()
    again = open_log(files)
    assert (again.start_offset, again.end_offset) == (10, 10)


def test_deleted_records_stay_deleted() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    for _ in range(10):
        put(log, 2)
    log.delete_before(7)
    assert log.start_offset == 7
    assert log.segments()[0].base_offset <= 7 < log.segments()[0].end_offset
    log.delete_before(3)
    assert log.start_offset == 7
    with pytest.raises(ApiError):
        log.delete_before(21)
    sync(log)
    log.close(clean=False)
    assert open_log(files, SMALL).start_offset == 7


# ---------------------------------------------------------------------- time


def test_the_first_record_at_or_after_a_time_is_found() -> None:
    log = open_log(config=replace(SMALL, index_interval_bytes=150))
    times = [10, 20, 20, 15, 40, 30, 50, 45, 60, 70, 5, 80]
    for time in times:
        put(log, 2, timestamp_ms=time)
    for wanted in range(82):
        expected = next(((time, 2 * n, 0) for n, time in enumerate(times) if time >= wanted), None)
        assert log.offset_for_timestamp(wanted) == expected, wanted
    assert log.max_timestamp() == (80, 22, 0)


def test_a_time_inside_a_batch_is_found_to_the_record() -> None:
    log = open_log()
    base = bytearray(batch.build([(None, b"a"), (None, b"b"), (None, b"c")], timestamp_ms=100))
    put(log, timestamp_ms=50)
    headers = list(batch.headers(base))
    records = list(batch.records(bytes(base), headers[0]))
    assert [record.timestamp for record in records] == [100, 100, 100]
    append(log, bytes(base))
    assert log.offset_for_timestamp(51) == (100, 1, 0)
    log.delete_before(2)
    assert log.offset_for_timestamp(0) == (100, 2, 0)
    assert log.max_timestamp() == (100, 2, 0)


def test_the_latest_time_below_the_start_offset_does_not_count() -> None:
    log = open_log()
    for time in (10, 90, 20, 30, 25):
        put(log, timestamp_ms=time)
    log.delete_before(2)
    assert log.max_timestamp() == (30, 3, 0)
    assert log.offset_for_timestamp(40) is None


def test_an_empty_log_has_no_times() -> None:
    log = open_log()
    assert log.max_timestamp() is None
    assert log.offset_for_timestamp(0) is None


# ---------------------------------------------------------------------- end


def test_a_closed_log_refuses_everything() -> None:
    log = open_log()
    put(log)
    log.close()
    for use in (lambda: put(log), lambda: log.locate(0, 1, 1), log.begin_sync, lambda: log.retain(1)):
        with pytest.raises(StorageError):
            use()


def test_a_deleted_log_leaves_nothing_behind() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    for _ in range(10):
        put(log)
    sync(log)
    span = log.locate(0, 1, 10)
    assert span is not None
    log.delete()
    assert files.names("topics") == []
    with pytest.raises(ApiError):
        span.read()
    log.delete()


def test_a_log_that_was_never_written_to_is_closed_without_touching_the_disk() -> None:
    files = FaultyFiles()
    open_log(files).close()
    log = open_log(files)
    before = files.operations
    log.close()
    assert files.operations == before
    log = open_log(files)
    assert put(log).base_offset == 0
    log.close()
    assert read_records(open_log(files)) == [(0, b"v")]
