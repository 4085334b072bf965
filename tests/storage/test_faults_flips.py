"""Bit flips: never served, never a reason to cut committed data; what can be rebuilt is rebuilt."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from headrace.core.errors import CorruptionError, StorageError
from headrace.storage.log import Log
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, make_batch, read_bytes, read_records, records_in, sync
from headrace.wire import batch

PATH = "topics/orders-0"
CONFIG = replace(TopicConfig(), segment_bytes=2000, index_interval_bytes=200)
LOGS = ".log"
REBUILT = (".index", ".timeindex", ".producers", "leader-epochs", "recovery-point", "start-offset")


def open_log(files: FaultyFiles) -> Log:
    return Log.open(files, PATH, CONFIG, now_ms=1)


@cache
def template(closed: bool) -> tuple[FaultyFiles, bytes, int]:
    """A log of several segments, all of it durable; cleanly closed or killed. Its bytes and its end."""
    files = FaultyFiles()
    log = open_log(files)
    rng = Random(1)
    for number in range(40):
        values = [b"%d" % number * rng.randrange(1, 20) for _ in range(rng.randrange(1, 4))]
        producer = number % 3 - 1
        content = make_batch(values, timestamp_ms=1000 + number, producer_id=producer, sequence=-1)
        if producer >= 0:
            sent = sum(COUNTS.get((producer, before), 0) for before in range(number))
            COUNTS[producer, number] = len(values)
            content = make_batch(values, timestamp_ms=1000 + number, producer_id=producer, sequence=sent)
        append(log, content, leader_epoch=number // 15)
        if number % 4 == 3:
            sync(log)
    content = read_bytes(log)
    end_offset = log.end_offset
    if closed:
        log.close()
    else:
        sync(log)
    return files.copy(), content, end_offset


COUNTS: dict[tuple[int, int], int] = {}


def serve(log: Log, rng: Random, want: bytes) -> str:
    """Read everything, hot and cold: the right bytes, or an error."""
    try:
        for cold in rng.sample((True, False), 2):
            assert read_bytes(log, cold=cold, max_bytes=rng.choice((1, 700, 100_000))) == want
    except CorruptionError:
        return "found on read"
    return "harmless"


def files_of(files: FaultyFiles, endings: tuple[str, ...]) -> list[str]:
    return [path for path in files.paths() if path.endswith(endings)]


def flip_in(path: str, files: FaultyFiles, rng: Random) -> None:
    files.flip(path, rng.randrange(len(files.peek(path)) * 8))


def last_epoch_differs(before: bytes, after: bytes) -> bool:
    """The one blind spot: no CRC covers a leader epoch, and that of the last batch may be newer than all history."""
    at = list(batch.headers(before))[-1].position + 12
    return before[at : at + 4] != after[at : at + 4]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_flip_in_a_segment_is_never_served_and_cuts_nothing(closed: bool) -> None:
    start, want, end_offset = template(closed)
    paths = files_of(start, (LOGS,))
    assert len(paths) >= 3
    sizes = [len(start.peek(path)) for path in paths]
    outcomes: Counter[str] = Counter()
    for seed in range(1500):
        rng = Random(seed)
        files = start.copy()
        path = rng.choices(paths, sizes)[0]
        flip_in(path, files, rng)
        damaged = files.peek(path)
        if path == paths[-1] and last_epoch_differs(start.peek(path), damaged):
            continue
        try:
            log = open_log(files)
        except CorruptionError:
            outcomes["found at start"] += 1
            assert files.peek(path) == damaged
            continue
        assert log.end_offset == end_offset, seed
        outcome = serve(log, rng, want)
        outcomes[outcome] += 1
        assert files.peek(path) == damaged
    assert outcomes["harmless"] == 0, outcomes


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_flip_beside_the_segments_costs_nothing(closed: bool) -> None:
    start, want, end_offset = template(closed)
    paths = files_of(start, REBUILT)
    assert {path.rpartition("/")[2].lstrip("0123456789") for path in paths} >= {
        ".index",
        ".timeindex",
        "recovery-point",
    }
    producers = open_log(start.copy()).producers.items()
    for seed in range(1000):
        rng = Random(seed)
        files = start.copy()
        path = rng.choice(paths)
        if not files.peek(path):
            continue
        flip_in(path, files, rng)
        log = open_log(files)
        assert log.end_offset == end_offset, (seed, path)
        assert serve(log, rng, want) == "harmless", (seed, path)
        assert [number for number, _ in log.producers.items()] == [number for number, _ in producers], (seed, path)
        append(log, make_batch([b"more"]), leader_epoch=9)
        sync(log)
        log.close()
        assert open_log(files.killed()).end_offset == end_offset + 1


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_missing_files_beside_the_segments_cost_nothing(closed: bool) -> None:
    start, want, end_offset = template(closed)
    for seed in range(200):
        rng = Random(seed)
        files = start.copy()
        for path in rng.sample(files_of(start, REBUILT), rng.randrange(1, 5)):
            files.remove(path)
        log = open_log(files)
        assert log.end_offset == end_offset
        assert serve(log, rng, want) == "harmless", seed


def test_a_flip_while_the_log_is_open_is_found_by_a_reader_who_waits_for_the_disk() -> None:
    start, want, _ = template(True)
    paths = files_of(start, (LOGS,))
    for seed in range(500):
        rng = Random(seed)
        files = start.copy()
        log = open_log(files)
        flip_in(rng.choice(paths), files, rng)
        files.cold = True
        with pytest.raises(CorruptionError):
            assert read_bytes(log, max_bytes=rng.choice((1, 700, 100_000))) == want


def test_several_flips_anywhere_never_end_in_anything_but_a_clean_error() -> None:
    start, want, _ = template(False)
    for seed in range(1000):
        rng = Random(seed)
        files = start.copy()
        for _ in range(rng.randrange(2, 6)):
            path = rng.choice(start.paths())
            if files.peek(path):
                flip_in(path, files, rng)
        try:
            log = open_log(files)
            found = read_records(log, cold=rng.random() < 0.5)
        except StorageError:
            continue
        assert found == records_in(want)[: len(found)], seed


ENDINGS: dict[str, list[bytes | None]] = {
    "plain": [b"plain"],
    "one bit": [b"ends in one bit@"],
    "null": [None],
    "empty": [b""],
    "longer": [b"x" * 150 + b"\x80"],
    "two": [b"a", None],
}


@pytest.mark.parametrize("values", ENDINGS.values(), ids=ENDINGS)
def test_no_flip_in_the_last_durable_batch_cuts_it(values: list[bytes | None]) -> None:
    """It is above the recovery point, so only the damage itself tells that it is no torn write. Every bit of it."""
    start = FaultyFiles()
    log = open_log(start)
    append(log, make_batch([b"before"]))
    append(log, make_batch(values))
    sync(log)
    path = files_of(start, (LOGS,))[-1]
    before = start.peek(path)
    first = list(batch.headers(before))[-1].position
    for bit in range(first * 8, len(before) * 8):
        files = start.copy()
        files.flip(path, bit)
        if last_epoch_differs(before, files.peek(path)):
            continue
        with pytest.raises(CorruptionError):
            read_bytes(open_log(files))
        assert len(files.peek(path)) == len(before), bit
