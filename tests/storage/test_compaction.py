"""What compaction takes, what it leaves, and when."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from headrace.core.errors import CorruptionError, DiskFullError, StorageError
from headrace.storage.compaction import Compaction, survey
from headrace.storage.keymap import ENTRY_BYTES, HASH_BYTES, KeyMap
from headrace.storage.log import Log, verify
from headrace.storage.swapping import complete, finish, install, reap
from headrace.storage.topic_config import TopicConfig
from headrace.storage.transactions import Marker, append_marker
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import MAX_BATCH_BYTES, compact, read_bytes, sync
from headrace.wire import batch
from headrace.wire.records import append_varint, seal

PATH = "topics/orders-0"
HORIZON = 0x40
CONFIG = replace(
    TopicConfig(),
    cleanup_policy=("compact",),
    segment_bytes=1000,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=100,
    file_delete_delay_ms=50,
)
ONE = replace(CONFIG, segment_bytes=1 << 20)
Item = tuple[bytes | None, bytes | None]


def open_log(files: FaultyFiles | None = None, config: TopicConfig = CONFIG) -> Log:
    return Log.open(files or FaultyFiles(), PATH, config, now_ms=1)


def put(log: Log, *items: Item, time_ms: int = 1, leader_epoch: int = 0, **options: object) -> int:
    """Append one batch; returns its base offset."""
    data = bytearray(batch.build(items, timestamp_ms=time_ms, **options))  # type: ignore[arg-type]
    headers = batch.check(data, max_batch_bytes=MAX_BATCH_BYTES)
    return log.append(data, headers, leader_epoch=leader_epoch, now_ms=time_ms).base_offset


def fill(log: Log, count: int, *, keys: int = 5, time_ms: int = 1) -> None:
    for number in range(count):
        put(log, (b"k%d" % (number % keys), b"value %d" % number), time_ms=time_ms)


def roll(log: Log) -> None:
    log._roll()


def run(work: Compaction) -> None:
    while not work.finished:
        work.step(lambda: True)


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    data = read_bytes(log)
    return [(r.offset, r.key, r.value) for h in batch.headers(data) for r in batch.records(data, h)]


def headers(log: Log) -> list[batch.BatchHeader]:
    return list(batch.headers(read_bytes(log)))


def test_the_newest_record_of_each_key_stays_where_it_is() -> None:
    log = open_log(config=ONE)
    fill(log, 100)
    roll(log)
    before = log.size_bytes
    assert compact(log, now_ms=2) is not None
    assert pairs(log) == [(95 + n, b"k%d" % n, b"value %d" % (95 + n)) for n in range(5)]
    assert (log.start_offset, log.end_offset) == (0, 100)
    assert log.size_bytes < before / 10
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments())
    assert [(segment.base_offset, segment.end_offset) for segment in log.segments()] == [(0, 100), (100, 100)]
    assert log.mark.first_dirty_offset == 100
    assert verify(log) == []


def test_a_reader_may_begin_at_an_offset_that_is_gone() -> None:
    log = open_log(config=ONE)
    fill(log, 100)
    roll(log)
    compact(log, now_ms=2)
    for offset in range(100):
        span = log.locate(offset, 1, 100)
        assert span is not None
        first = next(batch.headers(span.read()))
        assert first.base_offset + first.last_offset_delta == max(offset, 95)


def test_the_open_segment_and_what_is_not_durable_are_left_alone() -> None:
    log = open_log()
    fill(log, 50)
    dirt = survey(log, 2, log.end_offset)
    assert (dirt.dirty_bytes, dirt.is_due(0.0)) == (0, False), "nothing is durable yet"
    compact(log, now_ms=2)
    active = log.segments()[-1]
    assert log.mark.first_dirty_offset == active.base_offset
    offsets = [offset for offset, _, _ in pairs(log)]
    assert [offset for offset in offsets if offset >= active.base_offset] == list(range(active.base_offset, 50))


def test_a_log_is_due_when_more_than_the_ratio_of_it_is_dirty() -> None:
    log = open_log(config=replace(CONFIG, segment_bytes=1 << 20))
    fill(log, 10, keys=10)
    roll(log)
    compact(log, now_ms=2)
    clean_bytes = survey(log, 2, log.end_offset).clean_bytes
    fill(log, 10, keys=10)
    roll(log)
    log.checkpoint()
    dirt = survey(log, 2, log.end_offset)
    assert (dirt.clean_bytes, dirt.dirty_bytes) == (clean_bytes, clean_bytes)
    assert (dirt.is_due(0.49), dirt.is_due(0.5)) == (True, False)


def test_records_younger_than_the_least_lag_stay() -> None:
    log = open_log(config=replace(CONFIG, min_compaction_lag_ms=100))
    put(log, (b"k", b"1"), time_ms=10)
    roll(log)
    put(log, (b"k", b"2"), time_ms=90)
    roll(log)
    put(log, (b"k", b"3"), time_ms=91)
    assert compact(log, now_ms=109) is None
    assert compact(log, now_ms=110) is not None
    assert len(pairs(log)) == 3, "what follows is too young to count"
    assert compact(log, now_ms=190) is not None
    assert [value for _, _, value in pairs(log)] == [b"2", b"3"]


def test_a_record_that_has_waited_too_long_makes_a_log_due() -> None:
    log = open_log(config=replace(CONFIG, max_compaction_lag_ms=100, min_cleanable_dirty_ratio=1.0))
    put(log, (b"k", b"1"), time_ms=10)
    put(log, (b"k", b"2"), time_ms=10)
    assert not log.roll_if_due(110)
    assert log.roll_if_due(111), "the open segment must not keep it from being compacted"
    assert compact(log, now_ms=110) is None
    assert compact(log, now_ms=111) is not None
    assert [value for _, _, value in pairs(log)] == [b"2"]


def test_a_tombstone_stays_for_its_time_after_it_was_first_compacted() -> None:
    log = open_log()
    put(log, (b"k", b"1"), (b"other", b"1"), time_ms=10)
    put(log, (b"k", None), (b"x", b"1"), time_ms=20)
    roll(log)
    compact(log, now_ms=1000)
    assert pairs(log) == [(1, b"other", b"1"), (2, b"k", None), (3, b"x", b"1")]
    marked = headers(log)[1]
    assert (marked.attributes & HORIZON, batch.horizon_of(marked), marked.max_timestamp) == (HORIZON, 1100, 20)
    assert [record.timestamp for record in batch.records(read_bytes(log), marked)] == [20, 20]
    for now_ms, left in ((1099, 3), (1100, 2)):
        put(log, (b"y", b"%d" % now_ms), time_ms=now_ms)
        roll(log)
        compact(log, now_ms=now_ms)
        assert len([key for _, key, _ in pairs(log) if key != b"y"]) == left
    assert log.segments()[0].min_timestamp == 10, "a horizon is no record's time"


def test_the_last_batch_of_a_segment_stays_if_only_as_an_empty_one() -> None:
    log = open_log(config=replace(CONFIG, delete_retention_ms=0))
    put(log, (b"a", b"1"))
    put(log, (b"k", None), codec=1)
    roll(log)
    compact(log, now_ms=10)
    put(log, (b"b", b"1"))
    roll(log)
    fill(log, 1)
    log.config = replace(log.config, segment_bytes=100)  # so that they are not merged
    compact(log, now_ms=20)
    assert pairs(log)[:2] == [(0, b"a", b"1"), (2, b"b", b"1")]
    empty = headers(log)[1]
    assert (empty.base_offset, empty.count, empty.size) == (1, 0, batch.HEADER_BYTES)
    again = open_log(log._files)  # type: ignore[arg-type]
    assert again.end_offset == 4


@pytest.mark.parametrize("codec", range(5))
def test_batches_keep_their_codec_their_offsets_and_their_producer(codec: int) -> None:
    log = open_log()
    put(log, (b"a", b"1" * 50), (b"b", b"2"), (b"c", b"3"), time_ms=5, codec=codec)
    put(log, (b"b", b"4"), time_ms=9, codec=codec)
    roll(log)
    old = headers(log)[0]
    compact(log, now_ms=10)
    new = headers(log)[0]
    assert pairs(log) == [(0, b"a", b"1" * 50), (2, b"c", b"3"), (3, b"b", b"4")]
    assert new.attributes & 7 == codec
    same = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "base_timestamp", "max_timestamp")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]


def test_append_time_stays_what_it_was() -> None:
    log = open_log(config=replace(CONFIG, timestamp_type="LogAppendTime"))
    put(log, (b"a", None), (b"b", b"1"), time_ms=50)
    put(log, (b"b", b"2"), time_ms=60)
    roll(log)
    compact(log, now_ms=70)
    data = read_bytes(log)
    times = [record.timestamp for header in batch.headers(data) for record in batch.records(data, header)]
    assert times == [50, 60]


def test_records_without_a_key_go() -> None:
    log = open_log()
    put(log, (None, b"1"), (b"a", b"2"))
    put(log, (None, b"3"))
    roll(log)
    put(log, (None, b"4"))
    compact(log, now_ms=2)
    assert [value for _, _, value in pairs(log)] == [b"2", b"4"]


def raw_batch(body: bytes, count: int) -> bytes:
    return seal(
        body,
        base_offset=0,
        leader_epoch=-1,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=1,
        max_timestamp=1,
        producer=(-1, -1, -1),
        count=count,
    )


def raw_record(delta: int, key: bytes, tail: bytes) -> bytes:
    inside = bytearray(2)
    append_varint(inside, delta)
    append_varint(inside, len(key))
    inside += key + b"\x02v" + tail
    out = bytearray()
    append_varint(out, len(inside))
    return bytes(out + inside)


def put_raw(log: Log, body: bytes, count: int) -> None:
    data = bytearray(raw_batch(body, count))
    log.append(data, batch.check(data, max_batch_bytes=MAX_BATCH_BYTES), leader_epoch=0, now_ms=1)


def test_headers_that_are_no_text_are_kept_as_they_are() -> None:
    log = open_log()
    strange = raw_record(1, b"b", b"\x02\x04\xff\xfe\x01")  # one header, its name is no UTF-8, it has no value
    put_raw(log, raw_record(0, b"a", b"\x00") + strange, 2)
    put(log, (b"a", b"2"))
    roll(log)
    compact(log, now_ms=2)
    data = read_bytes(log)
    assert strange in data
    assert [header.count for header in batch.headers(data)] == [1, 1]


def test_a_batch_that_cannot_be_opened_stays_as_it_is() -> None:
    log = open_log()
    put_raw(log, b"\x7f" * 40, 2)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    roll(log)
    before = read_bytes(log)[: batch.HEADER_BYTES + 40]
    compact(log, now_ms=2)
    assert read_bytes(log)[: batch.HEADER_BYTES + 40] == before
    assert [header.base_offset for header in headers(log)] == [0, 3]


def test_a_damaged_batch_ends_the_pass_and_nothing_has_happened() -> None:
    files = FaultyFiles()
    log = open_log(files)
    fill(log, 30)
    roll(log)
    log.checkpoint()
    path = f"{PATH}/{0:020d}.log"
    files.flip(path, 8 * 300)
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    with pytest.raises(CorruptionError):
        run(work)
    work.abandon()
    assert not [name for name in files.paths() if name.endswith(".cleaned")]


def test_a_segment_that_loses_nothing_is_not_written_again() -> None:
    log = open_log()
    fill(log, 5, keys=5)
    roll(log)
    work = compact(log, now_ms=2)
    assert work is not None and work.bytes_read > 0 and work.bytes_written == 0
    assert log.mark == (5, 0)


def test_small_segments_become_one_up_to_the_size_of_a_segment() -> None:
    log = open_log(config=replace(CONFIG, segment_bytes=1 << 20))
    for number in range(20):
        put(log, (b"k%02d" % number, b"x" * 100))
        roll(log)
    size = log.segments()[0].size_bytes
    log.config = replace(log.config, segment_bytes=7 * size)
    compact(log, now_ms=2)
    assert [segment.size_bytes // size for segment in log.segments()] == [7, 7, 6, 0]
    assert [offset for offset, _, _ in pairs(log)] == list(range(20))


# ---------------------------------------------------------------------- memory


def test_a_full_map_leaves_the_rest_to_the_next_pass() -> None:
    log = open_log(config=replace(CONFIG, segment_bytes=1 << 20))
    fill(log, 100, keys=50)
    roll(log)
    marks = []
    while (work := compact(log, now_ms=2, map_bytes=20 * ENTRY_BYTES)) is not None:
        marks.append(work.first_dirty_offset)
    assert marks == [20, 40, 60, 80, 100]
    assert [offset for offset, _, _ in pairs(log)] == list(range(50, 100))


@pytest.mark.parametrize("length", [8, 32, 33, 1000])
@pytest.mark.parametrize("limit_bytes", [300_000, 500_000, 1_000_000, 1_300_000])
def test_the_map_keeps_within_its_memory(limit_bytes: int, length: int) -> None:
    keys = (b"%d" % number + b"k" * (length - len(str(number))) for number in range(100_000))
    tracemalloc.start()
    keymap = KeyMap(limit_bytes)
    try:
        for number, key in enumerate(keys):
            if not keymap.put(key, 2**40 + number):
                break
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit_bytes
    assert len(keymap) == keymap.capacity


def test_a_long_key_is_never_taken_for_a_short_one() -> None:
    keymap = KeyMap(1 << 20)
    long = b"k" * 100
    keymap.put(long, 7)
    (name,) = keymap.newest
    assert len(name) == HASH_BYTES and keymap.get(name) == -1
    assert (keymap.get(long), keymap.get(b"k" * 99)) == (7, -1)


# ---------------------------------------------------------------------- producers and transactions


def test_the_last_batch_of_a_producer_tells_its_sequence_when_its_records_are_gone() -> None:
    files = FaultyFiles()
    log = open_log(files, ONE)
    for sequence in range(3):
        put(log, (b"k", b"%d" % sequence), producer_id=7, producer_epoch=2, base_sequence=sequence)
    fill(log, 30, keys=1)
    put(log, (b"k", b"last"))
    roll(log)
    compact(log, now_ms=2)
    assert [(header.base_offset, header.count) for header in headers(log)] == [(2, 0), (32, 1), (33, 1)]
    for path in files.paths():
        if path.endswith(".producers"):
            files.remove(path)
    known = open_log(files).producers.get(7)
    assert known is not None and (known.epoch, known.next_sequence) == (2, 3)


def transactional(log: Log, *items: Item, sequence: int, time_ms: int = 1) -> None:
    put(
        log,
        *items,
        producer_id=9,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
        time_ms=time_ms,
    )


def end(log: Log, *, commit: bool) -> None:
    append_marker(log, 9, 0, Marker(commit, 0), leader_epoch=0, now_ms=1)


def stable(log: Log) -> int:
    return log.producers.transactions.first_unstable(log.end_offset)


def test_aborted_records_go_and_hide_nothing() -> None:
    log = open_log()
    put(log, (b"a", b"kept"))
    transactional(log, (b"a", b"aborted"), sequence=0)
    end(log, commit=False)
    transactional(log, (b"b", b"committed"), sequence=1)
    end(log, commit=True)
    roll(log)
    compact(log, now_ms=2)
    found = [(offset, value) for offset, key, value in pairs(log) if key in (b"a", b"b")]
    assert found == [(0, b"kept"), (3, b"committed")]
    assert [h.base_offset for h in headers(log) if batch.is_control(h)] == [2, 4]


def test_a_marker_goes_when_its_records_are_gone_and_its_time_is_over() -> None:
    log = open_log()
    transactional(log, (b"a", b"aborted"), sequence=0)
    end(log, commit=False)
    transactional(log, (b"b", b"committed"), sequence=1)
    end(log, commit=True)
    put(log, (b"b", b"newer"), producer_id=9, producer_epoch=0, base_sequence=2)  # what the producer sent last

    def run(now_ms: int) -> list[int]:
        put(log, (b"z", b"%d" % now_ms))
        roll(log)
        compact(log, now_ms=now_ms)
        return [header.base_offset for header in headers(log) if batch.is_control(header)]

    assert run(1000) == [1, 3]
    assert log.producers.transactions.aborted.entries() == [(0, 1, 9)]
    assert run(2000) == [1, 3], "their records were there until now"
    assert [batch.horizon_of(h) for h in headers(log) if batch.is_control(h)] == [2100, 2100]
    assert log.producers.transactions.aborted.entries() == [], "readers need not be told any more"
    assert run(2099) == [1, 3]
    assert run(2100) == []
    again = open_log(log._files)  # type: ignore[arg-type]
    assert again.producers.transactions.aborted.entries() == []
    assert not again.producers.transactions.unstable


def test_nothing_of_an_open_transaction_is_touched() -> None:
    log = open_log()
    fill(log, 20, keys=1)
    roll(log)
    transactional(log, (b"k0", b"open"), sequence=0)
    roll(log)
    fill(log, 20, keys=1)
    roll(log)
    compact(log, now_ms=2, stable_offset=stable(log))
    assert [offset for offset, _, _ in pairs(log)] == [19, *range(20, 41)]
    end(log, commit=True)
    compact(log, now_ms=2, stable_offset=stable(log))
    assert [offset for offset, key, _ in pairs(log) if key == b"k0"] == [40]


# ---------------------------------------------------------------------- readers, retention, crashes


def test_a_reader_finishes_on_a_segment_that_was_replaced_and_then_it_goes() -> None:
    files = FaultyFiles()
    log = open_log(files)
    fill(log, 30)
    roll(log)
    before = read_bytes(log)
    late, later = log.locate(0, 1 << 20, 30), log.locate(0, 1 << 20, 30)
    assert late is not None and later is not None
    compact(log, now_ms=100)
    assert before.startswith(late.read())
    assert reap(log, 149) > 0
    assert reap(log, 150) == 0
    with pytest.raises(StorageError):  # which a client tries again; OFFSET_OUT_OF_RANGE would make it jump
        later.read()


def test_a_pass_gives_way_to_retention() -> None:
    log = open_log()
    fill(log, 60)
    roll(log)
    log.checkpoint()
    log.config = replace(CONFIG, segment_bytes=1)  # one by one
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    swap = work.step(lambda: True)
    assert swap is not None
    log.delete_before(swap.replaced[-1].end_offset)
    assert not install(log, swap, 2)
    assert work.overtaken
    sync(log)
    with pytest.raises(StorageError):
        run(work)
    assert read_bytes(log) and verify(log) == []


def test_retention_and_compaction_share_a_log() -> None:
    log = open_log(config=replace(ONE, cleanup_policy=("compact", "delete"), retention_ms=100))
    fill(log, 50, time_ms=10)
    roll(log)
    fill(log, 50, keys=7, time_ms=200)
    roll(log)
    compact(log, now_ms=201)
    assert len(pairs(log)) == 7
    fill(log, 20, time_ms=290)
    removed = log.retain(301)
    assert removed == [0]
    sync(log)
    assert {key for _, key, _ in pairs(log)} == {b"k%d" % n for n in range(5)}
    assert compact(log, now_ms=302) is None
    assert open_log(log._files).start_offset == log.start_offset == 100  # type: ignore[arg-type]


def test_a_compacted_log_opens_without_its_indexes_and_under_another_policy() -> None:
    files = FaultyFiles()
    log = open_log(files)
    for epoch in range(10):
        put(log, (b"k", b"%d" % epoch), leader_epoch=epoch)
        put(log, (b"k%d" % (epoch % 2), b"x"), leader_epoch=epoch)
    roll(log)
    compact(log, now_ms=2)
    before = pairs(log), log.epochs.entries
    for path in files.paths():
        if path.endswith(("index", ".producers")):
            files.remove(path)
    again = open_log(files.killed(), replace(CONFIG, cleanup_policy=("delete",)))
    assert (pairs(again), again.epochs.entries) == before
    assert again.mark == log.mark


def test_a_sync_that_was_given_up_does_not_describe_what_was_replaced() -> None:
    files = FaultyFiles()
    log = open_log(files, ONE)
    fill(log, 50)
    log.checkpoint()
    roll(log)
    given_up = log.begin_sync()
    assert given_up is not None and given_up.chores.indexes
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    while (swap := work.step(lambda: True)) is not None:
        assert install(log, swap, 2)
        files.space_left = 0
        sync(log)  # takes back what was given up, and cannot do it
        files.heal()
        swap.run()
        complete(log, swap)
    finish(log, work.first_dirty_offset, work.gone)
    log.checkpoint()
    assert verify(log) == []
    assert open_log(files.killed()).size_bytes == log.size_bytes


def test_times_are_found_after_compaction() -> None:
    log = open_log()
    for number in range(40):
        put(log, (b"k%d" % (number % 3), b"x"), time_ms=100 + number)
    roll(log)
    compact(log, now_ms=1000)
    assert [found.offset if (found := log.offset_for_timestamp(t)) else None for t in (0, 138, 139, 140)] == [
        37,
        38,
        39,
        None,
    ]
    latest = log.max_timestamp()
    assert latest is not None and latest.offset == 39


def test_a_full_disk_leaves_the_log_as_it_was_until_there_is_space() -> None:
    files = FaultyFiles()
    log = open_log(files)
    fill(log, 60)
    roll(log)
    log.checkpoint()
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    swap = work.step(lambda: True)
    assert swap is not None and install(log, swap, 2)
    before = pairs(log)
    sync(log)
    files.space_left = 0
    with pytest.raises(DiskFullError):
        swap.run()
    assert [path for path in files.paths() if path.endswith(".cleaned")]
    assert pairs(log) == before
    files.heal()
    swap.run()
    complete(log, swap)
    sync(log)
    assert not [path for path in files.paths() if path.endswith((".cleaned", ".swap"))]
    assert pairs(log) == before
    assert pairs(open_log(files.killed())) == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_swap_that_was_not_run_is_undone_at_the_next_start(clean: bool) -> None:
    files = FaultyFiles()
    log = open_log(files)
    fill(log, 60)
    roll(log)
    log.checkpoint()
    before = pairs(log)
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    swap = work.step(lambda: True)
    assert swap is not None and install(log, swap, 2)
    assert len(pairs(log)) < len(before)
    log.close(clean=clean)
    again = open_log(files)
    assert pairs(again) == before
    assert not [path for path in files.paths() if path.endswith((".cleaned", ".swap"))]
    assert compact(again, now_ms=2) is not None
    assert len(pairs(again)) == 5


def test_what_is_deleted_during_a_swap_goes_after_it() -> None:
    log = open_log()
    fill(log, 60)
    roll(log)
    log.checkpoint()
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    swap = work.step(lambda: True)
    assert swap is not None and install(log, swap, 2)
    sync(log)
    log.delete_before(58)
    sync(log)
    assert log.segments()[0].base_offset == 0
    swap.run()
    complete(log, swap)
    sync(log)
    assert log.segments()[0].base_offset > 0
    again = open_log(log._files)  # type: ignore[arg-type]
    assert again.start_offset == 58
    assert [offset for offset, _, _ in pairs(again) if offset >= 58] == [58, 59]


def test_a_pass_may_be_interrupted_at_every_step() -> None:
    log = open_log(config=ONE)
    fill(log, 100)
    roll(log)
    log.checkpoint()
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=1 << 20)
    steps = 0
    while not work.finished:
        swap = work.step(lambda: False)
        steps += 1
        if swap is not None:
            assert install(log, swap, 2)
            fill(log, 1)
            sync(log)
            swap.run()
            complete(log, swap)
    assert steps > 200, "a breath after each batch, in both readings"
    finish(log, work.first_dirty_offset, work.gone)
    sync(log)
    assert len(pairs(log)) == 6
