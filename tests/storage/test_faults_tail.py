"""A torn end: recovery keeps the longest valid prefix above the recovery point, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.core.errors import CorruptionError
from headrace.storage.log import Log
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, make_batch, read_records, sync

PATH = "topics/orders-0"
ACTIVE = f"{PATH}/{0:020d}.log"
CONFIG = TopicConfig()
BATCHES = [make_batch([b"%d-%d" % (number, record) * 3 for record in range(1 + number % 3)]) for number in range(6)]
COUNTS = [1 + number % 3 for number in range(6)]


def open_log(files: FaultyFiles, config: TopicConfig = CONFIG) -> Log:
    return Log.open(files, PATH, config, now_ms=1)


def filled(*, synced: int) -> tuple[FaultyFiles, list[int], list[int]]:
    """A log of six batches of which the first `synced` were flushed; where each begins, in bytes and in offsets."""
    files = FaultyFiles()
    log = open_log(files)
    positions, offsets = [0], [0]
    for number, content in enumerate(BATCHES):
        append(log, content)
        positions.append(log.size_bytes)
        offsets.append(log.end_offset)
        if number + 1 == synced:
            sync(log)
    return files.killed(), positions, offsets


def whole_batches(positions: list[int], size: int) -> int:
    return max(number for number, position in enumerate(positions) if position <= size)


def check_goes_on(files: FaultyFiles, want: list[tuple[int, bytes | None]]) -> None:
    """After recovery: the right records, room for more, and a second recovery that finds nothing to do."""
    log = open_log(files)
    assert read_records(log) == want
    where = append(log, make_batch([b"new"]))
    assert where.base_offset == len(want)
    sync(log)
    again = open_log(files.killed())
    assert read_records(again, cold=True) == [*want, (len(want), b"new")]


def test_every_cut_point_of_the_last_three_batches_leaves_the_longest_prefix() -> None:
    template, positions, offsets = filled(synced=3)
    records = read_records(open_log(template.copy()))
    content = template.peek(ACTIVE)
    assert len(content) == positions[-1]
    for size in range(positions[3], positions[6] + 1):
        files = template.copy()
        files.overwrite(ACTIVE, content[:size])
        check_goes_on(files, records[: offsets[whole_batches(positions, size)]])


@pytest.mark.parametrize("tail", ["zeros", "garbage", "zero page then right bytes"])
def test_every_cut_point_with_something_behind_it_leaves_the_longest_prefix(tail: str) -> None:
    template, positions, offsets = filled(synced=3)
    records = read_records(open_log(template.copy()))
    content = template.peek(ACTIVE)
    rng = Random(tail)
    for size in range(positions[3], positions[6]):
        rest = len(content) - size
        fill = {
            "zeros": bytes(rest + rng.randrange(1, 5000)),
            "garbage": rng.randbytes(rest + rng.randrange(5000)),
            "zero page then right bytes": bytes(512) + content[size + 512 :],
        }[tail]
        files = template.copy()
        files.overwrite(ACTIVE, content[:size] + fill)
        kept = whole_batches(positions, size)
        # Zeros may stand where zeros belong: then a batch is whole although its end was lost.
        while kept < 6 and files.peek(ACTIVE)[: positions[kept + 1]] == content[: positions[kept + 1]]:
            kept += 1
        check_goes_on(files, records[: offsets[kept]])


def test_a_file_of_zeros_or_garbage_alone_is_an_empty_log() -> None:
    for content in (bytes(10_000), Random(3).randbytes(10_000), b"\0", b"x"):
        files = FaultyFiles()
        log = open_log(files)
        append(log, BATCHES[0])
        after = files.killed()
        after.overwrite(ACTIVE, content)
        check_goes_on(after, [])


def test_bytes_below_the_recovery_point_are_never_cut() -> None:
    files = FaultyFiles()
    log = open_log(files)
    positions = [0]
    for content in BATCHES:
        append(log, content)
        positions.append(log.size_bytes)
    log.close()
    content = files.peek(ACTIVE)
    for size in range(0, len(content), 7):
        after = files.copy()
        after.overwrite(ACTIVE, content[:size])
        with pytest.raises(CorruptionError):
            open_log(after)
        assert after.peek(ACTIVE) == content[:size]


def test_a_lost_segment_file_below_the_recovery_point_is_corruption() -> None:
    config = replace(CONFIG, segment_bytes=300)
    files = FaultyFiles()
    log = open_log(files, config)
    for content in BATCHES * 3:
        append(log, content)
    log.close()
    segments = [path for path in files.paths() if path.endswith(".log")]
    assert len(segments) > 3
    for lost in segments[1:]:
        after = files.copy()
        after.remove(lost)
        with pytest.raises(CorruptionError):
            open_log(after, config)


def test_a_torn_segment_above_the_recovery_point_takes_the_ones_behind_it_along() -> None:
    config = replace(CONFIG, segment_bytes=300)
    files = FaultyFiles()
    log = open_log(files, config)
    for content in BATCHES * 2:
        append(log, content)
    segments = [path for path in files.paths() if path.endswith(".log")]
    assert len(segments) >= 3
    after = files.killed()
    after.remove(f"{PATH}/recovery-point")
    torn = segments[1]
    after.overwrite(torn, after.peek(torn)[:-5])
    log = open_log(after, config)
    want = int(torn.rpartition("/")[2][:20])
    assert want <= log.end_offset < want + 4
    assert [offset for offset, _ in read_records(log)] == list(range(log.end_offset))
    append(log, BATCHES[0])
    sync(log)
    assert open_log(after.killed(), config).end_offset == log.end_offset
