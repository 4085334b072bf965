"""What is believed of a directory, what is read again, and what is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import CorruptionError
from headrace.storage.damage import is_damage
from headrace.storage.log import Log, verify
from headrace.storage.memory import MemoryFiles
from headrace.storage.recovery import examine
from headrace.storage.topic_config import TopicConfig
from headrace.testing.logs import append, make_batch, read_records, sync

PATH = "topics/orders-0"
CONFIG = TopicConfig()
SMALL = replace(CONFIG, segment_bytes=400, index_interval_bytes=100)
FIRST = f"{PATH}/{0:020d}.log"


def open_log(files: MemoryFiles, config: TopicConfig = CONFIG) -> Log:
    return Log.open(files, PATH, config, now_ms=1)


def filled(files: MemoryFiles, count: int, config: TopicConfig = CONFIG) -> Log:
    log = open_log(files, config)
    for number in range(count):
        append(log, make_batch([b"%d-%d" % (number, n) for n in range(2)], timestamp_ms=1000 + number))
    return log


def cut(files: MemoryFiles, path: str, size: int) -> None:
    file = files.open(path)
    file.truncate(size)
    file.close()


def add(files: MemoryFiles, path: str, content: bytes) -> None:
    files.open(path).append([content])


def test_every_cut_point_of_the_last_three_batches_leaves_the_whole_batches() -> None:
    files = MemoryFiles()
    log = filled(files, 6)
    content = files.load(FIRST)
    assert content is not None
    ends = [log.locate(0, 1 << 20, 2 * n).size_bytes for n in range(1, 7)]  # type: ignore[union-attr]
    for size in range(ends[2], ends[5] + 1):
        files = MemoryFiles()
        filled(files, 0)
        add(files, FIRST, content[:size])
        found = examine(files, PATH, CONFIG, now_ms=1)
        whole = sum(end <= size for end in ends)
        assert found.end_offset == 2 * whole
        assert (found.cuts == []) == (size in ends)
        assert len(files.load(FIRST) or b"") == size, "to look changes nothing"
        log = open_log(files)
        assert [offset for offset, _ in read_records(log)] == list(range(2 * whole))
        assert files.load(FIRST) == content[: ends[whole - 1]]
        assert append(log, make_batch([b"next"])).base_offset == 2 * whole
        assert verify(log) == []


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\xff" * 100, b"garbage", bytes(range(256)) * 5])
def test_zeros_and_garbage_behind_the_last_batch_are_cut(garbage: bytes) -> None:
    files = MemoryFiles()
    filled(files, 4)
    add(files, FIRST, garbage)
    log = open_log(files)
    assert log.end_offset == 8
    assert [(cut.lost_bytes, cut.reason) for cut in log.recovered] == [(len(garbage), "torn write")]


def test_missing_durable_bytes_are_corruption_and_nothing_is_touched() -> None:
    files = MemoryFiles()
    filled(files, 4).checkpoint()
    size = files.open(FIRST).size
    cut(files, FIRST, size - 1)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            open_log(files)
    assert files.open(FIRST).size == size - 1


def test_a_missing_segment_below_the_recovery_point_is_corruption() -> None:
    files = MemoryFiles()
    log = filled(files, 20, SMALL)
    log.close()
    files.remove(f"{PATH}/{log.segments()[1].base_offset:020d}.log")
    with pytest.raises(CorruptionError):
        open_log(files, SMALL)


def test_a_clean_close_leaves_nothing_to_scan() -> None:
    files = MemoryFiles()
    filled(files, 50, SMALL).close()
    found = examine(files, PATH, SMALL, now_ms=1)
    assert (found.scanned_bytes, found.end_offset, found.recovery_point) == (0, 100, 100)
    before = {name: files.load(f"{PATH}/{name}") for name in files.names(PATH)}
    open_log(files, SMALL).close()
    assert {name: files.load(f"{PATH}/{name}") for name in files.names(PATH)} == before


def test_after_a_crash_only_the_last_segment_is_scanned() -> None:
    files = MemoryFiles()
    log = filled(files, 50, SMALL)
    log.checkpoint()
    found = examine(files, PATH, SMALL, now_ms=1)
    assert found.scanned_bytes == log.segments()[-1].size_bytes
    assert found.end_offset == 100


def test_what_a_crash_left_is_durable_before_it_is_believed() -> None:
    files = MemoryFiles()
    filled(files, 5)
    log = open_log(files)
    assert log.flushed_offset == log.recovery_point == log.end_offset == 10


@pytest.mark.parametrize("extension", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "garbage"])
def test_indexes_are_built_again(extension: str, damage: str) -> None:
    files = MemoryFiles()
    log = filled(files, 40, SMALL)
    times = [log.offset_for_timestamp(1000 + number) for number in range(41)]
    log.close()
    bases = [segment.base_offset for segment in log.segments()]
    stored = [files.load(f"{PATH}/{base:020d}.{extension}") for base in bases]
    for base in bases:
        path = f"{PATH}/{base:020d}.{extension}"
        if damage == "missing":
            files.remove(path)
        elif damage == "torn":
            cut(files, path, files.open(path).size // 2)
        else:
            files.store(path, b"garbage" * 30)
    log = open_log(files, SMALL)
    assert [log.offset_for_timestamp(1000 + number) for number in range(41)] == times
    assert len(read_records(log)) == 80
    assert [files.load(f"{PATH}/{base:020d}.{extension}") for base in bases[:-1]] == stored[:-1]


def test_an_index_that_was_dropped_from_memory_comes_back() -> None:
    files = MemoryFiles()
    log = filled(files, 100, SMALL)
    sync(log)
    assert len(log.segments()) > 20
    for offset in (0, 150, 40, 199, 80, 3):
        span = log.locate(offset, 1, 200)
        assert span is not None
        assert span.read()
    warm = [segment for segment in log._shelf.segments if segment.index is not None]
    assert len(warm) <= 6


def test_a_lost_checkpoint_costs_time_and_nothing_else() -> None:
    files = MemoryFiles()
    filled(files, 40, SMALL).close()
    files.store(f"{PATH}/recovery-point", b"77\nxxxxxxxx\n")
    log = open_log(files, SMALL)
    assert log.end_offset == 80
    assert len(read_records(log)) == 80


def test_segments_behind_a_torn_one_go() -> None:
    files = MemoryFiles()
    log = filled(files, 40, SMALL)
    torn = log.segments()[2]
    path = f"{PATH}/{torn.base_offset:020d}.log"
    cut(files, path, torn.size_bytes - 3)
    log = open_log(files, SMALL)
    assert torn.base_offset <= log.end_offset < torn.end_offset
    assert [offset for offset, _ in read_records(log)] == list(range(log.end_offset))
    append(log, make_batch([b"next"]))
    log.close()
    assert len(read_records(open_log(files, SMALL))) == log.end_offset


def test_removed_segments_that_come_back_are_ignored() -> None:
    files = MemoryFiles()
    log = filled(files, 40, SMALL)
    log.checkpoint()
    ghost = files.load(FIRST)
    assert ghost is not None
    log.delete_before(40)
    sync(log)
    assert not files.exists(FIRST)
    files.store(FIRST, ghost)
    log = open_log(files, SMALL)
    assert log.start_offset == 40
    assert not files.exists(FIRST)


def test_a_flipped_bit_in_the_middle_is_damage_and_no_torn_write() -> None:
    batches = [make_batch([b"%d" % n * 30]) for n in range(3)]
    tail = bytearray(b"".join(batches))
    for number, start in ((1, len(batches[0])), (2, len(batches[0]) + len(batches[1]))):
        tail[start : start + 8] = number.to_bytes(8, "big")
    for bit in range(len(batches[0]) * 8):
        if 12 * 8 <= bit < 16 * 8:
            continue  # the leader epoch
        flipped = bytearray(tail)
        flipped[bit // 8] ^= 1 << bit % 8
        assert is_damage(bytes(flipped), 0, 0), bit


def test_a_page_that_was_never_written_is_no_damage() -> None:
    batches = [make_batch([b"%d" % n * 3000], timestamp_ms=9) for n in range(3)]
    tail = bytearray(b"".join(batches))
    for number, start in ((1, len(batches[0])), (2, len(batches[0]) + len(batches[1]))):
        tail[start : start + 8] = number.to_bytes(8, "big")
    for at in (0, 512, 1024):
        holed = bytearray(tail)
        holed[at : at + 512] = bytes(512)
        assert not is_damage(bytes(holed), 0, 0)
    mangled = bytearray(tail)
    mangled[700:720] = b"\xaa" * 20
    assert is_damage(bytes(mangled), 0, 0), "valid batches follow, and there is no hole"
    assert not is_damage(bytes(mangled[: len(batches[0])]), 0, 0), "the last write may be torn in any way"
