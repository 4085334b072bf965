"""Which batches have to wait for one that was refused before them."""

from __future__ import annotations

import pytest

from headrace.broker.refusals import LASTING_S, MOST, Refusals
from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import batch

PLACE = ("t", None, 0)


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> batch.BatchHeader:
    data = batch.build(
        [(None, b"v")], timestamp_ms=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    return next(batch.headers(data))


def is_out_of_order(refusals: Refusals, *what, is_known: bool = False) -> bool:
    try:
        refusals.check(*what, is_known=is_known)
    except ApiError as error:
        assert error.code is ErrorCode.out_of_order_sequence_number
        return True
    return False


def test_what_comes_behind_a_refused_batch_waits_until_that_has_come_again() -> None:
    refusals = Refusals()
    for sequence in (3, 0, 5):
        refusals.note(PLACE, header(sequence), 1.0)
    assert is_out_of_order(refusals, PLACE, header(3), 2.0)
    assert not is_out_of_order(refusals, PLACE, header(0), 2.0)
    assert not is_out_of_order(refusals, PLACE, header(3), 2.0)
    assert not refusals


@pytest.mark.parametrize(
    "what",
    [
        (("t", None, 1), header(3), 2.0),
        (PLACE, header(3, producer_id=8), 2.0),
        (PLACE, header(3, epoch=1), 2.0),
        (PLACE, header(3), 2.0 + LASTING_S),
    ],
)
def test_other_partitions_producers_epochs_and_times_are_not_concerned(what) -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), 1.0)
    assert not is_out_of_order(refusals, *what)


def test_a_producer_that_the_log_knows_is_the_logs_business() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), 1.0)
    assert not is_out_of_order(refusals, PLACE, header(3), 1.0, is_known=True)
    assert not refusals


def test_an_old_refusal_does_not_count_when_there_is_a_new_one() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), 1.0)
    refusals.note(PLACE, header(50), 2.0 + LASTING_S)
    assert is_out_of_order(refusals, PLACE, header(60), 2.0 + LASTING_S)
    assert not is_out_of_order(refusals, PLACE, header(50), 2.0 + LASTING_S)


def test_in_quiet_times_nothing_is_left() -> None:
    refusals = Refusals()
    for producer_id in range(3):
        refusals.note(PLACE, header(0, producer_id=producer_id), 1.0)
    refusals.check(("u", None, 0), header(0), 2.0 + LASTING_S, is_known=False)
    assert not refusals


def test_batches_without_a_producer_are_not_noted_and_of_others_only_the_last() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(-1, producer_id=-1, epoch=-1), 1.0)
    assert not refusals
    for producer_id in range(MOST + 5):
        refusals.note(PLACE, header(0, producer_id=producer_id), 1.0)
    assert len(refusals) == MOST
    assert not is_out_of_order(refusals, PLACE, header(3, producer_id=4), 1.0)
    assert is_out_of_order(refusals, PLACE, header(3, producer_id=5), 1.0)
