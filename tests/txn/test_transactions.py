"""The life of a transaction: partitions, the end by both protocols, timeouts, restarts."""

from __future__ import annotations

import pytest
from txn_stage import SETTINGS, TIMEOUT_MS, WALL, Stage, reload

from headrace.txn.commands import MarkersWritten, Now
from headrace.txn.records import EPOCH_LAST, EPOCH_MAX, FOLLOWS, State, Transaction, decode, encode

P0 = (1000, 0)
P1 = (1000, 1)


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    assert made.init() == "1000/0"
    return made


# -- partitions


def test_partitions_come_together_in_one_transaction(stage: Stage) -> None:
    assert stage.add(P0, 1) == "ok"
    assert stage.add(P0, 0, 1) == "ok"
    assert stage.state() == "Ongoing 1000/0 a-0,a-1"


def test_adding_what_is_there_writes_nothing(stage: Stage) -> None:
    stage.add(P0, 0, 1)
    before = len(stage.log)
    assert stage.add(P0, 1) == "ok"
    assert len(stage.log) == before


def test_only_the_present_producer_may_add(stage: Stage) -> None:
    assert stage.add((1001, 0), 0) == "invalid_producer_id_mapping"
    assert stage.add(P0, 0, name="unknown") == "invalid_producer_id_mapping"
    assert stage.add(P0, 0, name="") == "invalid_request"
    assert stage.add(P1, 0) == "producer_fenced"
    assert stage.add((1000, -1), 0) == "producer_fenced"
    assert stage.state() == "Empty 1000/0"


def test_nothing_joins_a_transaction_that_is_being_ended(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit", bump=False)
    assert stage.add(P0, 1) == "concurrent_transactions"
    assert stage.verify(P0, 0) == "concurrent_transactions"
    stage.written()
    assert stage.add(P0, 1) == "ok"
    assert stage.state() == "Ongoing 1000/0 a-1"


def test_verification_tells_which_partitions_were_added(stage: Stage) -> None:
    assert stage.verify(P0, 0) == "transaction_abortable"
    stage.add(P0, 0)
    assert stage.verify(P0, 0, 1) == "ok transaction_abortable"
    assert stage.verify(P1, 0) == "producer_fenced"
    assert stage.verify((1, 0), 0) == "invalid_producer_id_mapping"
    assert stage.verify(P0, 0, name="unknown") == "invalid_producer_id_mapping"
    assert stage.verify(P0, 0, name="") == "invalid_request"


# -- the end, by the newer protocol


def test_every_end_gives_the_producer_a_new_epoch_which_the_markers_carry(stage: Stage) -> None:
    stage.add(P0, 0)
    assert stage.end(P0, "commit") == "1000/1"
    assert stage.state() == "PrepareCommit 1000/1 a-0"
    assert stage.written() == ["commit 1000/1 in a-0"]
    assert stage.state() == "CompleteCommit 1000/1"
    stage.add(P1, 2)
    assert stage.end(P1, "abort") == "1000/2"
    assert stage.written() == ["abort 1000/2 in a-2"]
    assert stage.state() == "CompleteAbort 1000/2"


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_an_end_can_be_repeated_by_who_did_not_get_the_answer(stage: Stage, how: str) -> None:
    other = "abort" if how == "commit" else "commit"
    stage.add(P0, 0)
    stage.end(P0, how)
    assert stage.end(P0, how) == "concurrent_transactions"
    assert stage.end(P0, other) == "invalid_txn_state"
    stage.written()
    assert stage.end(P0, how) == "1000/1"
    assert stage.end(P0, how) == "1000/1"
    assert stage.end(P0, other) == "invalid_txn_state"
    assert not stage.markers


def test_what_can_be_ended_when_nothing_is_ongoing(stage: Stage) -> None:
    assert stage.end(P0, "commit") == "invalid_txn_state"
    assert stage.end(P0, "abort") == "1000/1"
    assert stage.state() == "CompleteAbort 1000/1"
    assert stage.end(P1, "commit") == "invalid_txn_state"
    assert stage.end(P1, "abort") == "1000/2"
    stage.add((1000, 2), 0)
    stage.end((1000, 2), "commit")
    stage.written()
    assert stage.end((1000, 3), "commit") == "invalid_txn_state"
    assert stage.end((1000, 3), "abort") == "1000/4"
    assert not stage.markers


def test_an_end_of_an_older_epoch_ends_nothing(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit")
    stage.written()
    stage.add(P1, 0)
    assert stage.end(P0, "commit") == "producer_fenced"
    assert stage.end(P0, "abort") == "producer_fenced"
    assert stage.end((1000, 2), "commit") == "producer_fenced"
    assert stage.end((7, 1), "commit") == "invalid_producer_id_mapping"
    assert stage.end(P1, "commit", name="unknown") == "invalid_producer_id_mapping"
    assert stage.state() == "Ongoing 1000/1 a-0"


def test_after_a_new_producer_came_no_end_can_be_repeated(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit")
    stage.written()
    assert stage.init() == "1000/2"
    assert stage.end(P0, "commit") == "producer_fenced"
    assert stage.end(P1, "abort") == "producer_fenced"


def test_a_producer_that_goes_on_early_is_told_to_wait_not_fenced(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit")
    assert stage.add(P1, 0) == "concurrent_transactions"
    assert stage.end(P1, "abort") == "concurrent_transactions"
    assert stage.end(P1, "commit") == "invalid_txn_state"


def test_at_the_last_epoch_the_end_gives_a_new_producer_id() -> None:
    stage = Stage()
    last, fresh = (5, EPOCH_LAST), (1000, 0)
    stage.given(Transaction(5, EPOCH_LAST, State.EMPTY, TIMEOUT_MS))
    stage.add(last, 0)
    assert stage.end(last, "commit") == "1000/0"
    assert stage.end(last, "commit") == "concurrent_transactions"
    assert stage.add(fresh, 1) == "concurrent_transactions"
    assert stage.init(fresh) == "concurrent_transactions"
    stage.restart()
    assert stage.written() == [f"commit 5/{EPOCH_MAX} in a-0"]
    assert stage.state() == "CompleteCommit 1000/0"
    assert stage.end(last, "commit") == "1000/0"
    assert stage.end(last, "abort") == "invalid_txn_state"
    assert stage.add(last, 1) == "invalid_producer_id_mapping"
    assert stage.add(fresh, 1) == "ok"
    assert stage.end(last, "commit") == "invalid_producer_id_mapping"
    assert stage.end(fresh, "commit") == "1000/1"


# -- the end, by the older protocol


def test_the_older_protocol_keeps_the_epoch(stage: Stage) -> None:
    stage.add(P0, 0)
    assert stage.end(P0, "commit", bump=False) == "1000/0"
    assert stage.end(P0, "commit", bump=False) == "concurrent_transactions"
    assert stage.end(P0, "abort", bump=False) == "invalid_txn_state"
    assert stage.written() == ["commit 1000/0 in a-0"]
    assert stage.end(P0, "commit", bump=False) == "1000/0"
    assert stage.end(P0, "abort", bump=False) == "invalid_txn_state"
    assert stage.end(P1, "commit", bump=False) == "producer_fenced"
    stage.add(P0, 3)
    assert stage.end(P0, "abort", bump=False) == "1000/0"
    assert stage.written() == ["abort 1000/0 in a-3"]
    assert stage.end(P0, "abort", bump=False) == "1000/0"
    assert stage.end(P0, "commit", bump=False) == "invalid_txn_state"


def test_by_the_older_protocol_nothing_can_be_ended_before_it_began(stage: Stage) -> None:
    assert stage.end(P0, "commit", bump=False) == "invalid_txn_state"
    assert stage.end(P0, "abort", bump=False) == "invalid_txn_state"


def test_an_older_end_is_no_older_protocol_retry_of_a_newer_one(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit", bump=False)
    stage.written()
    assert stage.end((1000, -1), "commit") == "producer_fenced"


# -- time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.wait(TIMEOUT_MS - 1)
    stage.add(P0, 1)
    assert stage.state() == "Ongoing 1000/0 a-0,a-1"
    stage.wait(1)
    assert stage.state() == "PrepareAbort 1000/1 a-0,a-1"
    assert stage.end(P0, "commit") == "producer_fenced"
    assert stage.written() == ["abort 1000/1 in a-0,a-1"]
    assert stage.end(P0, "abort") == "producer_fenced"
    assert stage.init(P0) == "producer_fenced"
    assert stage.init() == "1000/2"


def test_time_counts_from_the_beginning_of_each_transaction(stage: Stage) -> None:
    stage.wait(2 * TIMEOUT_MS)
    stage.add(P0, 0)
    stage.wait(TIMEOUT_MS - 1)
    stage.end(P0, "commit")
    stage.written()
    stage.add(P1, 0)
    stage.wait(TIMEOUT_MS - 1)
    assert stage.state() == "Ongoing 1000/1 a-0"
    stage.wait(1)
    assert stage.state() == "PrepareAbort 1000/2 a-0"


def test_a_restart_does_not_give_a_transaction_more_time(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.wait(TIMEOUT_MS - 10)
    stage.restart()
    stage.wait(9)
    assert stage.state() == "Ongoing 1000/0 a-0"
    stage.wait(1)
    assert stage.state() == "PrepareAbort 1000/1 a-0"


def test_a_jump_of_the_wall_clock_aborts_nothing_and_delays_no_abort(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.now = Now(stage.now.ms, WALL + 10**9)
    stage.add(P0, 1)
    stage.wait(TIMEOUT_MS - 1)
    assert stage.state() == "Ongoing 1000/0 a-0,a-1"
    stage.now = Now(stage.now.ms, WALL - 10**9)
    stage.restart()
    stage.wait(TIMEOUT_MS)
    assert stage.state() == "PrepareAbort 1000/1 a-0,a-1"


def test_a_log_that_was_compacted_does_not_mix_the_times_of_two_transactions(stage: Stage) -> None:
    stage.add(P0, 0)
    first = stage.log[-1]
    stage.wait(TIMEOUT_MS - 1)
    stage.end(P0, "commit", bump=False)
    stage.written()
    stage.add(P0, 1)
    stage.log = [first, stage.log[-1]]
    stage.restart()
    stage.wait(TIMEOUT_MS - 1)
    assert stage.state() == "Ongoing 1000/0 a-1"


# -- restarts


@pytest.mark.parametrize(("how", "state"), [("commit", "CompleteCommit"), ("abort", "CompleteAbort")])
def test_what_was_prepared_is_finished_after_a_restart(stage: Stage, how: str, state: str) -> None:
    stage.add(P0, 0, 1)
    stage.end(P0, how)
    stage.restart()
    assert stage.written() == [f"{how} 1000/1 in a-0,a-1"]
    assert stage.state() == f"{state} 1000/1"


def test_an_empty_transaction_that_was_prepared_is_finished_after_a_restart() -> None:
    stage = Stage()
    stage.given(Transaction(5, 1, State.PREPARE_ABORT, TIMEOUT_MS, last_epoch=0, start_ms=WALL, bumped=True))
    assert stage.state() == "CompleteAbort 5/1"
    assert stage.end((5, 0), "abort") == "5/1"


def test_an_answer_survives_a_restart(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit")
    stage.written()
    stage.restart()
    assert stage.end(P0, "commit") == "1000/1"
    assert stage.init(P0) == "1000/1"
    assert stage.init(P1) == "1000/2"


def test_markers_of_an_older_end_complete_nothing(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.end(P0, "commit")
    stage.written()
    stage.add(P1, 0)
    stage.end(P1, "abort")
    stage.ask(MarkersWritten(transactional_id="t", producer_id=1000, producer_epoch=1))
    assert stage.state() == "PrepareAbort 1000/2 a-0"
    stage.ask(MarkersWritten(transactional_id="x", producer_id=1000, producer_epoch=2))
    assert stage.state() == "PrepareAbort 1000/2 a-0"


def test_a_snapshot_rebuilds_the_state(stage: Stage) -> None:
    stage.add(P0, 0)
    stage.init(name="u")
    whole = list(stage.machine.snapshot())
    assert list(reload(whole, SETTINGS, stage.now).snapshot()) == whole
    assert list(stage.machine.snapshot(["u", "nobody"])) == [whole[1]]


def test_a_record_of_an_unknown_kind_is_skipped(stage: Stage) -> None:
    stage.machine.replay(b"\x92\xa1x\xa1y", b"?", stage.now)
    stage.machine.replay(b"garbage", None, stage.now)
    assert stage.state() == "Empty 1000/0"


def test_records_come_back_as_they_were_written() -> None:
    known = Transaction(7, 3, State.PREPARE_COMMIT, 5, 6, 8, 2, (("a", 0), ("ü", 9)), 10, 11, True)
    key, value = encode("tx-ü", known)
    assert decode(key, value) == ("tx-ü", known)
    assert decode(key, None) == ("tx-ü", None)


def test_the_names_of_the_states_are_kafkas() -> None:
    assert [state.title for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
    assert State.DEAD not in FOLLOWS
    assert State.PREPARE_EPOCH_FENCE not in FOLLOWS
