"""The history of leader epochs, as OffsetForLeaderEpoch asks for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.epochs import Epochs
from headrace.storage.log import Log
from headrace.storage.memory import MemoryFiles
from headrace.storage.topic_config import TopicConfig
from headrace.testing.logs import append, make_batch, sync

PATH = "topics/orders-0"
CONFIG = TopicConfig()


def history() -> Epochs:
    epochs = Epochs()
    for epoch, start_offset in ((2, 10), (4, 20), (7, 20), (9, 35)):
        epochs.assign(epoch, start_offset)
    return epochs


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    epochs = history()
    assert epochs.end_offset_for(2, 50) == (2, 20)
    assert epochs.end_offset_for(4, 50) == (4, 20)
    assert epochs.end_offset_for(7, 50) == (7, 35)


def test_the_latest_epoch_ends_at_the_end_of_the_log() -> None:
    assert history().end_offset_for(9, 50) == (9, 50)


def test_an_epoch_without_records_is_answered_with_the_one_before() -> None:
    assert history().end_offset_for(3, 50) == (2, 20)
    assert history().end_offset_for(8, 50) == (7, 35)


def test_an_epoch_older_than_all_ends_where_the_oldest_begins() -> None:
    assert history().end_offset_for(1, 50) == (1, 10)


def test_undefined_and_future_epochs_are_unknown() -> None:
    assert history().end_offset_for(-1, 50) == (-1, -1)
    assert history().end_offset_for(10, 50) == (-1, -1)
    assert Epochs().end_offset_for(0, 50) == (-1, -1)


def test_epochs_only_rise() -> None:
    epochs = history()
    assert not epochs.assign(9, 40)
    assert not epochs.assign(3, 41)
    assert epochs.latest == 9


def test_cutting_the_end_forgets_what_began_there() -> None:
    epochs = history()
    assert epochs.truncate_end(20)
    assert epochs.entries == ((2, 10),)
    assert not epochs.truncate_end(11)
    assert epochs.latest == 2


def test_cutting_the_start_keeps_the_epoch_that_goes_on() -> None:
    epochs = history()
    assert epochs.truncate_start(25)
    assert epochs.entries == ((7, 25), (9, 35))
    assert not epochs.truncate_start(25)
    assert not epochs.truncate_start(5)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_a_stored_history_comes_back(entries: list[tuple[int, int]]) -> None:
    loaded = Epochs.decode(Epochs(entries).encode())
    assert loaded is not None
    assert loaded.entries == tuple(entries)


@given(st.binary(max_size=40))
def test_a_damaged_history_counts_as_missing(content: bytes) -> None:
    assert Epochs.decode(content) is None


def test_a_log_knows_its_epochs_again_after_any_end() -> None:
    for clean in (True, False):
        for lost in (False, True):
            files = MemoryFiles()
            log = Log.open(files, PATH, CONFIG, now_ms=1)
            for number in range(12):
                append(log, make_batch([b"v"]), leader_epoch=number // 5)
                if number == 7:
                    sync(log)
            entries = log.epochs.entries
            assert entries == ((0, 0), (1, 5), (2, 10))
            log.close(clean=clean)
            if lost:
                files.remove(f"{PATH}/leader-epochs")
            log = Log.open(files, PATH, CONFIG, now_ms=1)
            assert log.epochs.entries == entries
            assert log.end_offset_for(1) == (1, 10)
            log.truncate(7, now_ms=1)
            assert log.epochs.entries == entries[:2]
            assert log.end_offset_for(2) == (-1, -1)
