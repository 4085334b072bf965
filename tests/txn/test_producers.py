"""InitProducerId: who may use a transactional id, under which epoch."""

from __future__ import annotations

from txn_stage import SETTINGS, TIMEOUT_MS, Stage

from headrace.txn.records import EPOCH_LAST, EPOCH_MAX, State, Transaction


def test_a_new_transactional_id_gets_a_new_producer_id_and_epoch_zero() -> None:
    stage = Stage()
    assert stage.init() == "1000/0"
    assert stage.state() == "Empty 1000/0"
    assert stage.init(name="other") == "1001/0"


def test_every_further_producer_gets_the_next_epoch() -> None:
    stage = Stage()
    assert [stage.init() for _ in range(3)] == ["1000/0", "1000/1", "1000/2"]


def test_an_id_must_not_be_empty_and_a_timeout_must_be_allowed() -> None:
    stage = Stage()
    assert stage.init(name="") == "invalid_request"
    assert stage.init(timeout_ms=0) == "invalid_transaction_timeout"
    assert stage.init(timeout_ms=SETTINGS.max_timeout_ms + 1) == "invalid_transaction_timeout"
    assert stage.init(timeout_ms=SETTINGS.max_timeout_ms) == "1000/0"
    assert stage.init(name="", timeout_ms=0) == "invalid_request"


def test_a_producer_whose_id_was_forgotten_gets_a_new_one() -> None:
    assert Stage().init((7, 3)) == "1000/0"


def test_a_new_producer_aborts_what_the_old_one_had_begun_and_waits_for_that() -> None:
    stage = Stage()
    stage.init()
    stage.add((1000, 0), 0, 1)
    assert stage.init() == "concurrent_transactions"
    assert stage.state() == "PrepareAbort 1000/1 a-0,a-1"
    assert stage.init() == "concurrent_transactions"
    assert stage.written() == ["abort 1000/1 in a-0,a-1"]
    assert stage.init() == "1000/2"


def test_the_old_producer_is_fenced_for_good() -> None:
    stage = Stage()
    stage.init()
    stage.add((1000, 0), 0)
    stage.init()
    for _ in range(2):
        assert stage.add((1000, 0), 1) == "producer_fenced"
        assert stage.verify((1000, 0), 0) == "producer_fenced"
        assert stage.end((1000, 0), "commit") == "producer_fenced"
        assert stage.end((1000, 0), "abort") == "producer_fenced"
        assert stage.end((1000, 0), "abort", bump=False) == "producer_fenced"
        stage.written()
        assert stage.init((1000, 0)) == "producer_fenced"
    assert stage.state() == "CompleteAbort 1000/1"


def test_a_producer_may_bump_its_own_epoch_and_repeat_that() -> None:
    stage = Stage()
    stage.init()
    assert stage.init((1000, 0)) == "1000/1"
    assert stage.init((1000, 0)) == "1000/1"
    assert stage.init((1000, 0)) == "1000/1"
    assert stage.init((1000, 1)) == "1000/2"
    assert stage.init((1000, 0)) == "producer_fenced"


def test_a_producer_that_has_gone_on_does_not_repeat() -> None:
    stage = Stage()
    stage.init()
    stage.init((1000, 0))
    stage.add((1000, 1), 0)
    assert stage.init((1000, 0)) == "producer_fenced"
    assert stage.state() == "Ongoing 1000/1 a-0"
    stage.end((1000, 1), "commit", bump=False)
    stage.written()
    assert stage.init((1000, 0)) == "producer_fenced"


def test_a_zombie_that_bumps_its_epoch_does_not_abort_what_the_present_one_does() -> None:
    stage = Stage()
    stage.init()
    stage.init()
    stage.add((1000, 1), 0)
    assert stage.init((1000, 0)) == "producer_fenced"
    assert stage.init((999, 1)) == "producer_fenced"
    assert stage.state() == "Ongoing 1000/1 a-0"


def test_a_new_producer_ends_the_right_to_repeat() -> None:
    stage = Stage()
    stage.init()
    stage.init((1000, 0))
    stage.init()
    assert stage.init((1000, 0)) == "producer_fenced"
    assert stage.init((1000, 1)) == "producer_fenced"


def test_while_a_transaction_ends_nobody_gets_an_epoch() -> None:
    stage = Stage()
    stage.init()
    stage.add((1000, 0), 0)
    stage.end((1000, 0), "commit")
    assert stage.init() == "concurrent_transactions"
    assert stage.init((1000, 1)) == "concurrent_transactions"
    assert stage.init((1000, 0)) == "concurrent_transactions"
    assert stage.init((7, 0)) == "producer_fenced"
    stage.written()
    assert stage.init() == "1000/2"


def test_when_epochs_are_used_up_a_new_producer_id_follows() -> None:
    stage = Stage()
    stage.given(Transaction(5, EPOCH_LAST, State.EMPTY, TIMEOUT_MS))
    assert stage.init() == "1000/0"
    assert stage.init((5, EPOCH_LAST)) == "producer_fenced"


def test_a_change_of_the_producer_id_can_be_repeated() -> None:
    stage = Stage()
    stage.given(Transaction(5, EPOCH_LAST, State.EMPTY, TIMEOUT_MS))
    assert stage.init((5, EPOCH_LAST)) == "1000/0"
    assert stage.init((5, EPOCH_LAST)) == "1000/0"
    assert stage.init((5, EPOCH_LAST)) == "1000/0"
    assert stage.init((5, EPOCH_LAST - 1)) == "producer_fenced"
    assert stage.init((1000, 0)) == "1000/1"
    assert stage.init((5, EPOCH_LAST)) == "producer_fenced"


def test_the_last_epoch_of_all_is_kept_for_fencing() -> None:
    stage = Stage()
    stage.given(Transaction(5, EPOCH_LAST - 1, State.EMPTY, TIMEOUT_MS))
    assert stage.init() == f"5/{EPOCH_LAST}"
    stage.add((5, EPOCH_LAST), 0)
    assert stage.init() == "concurrent_transactions"
    assert stage.written() == [f"abort 5/{EPOCH_MAX} in a-0"]
    assert stage.add((5, EPOCH_MAX), 0) == "producer_fenced"
    assert stage.end((5, EPOCH_MAX), "abort") == "producer_fenced"
    assert stage.init((5, EPOCH_LAST)) == "producer_fenced"
    assert stage.init() == "1000/0"


def test_an_idle_id_is_forgotten_and_an_ongoing_one_is_not() -> None:
    stage = Stage()
    stage.init()
    stage.init(name="busy", timeout_ms=SETTINGS.max_timeout_ms)
    days = SETTINGS.id_expiration_ms
    stage.wait(days - 1000)
    stage.add((1001, 0), 0, name="busy")
    stage.wait(SETTINGS.expiration_check_interval_ms)
    assert stage.state() == "unknown"
    assert stage.state("busy").startswith("PrepareAbort")
    assert stage.add((1000, 0), 0) == "invalid_producer_id_mapping"
    stage.restart()
    assert stage.state() == "unknown"


def test_a_new_timeout_counts_from_the_next_transaction_on() -> None:
    stage = Stage()
    stage.init(timeout_ms=1000)
    stage.init(timeout_ms=5000)
    stage.add((1000, 1), 0)
    stage.wait(4999)
    assert stage.state() == "Ongoing 1000/1 a-0"
    stage.wait(1)
    assert stage.state() == "PrepareAbort 1000/2 a-0"
