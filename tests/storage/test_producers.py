"""Idempotent producers: once in the log, in order, also across restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.log import Appended, Log
from headrace.storage.memory import MemoryFiles
from headrace.storage.producers import Producers
from headrace.storage.topic_config import TopicConfig
from headrace.testing.logs import append, sync
from headrace.wire import batch

PATH = "topics/orders-0"
CONFIG = TopicConfig()
LAST = 2**31 - 1


def open_log(files: MemoryFiles | None = None, now_ms: int = 1) -> Log:
    return Log.open(files if files is not None else MemoryFiles(), PATH, CONFIG, now_ms=now_ms)


def made(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    return batch.build(
        [(None, b"%d" % n) for n in range(count)],
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def refused(log: Log, content: bytes) -> ErrorCode:
    end_offset = log.end_offset
    with pytest.raises(ApiError) as raised:
        append(log, content)
    assert log.end_offset == end_offset
    return raised.value.code


def test_a_repeated_batch_is_answered_with_its_first_offsets() -> None:
    log = open_log()
    append(log, made(0, 3))
    append(log, made(3, 2))
    assert append(log, made(0, 3)) == Appended(0, 2, -1, duplicate=True)
    assert append(log, made(3, 2)) == Appended(3, 4, -1, duplicate=True)
    assert log.end_offset == 5


def test_five_batches_are_remembered_and_older_repeats_are_out_of_order() -> None:
    log = open_log()
    for sequence in range(6):
        append(log, made(sequence))
    assert all(append(log, made(sequence)).duplicate for sequence in range(1, 6))
    assert refused(log, made(0)) is ErrorCode.out_of_order_sequence_number


def test_a_gap_and_an_overlap_are_out_of_order() -> None:
    log = open_log()
    append(log, made(0, 3))
    assert refused(log, made(4)) is ErrorCode.out_of_order_sequence_number
    assert refused(log, made(2, 2)) is ErrorCode.out_of_order_sequence_number
    assert refused(log, made(0, 2)) is ErrorCode.out_of_order_sequence_number
    assert not append(log, made(3)).duplicate


def test_an_unknown_producer_may_begin_anywhere() -> None:
    log = open_log()
    assert append(log, made(55)).base_offset == 0
    assert refused(log, made(57)) is ErrorCode.out_of_order_sequence_number


def test_a_fenced_producer_cannot_append() -> None:
    log = open_log()
    append(log, made(0, epoch=3))
    assert refused(log, made(1, epoch=2)) is ErrorCode.invalid_producer_epoch


def test_a_new_epoch_begins_at_sequence_zero() -> None:
    log = open_log()
    append(log, made(0, 5))
    assert refused(log, made(5, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert not append(log, made(0, 5, epoch=1)).duplicate
    assert append(log, made(0, 5, epoch=1)).duplicate


def test_sequences_wrap_around() -> None:
    log = open_log()
    append(log, made(LAST - 1, 4))  # LAST - 1, LAST, 0, 1
    assert append(log, made(LAST - 1, 4)).duplicate
    assert refused(log, made(0)) is ErrorCode.out_of_order_sequence_number
    assert not append(log, made(2)).duplicate
    log = open_log()
    append(log, made(LAST))
    assert not append(log, made(0)).duplicate


def test_producers_do_not_know_each_other() -> None:
    log = open_log()
    append(log, made(0, producer_id=1))
    append(log, made(0, producer_id=2))
    assert append(log, made(0, producer_id=1)).base_offset == 0
    assert append(log, made(0, producer_id=2)).base_offset == 1


def append_several(log: Log, *contents: bytes) -> Appended:
    data = bytearray(b"".join(contents))
    return log.append(data, list(batch.headers(data)), leader_epoch=0, now_ms=1)


def test_several_batches_at_once_are_all_new_or_all_repeated() -> None:
    log = open_log()
    assert append_several(log, made(0, 2), made(2)) == Appended(0, 2, -1)
    assert append_several(log, made(0, 2), made(2)) == Appended(0, 2, -1, duplicate=True)
    for contents in ((made(2), made(3)), (made(3), made(3)), (made(3), made(5)), (made(3), made(2))):
        with pytest.raises(ApiError) as raised:
            append_several(log, *contents)
        assert raised.value.code is ErrorCode.out_of_order_sequence_number
    assert log.end_offset == 3


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_repeats_are_known_after_a_restart(clean: bool) -> None:
    files = MemoryFiles()
    log = open_log(files)
    for sequence in range(8):
        append(log, made(sequence))
    sync(log)
    log.close(clean=clean)
    log = open_log(files)
    for sequence in range(3, 8):
        assert append(log, made(sequence)) == Appended(sequence, sequence, -1, duplicate=True)
    assert refused(log, made(9)) is ErrorCode.out_of_order_sequence_number
    assert append(log, made(8)).base_offset == 8


def test_silent_producers_are_forgotten() -> None:
    log = open_log()
    append(log, made(0, producer_id=1), now_ms=1000)
    append(log, made(0, producer_id=2), now_ms=5000)
    log.producer_expiry_ms = 3000
    log.retain(4000)
    assert [producer_id for producer_id, _ in log.producers.items()] == [2]
    assert append(log, made(9, producer_id=1), now_ms=5000).base_offset == 2


def test_expired_producers_are_not_loaded() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, made(0), now_ms=1000)
    log.close()
    assert len(Log.open(files, PATH, CONFIG, now_ms=1500, producer_expiry_ms=1000).producers) == 1
    assert len(Log.open(files, PATH, CONFIG, now_ms=2000, producer_expiry_ms=1000).producers) == 0


def test_a_cut_log_forgets_what_was_cut() -> None:
    log = open_log()
    for sequence in range(4):
        append(log, made(sequence))
    log.truncate(2, now_ms=1)
    assert append(log, made(1)).duplicate
    assert append(log, made(2)).base_offset == 2


sends = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9), st.integers(1, 3)), max_size=30
)  # producer, epoch, sequence, count


@given(sends)
def test_a_snapshot_says_what_the_log_says(steps: list[tuple[int, int, int, int]]) -> None:
    files = MemoryFiles()
    log = open_log(files)
    for producer_id, epoch, sequence, count in steps:
        try:
            append(log, made(sequence, count, producer_id=producer_id, epoch=epoch))
        except ApiError:
            pass
    copied = Producers.decode(log.producers.encode())
    assert copied is not None
    assert copied.items() == log.producers.items()
    log.close(clean=False)
    assert open_log(files).producers.items() == log.producers.items()


@given(st.binary(max_size=60))
def test_a_damaged_snapshot_counts_as_missing(content: bytes) -> None:
    assert Producers.decode(content) is None


def test_of_too_many_producers_those_that_were_silent_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.storage.producers.PRODUCERS_PER_LOG", 100)
    producers = Producers()
    for number in range(1000):
        for content in (made(0, producer_id=100 + number), made(number)):  # one that comes and goes, one that goes on
            [header] = batch.headers(content)
            producers.add(header, number, number, number)
    assert len(producers) <= 100
    assert producers.get(7) is not None
    assert producers.get(1099) is not None
