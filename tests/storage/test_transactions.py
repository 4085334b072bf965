"""Transactions in a log: who is open, what is stable, what was aborted; and all of that after a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from crc32c import crc32c

from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.log import Appended, Log
from headrace.storage.memory import MemoryFiles
from headrace.storage.producers import Producers
from headrace.storage.snapshots import ABORTED
from headrace.storage.topic_config import TopicConfig
from headrace.storage.transactions import Aborted, Marker, append_marker, build_marker, read_marker
from headrace.testing.logs import append, make_batch, sync
from headrace.testing.transactions import make_transactional, read_committed
from headrace.wire import batch

PATH = "topics/orders-0"
SMALL = replace(TopicConfig(), segment_bytes=300, index_interval_bytes=0)


def open_log(files: MemoryFiles | None = None, config: TopicConfig | None = None, *, now_ms: int = 1) -> Log:
    return Log.open(files or MemoryFiles(), PATH, config or TopicConfig(), now_ms=now_ms)


def write(log: Log, value: bytes, producer_id: int, *, epoch: int = 0, sequence: int = 0) -> Appended:
    return append(log, make_transactional([value], producer_id=producer_id, epoch=epoch, sequence=sequence))


def end(log: Log, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> Appended:
    marker = Marker(commit, coordinator_epoch)
    return append_marker(log, producer_id, epoch, marker, leader_epoch=0, now_ms=1)


def stable(log: Log) -> int:
    return log.last_stable_offset(log.end_offset)


def values(log: Log, offset: int = 0, **options: int) -> list[bytes | None]:
    return [value for _, value in read_committed(log, offset, high_watermark=log.end_offset, **options)]


def refusal(work: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        work()
    return caught.value.code


# ---------------------------------------------------------------------- markers


def test_a_marker_is_laid_out_as_kafka_has_it() -> None:
    data = build_marker(7, 3, Marker(True, 5), 99)
    (header,) = batch.headers(data)
    (record,) = batch.records(data, header)
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x05"
    assert batch.is_control(header)
    assert batch.is_transactional(header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (7, 3, -1, 1)
    assert read_marker(data, header) == Marker(True, 5)


def test_other_control_records_are_no_markers() -> None:
    for key, value in ((b"\x00\x00\x00\x02", bytes(6)), (b"\x00", bytes(6)), (b"\x00\x00\x00\x01", b"")):
        data = batch.build([(key, value)], timestamp_ms=1, producer_id=1, producer_epoch=0, control=True)
        (header,) = batch.headers(data)
        assert read_marker(data, header) is None


def test_a_client_cannot_write_a_marker() -> None:
    log = open_log()
    assert refusal(lambda: append(log, build_marker(7, 0, Marker(True, 0), 1))) is ErrorCode.invalid_record


def test_a_marker_of_an_older_epoch_is_refused() -> None:
    log = open_log()
    write(log, b"a", 7, epoch=3)
    assert refusal(lambda: end(log, 7, commit=False, epoch=2)) is ErrorCode.invalid_producer_epoch
    assert log.end_offset == 1


def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    log = open_log()
    write(log, b"a", 7)
    end(log, 7, commit=True, coordinator_epoch=4)
    write(log, b"b", 7, sequence=1)
    assert refusal(lambda: end(log, 7, commit=False, coordinator_epoch=3)) is (ErrorCode.transaction_coordinator_fenced)
    assert stable(log) == 2


def test_a_marker_without_a_transaction_only_moves_the_epoch() -> None:
    log = open_log()
    end(log, 7, commit=False, epoch=4)
    assert stable(log) == 1
    assert log.aborted_between(0, 1) == []
    assert refusal(lambda: write(log, b"late", 7, epoch=3)) is ErrorCode.invalid_producer_epoch


# ---------------------------------------------------------------------- what producers may do


def test_after_a_marker_with_a_new_epoch_a_producer_begins_at_sequence_zero() -> None:
    log = open_log()
    write(log, b"a", 7)
    end(log, 7, commit=True, epoch=1)
    assert refusal(lambda: write(log, b"late", 7, sequence=1)) is ErrorCode.invalid_producer_epoch
    assert refusal(lambda: write(log, b"b", 7, epoch=1, sequence=1)) is ErrorCode.out_of_order_sequence_number
    write(log, b"b", 7, epoch=1)
    assert stable(log) == 2


def test_after_a_marker_of_its_own_epoch_a_producer_goes_on_with_its_sequence() -> None:
    log = open_log()
    write(log, b"a", 7)
    end(log, 7, commit=True)
    write(log, b"b", 7, sequence=1)
    assert write(log, b"b", 7, sequence=1).duplicate
    assert (stable(log), log.end_offset) == (2, 3)


def test_a_plain_batch_does_not_join_a_transaction() -> None:
    log = open_log()
    write(log, b"a", 7)
    plain = make_batch([b"b"], producer_id=7, sequence=1)
    assert refusal(lambda: append(log, plain)) is ErrorCode.invalid_txn_state
    end(log, 7, commit=True)
    append(log, plain)
    assert stable(log) == 3


def test_a_newer_epoch_does_not_join_the_transaction_of_an_older_one() -> None:
    log = open_log()
    write(log, b"a", 7, epoch=1)
    assert refusal(lambda: write(log, b"b", 7, epoch=2)) is ErrorCode.invalid_txn_state
    end(log, 7, commit=False, epoch=2)
    write(log, b"b", 7, epoch=2)


def test_a_repeated_batch_is_told_even_when_the_transaction_is_over() -> None:
    log = open_log()
    first = write(log, b"a", 7)
    end(log, 7, commit=True)
    again = write(log, b"a", 7)
    assert (again.duplicate, again.base_offset) == (True, first.base_offset)
    assert stable(log) == 2


def test_a_batch_is_no_repeat_of_one_that_was_aborted() -> None:
    """librdkafka gives the sequences of a batch whose answer was lost to the next transaction, if it aborts: what is
    taken for a repeat would be acknowledged, and be nowhere."""
    log = open_log()
    write(log, b"doomed", 7, sequence=0)
    end(log, 7, commit=False)
    assert refusal(lambda: write(log, b"new", 7, sequence=0)) == ErrorCode.invalid_txn_state
    write(log, b"next", 7, sequence=1)
    assert write(log, b"next", 7, sequence=1).duplicate


def test_batches_of_our_own_have_no_sequence_but_an_epoch() -> None:
    log = open_log()

    def own(epoch: int) -> Appended:
        data = bytearray(
            batch.build([(b"k", b"v")], timestamp_ms=1, producer_id=7, producer_epoch=epoch, transactional=True)
        )
        return log.append(data, list(batch.headers(data)), leader_epoch=0, now_ms=1)

    own(1)
    own(1)
    assert refusal(lambda: own(0)) is ErrorCode.invalid_producer_epoch
    assert (stable(log), log.end_offset) == (0, 2)
    assert log.producers.is_open(7, 1)
    assert not log.producers.is_open(7, 0)


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    log = open_log()
    write(log, b"a", 7)
    append(log, make_batch([b"b"], producer_id=8, sequence=0))
    assert log.producers.expire(10**9, 1) == 1
    assert log.producers.is_open(7, 0)
    end(log, 7, commit=True)
    assert log.producers.expire(10**9, 1) == 1


# ---------------------------------------------------------------------- what is stable


def test_the_first_open_transaction_holds_the_last_stable_offset() -> None:
    log = open_log()
    append(log, make_batch([b"plain"]))
    write(log, b"a", 1)
    write(log, b"b", 2)
    assert stable(log) == 1
    end(log, 2, commit=True)
    assert stable(log) == 1
    end(log, 1, commit=True)
    assert stable(log) == log.end_offset == 5
    assert not log.producers.transactions.unstable


def test_a_transaction_counts_as_open_until_its_marker_is_below_the_high_watermark() -> None:
    log = open_log()
    append(log, make_batch([b"plain"]))
    write(log, b"a", 1)
    marker = end(log, 1, commit=True).base_offset
    assert log.last_stable_offset(0) == 0
    assert log.last_stable_offset(2) == 1
    assert log.last_stable_offset(marker) == 1
    assert log.last_stable_offset(marker + 1) == marker + 1


def test_the_last_stable_offset_is_never_above_the_high_watermark() -> None:
    log = open_log()
    append(log, make_batch([b"plain"]))
    write(log, b"a", 1)
    assert log.last_stable_offset(0) == 0


def test_the_last_stable_offset_is_not_below_the_start() -> None:
    log = open_log()
    write(log, b"a", 1)
    append(log, make_batch([b"b"]))
    log.delete_before(2)
    assert stable(log) == 2


# ---------------------------------------------------------------------- what was aborted


def test_a_reader_is_told_of_aborted_transactions_that_overlap_with_its_answer() -> None:
    log = open_log()
    write(log, b"a", 1)  # 0
    write(log, b"b", 2)  # 1
    write(log, b"c", 1, sequence=1)  # 2
    end(log, 1, commit=False)  # 3
    append(log, make_batch([b"d"]))  # 4
    end(log, 2, commit=True)  # 5
    write(log, b"e", 1, sequence=2)  # 6
    end(log, 1, commit=False)  # 7
    assert log.aborted_between(0, 8) == [(1, 0), (1, 6)]
    assert log.aborted_between(2, 3) == [(1, 0)]
    assert log.aborted_between(3, 6) == [(1, 0)]
    assert log.aborted_between(4, 6) == []
    assert log.aborted_between(4, 7) == [(1, 6)]
    assert values(log) == [b"b", b"d"]
    for offset in range(9):
        expected = [value for at, value in ((1, b"b"), (4, b"d")) if at >= offset]
        assert values(log, offset) == values(log, offset, max_bytes=1) == expected


def test_the_search_for_aborted_transactions_does_not_stop_before_a_long_one() -> None:
    log = open_log()
    write(log, b"long", 1)  # 0: open from the very beginning
    for number in range(5):
        write(log, b"short", 2, sequence=number)
        end(log, 2, commit=False)
    end(log, 1, commit=False)
    assert (1, 0) in log.aborted_between(0, 1)
    assert values(log) == []


def test_the_list_of_aborted_transactions_survives_encoding_and_nothing_else_does() -> None:
    aborted = Aborted()
    for number in range(10):
        aborted.add(number, 10 * number, 10 * number + 5, 10 * number + 6)
    content = aborted.encode(96)
    decoded = Aborted.decode(content)
    assert decoded is not None
    assert decoded[0] == 96
    assert decoded[1].between(0, 100) == aborted.between(0, 100)
    assert Aborted.decode(None) is None
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        assert Aborted.decode(bytes(damaged)) is None
        assert Aborted.decode(content[:position]) is None


# ---------------------------------------------------------------------- restarts


def history(log: Log) -> None:
    """Committed, aborted and open transactions over several segments."""
    for number in range(8):
        write(log, b"x%d" % number, 1, sequence=number)
        write(log, b"y%d" % number, 2, sequence=number)
        append(log, make_batch([b"p%d" % number]))
        end(log, 1, commit=number % 2 == 0)
        end(log, 2, commit=number % 3 == 0)
    write(log, b"open", 3)
    append(log, make_batch([b"behind"]))


DAMAGES = ("nothing", "producers", "newest", "aborted", "flipped", "everything")


def damage(files: MemoryFiles, what: str) -> None:
    names = files.names(PATH)
    snapshots = sorted(name for name in names if name.endswith(".producers"))
    doomed = {
        "nothing": [],
        "producers": snapshots,
        "newest": snapshots[-1:],
        "aborted": [ABORTED],
        "flipped": [],
        "everything": [*snapshots, ABORTED],
    }[what]
    for name in doomed:
        files.remove(f"{PATH}/{name}")
    if what == "flipped" and ABORTED in names:
        content = bytearray(files.load(f"{PATH}/{ABORTED}") or b"")
        content[-1] ^= 1
        files.store(f"{PATH}/{ABORTED}", bytes(content))


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("config", [SMALL, TopicConfig()], ids=["small", "large"])
def test_transactions_survive_a_restart_whatever_becomes_of_the_snapshots(
    config: TopicConfig, clean: bool, what: str
) -> None:
    files = MemoryFiles()
    log = open_log(files, config)
    history(log)
    expected = (stable(log), log.aborted_between(0, log.end_offset), values(log), values(log, 11))
    sync(log)
    log.close(clean=clean)
    damage(files, what)
    log = open_log(files, config)
    assert expected == (stable(log), log.aborted_between(0, log.end_offset), values(log), values(log, 11))
    assert log.producers.is_open(3, 0)
    assert not log.producers.is_open(1, 0)
    end(log, 3, commit=True)
    assert values(log)[-2:] == [b"open", b"behind"]
    write(log, b"next", 1, sequence=8)


def test_a_transaction_can_be_ended_after_a_restart_at_every_point() -> None:
    steps: list[Callable[[Log], object]] = [
        lambda log: write(log, b"a", 1),
        lambda log: append(log, make_batch([b"p"])),
        lambda log: write(log, b"b", 2),
        lambda log: end(log, 1, commit=False, epoch=1),
        lambda log: write(log, b"c", 1, epoch=1),
        lambda log: end(log, 2, commit=True, epoch=1),
        lambda log: end(log, 1, commit=True, epoch=2),
        lambda log: write(log, b"d", 2, epoch=1),
        lambda log: end(log, 2, commit=False, epoch=2),
    ]
    for clean in (True, False):
        for point in range(len(steps) + 1):
            files = MemoryFiles()
            log = open_log(files, SMALL)
            for number, step in enumerate(steps):
                if number == point:
                    before = (stable(log), values(log))
                    sync(log)
                    log.close(clean=clean)
                    log = open_log(files, SMALL)
                    assert (stable(log), values(log)) == before
                step(log)
            assert values(log) == [b"p", b"b", b"c"], point
            assert stable(log) == log.end_offset


def test_a_cut_log_forgets_markers_and_opens_their_transactions_again() -> None:
    for point in range(1, 9):
        log = open_log(config=SMALL)
        for number in range(3):
            write(log, b"v%d" % number, 1, sequence=number)
            end(log, 1, commit=number == 1)
            append(log, make_batch([b"p%d" % number]))
        log.truncate(point, now_ms=1)
        is_open = point % 3 == 1
        assert log.producers.is_open(1, 0) == is_open, point
        assert stable(log) == point - (1 if is_open else 0)
        if is_open:
            end(log, 1, commit=False)
        aborted = [first for first in (0, 3, 6) if first < point and (first != 3 or point == 4)]
        assert log.aborted_between(0, 99) == [(1, first) for first in aborted], point
        sync(log)
        assert values(log) == [
            value for at, value in ((2, b"p0"), (3, b"v1"), (5, b"p1"), (8, b"p2"))
            if at < point and not (at == 3 and point == 4)
        ]  # fmt: skip


def test_what_was_aborted_before_a_cut_is_not_believed_after_it() -> None:
    """The list may be stored up to where the log no longer goes."""
    files = MemoryFiles()
    log = open_log(files, SMALL)
    for number in range(6):
        write(log, b"v%d" % number, 1, sequence=number)
        end(log, 1, commit=False)
    log.checkpoint()
    log.truncate(4, now_ms=1)
    for number in range(2, 6):
        write(log, b"w%d" % number, 1, sequence=number)
        end(log, 1, commit=True)
    sync(log)
    log.close(clean=False)
    log = open_log(files, SMALL)
    assert log.aborted_between(0, 99) == [(1, 0), (1, 2)]
    assert values(log) == [b"w2", b"w3", b"w4", b"w5"]


def test_what_was_aborted_before_the_start_is_forgotten() -> None:
    files = MemoryFiles()
    log = open_log(files, replace(SMALL, retention_ms=0))
    history(log)
    roll_offset = log.segments()[-1].base_offset
    before = log.aborted_between(0, 99)
    log.delete_before(roll_offset)
    assert log.aborted_between(0, 99) == before, "a power cut could still bring the records back"
    sync(log)
    assert log.aborted_between(0, 99) == log.aborted_between(roll_offset, 99) != before
    expected = (log.aborted_between(0, 99), values(log, log.start_offset))
    log.close()
    log = open_log(files, SMALL)
    assert (log.aborted_between(0, 99), values(log, log.start_offset)) == expected


def test_an_open_transaction_outlives_its_own_records() -> None:
    files = MemoryFiles()
    log = open_log(files, SMALL)
    write(log, b"a", 1)
    for number in range(20):
        append(log, make_batch([b"p%d" % number]))
    log.delete_before(15)
    assert stable(log) == 15
    sync(log)
    log.close(clean=False)
    log = open_log(files, SMALL)
    assert log.producers.is_open(1, 0)
    end(log, 1, commit=False)
    assert values(log, 15) == [b"p%d" % number for number in range(14, 20)]


def test_a_snapshot_of_the_first_version_is_still_read() -> None:
    body = msgspec.msgpack.encode((1, {7: (2, 5, 100, [(3, 4, 10, 11, 99)])}))
    producers = Producers.decode(crc32c(body).to_bytes(4, "big") + body)
    assert producers is not None
    known = producers.get(7)
    assert known is not None
    assert (known.epoch, known.next_sequence, known.first_offset, known.coordinator_epoch) == (2, 5, -1, -1)
    assert not producers.lacks_aborted
