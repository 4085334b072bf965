"""Where two logs part, one rule each; and two logs become one, whatever leaders wrote before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.isr.divergence import (
    UNKNOWN,
    EpochEnd,
    Truncation,
    diverging,
    end_offset_for_epoch,
    known_committed,
    truncate_to,
)
from headrace.storage.epochs import Epochs


def history(*entries: tuple[int, int]) -> Epochs:
    return Epochs(list(entries))


LEADER = history((1, 0), (3, 10), (5, 20))  # ends at 30


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (4, (3, 20)), (5, (5, 30)), (6, (5, 30)), (7, (7, 30)), (8, (-1, -1))],
)
def test_the_leader_tells_the_last_epoch_at_or_below_and_its_end(epoch: int, answer: tuple[int, int]) -> None:
    """Epoch 7 is the leader's own; it has no record yet and begins at the end."""
    assert end_offset_for_epoch(LEADER, 30, 7, epoch) == answer


def test_an_undefined_epoch_has_no_end() -> None:
    assert end_offset_for_epoch(LEADER, 30, 7, -1) == UNKNOWN


def test_a_leader_with_an_empty_log_still_knows_that_older_epochs_ended() -> None:
    assert end_offset_for_epoch(history(), 0, 4, 2) == EpochEnd(2, 0)


@pytest.mark.parametrize(("fetch_offset", "epoch"), [(30, 5), (25, 5), (20, 3), (15, 3), (10, 1), (0, -1), (30, 7)])
def test_a_log_that_is_a_part_of_the_leaders_does_not_diverge(fetch_offset: int, epoch: int) -> None:
    assert diverging(LEADER, 0, 30, 7, fetch_offset, epoch) is None


@pytest.mark.parametrize(
    ("fetch_offset", "epoch", "answer"), [(25, 4, (3, 20)), (22, 3, (3, 20)), (31, 5, (5, 30)), (12, 2, (1, 10))]
)
def test_a_log_that_parts_is_told_where(fetch_offset: int, epoch: int, answer: tuple[int, int]) -> None:
    assert diverging(LEADER, 0, 30, 7, fetch_offset, epoch) == answer


@pytest.mark.parametrize(("fetch_offset", "epoch"), [(2, 1), (30, 9)])
def test_without_common_ground_the_offset_is_out_of_range(fetch_offset: int, epoch: int) -> None:
    with pytest.raises(ApiError) as error:
        diverging(LEADER, 5, 30, 7, fetch_offset, epoch)
    assert error.value.code is ErrorCode.offset_out_of_range


def test_a_follower_that_has_the_epoch_cuts_at_the_earlier_end() -> None:
    assert truncate_to(history((1, 0), (3, 10)), 25, EpochEnd(3, 20)) == Truncation(20, True)
    assert truncate_to(history((1, 0), (3, 10), (4, 15)), 25, EpochEnd(3, 20)) == Truncation(15, True)


def test_a_follower_that_lacks_the_epoch_cuts_its_own_newer_ones_and_asks_again() -> None:
    """KIP-279: logs may have diverged more than once."""
    assert truncate_to(history((1, 0), (4, 12)), 25, EpochEnd(3, 20)) == Truncation(12, False)


def test_a_follower_without_history_follows_the_leaders_end() -> None:
    assert truncate_to(history(), 25, EpochEnd(3, 20)) == Truncation(20, True)


def test_nothing_is_cut_beyond_the_end() -> None:
    assert truncate_to(history((3, 0)), 15, EpochEnd(3, 20)) == Truncation(15, True)


def test_a_follower_is_not_cut_below_what_it_knows_committed_and_has() -> None:
    log = history((3, 0), (5, 10))
    assert known_committed(log, 15, 12, -1) == 12
    assert known_committed(log, 10, 12, -1) == 10
    assert known_committed(log, 15, 0, -1) == 0


def test_what_was_known_before_an_unclean_election_counts_no_more() -> None:
    log = history((3, 0), (5, 10))
    assert known_committed(log, 15, 12, 5) == 12
    assert known_committed(log, 15, 12, 6) == 0
    assert known_committed(log, 15, 10, 5) == 0


@given(st.data())
def test_after_few_questions_a_follower_holds_a_part_of_the_leaders_log(data: st.DataObject) -> None:
    """Leaders of rising epochs, each with a prefix of somebody's log: what unclean elections may leave behind."""
    logs: list[list[tuple[int, int]]] = [[], [], []]
    for epoch in range(1, data.draw(st.integers(1, 7))):
        one = data.draw(st.integers(0, 2))
        logs[one].extend((epoch, data.draw(st.just(100 * epoch + n))) for n in range(data.draw(st.integers(0, 3))))
        for other in range(3):
            if other != one and data.draw(st.booleans()):
                logs[other] = logs[one][: data.draw(st.integers(0, len(logs[one])))]
    leader, follower = logs[0], logs[1]
    epochs = {id(log): Epochs() for log in (leader, follower)}
    for log in (leader, follower):
        for offset, (epoch, _) in enumerate(log):
            epochs[id(log)].assign(epoch, offset)
    theirs, ours = epochs[id(leader)], epochs[id(follower)]
    common = next((n for n, (a, b) in enumerate(zip(leader, follower, strict=False)) if a != b), None)
    common = min(len(leader), len(follower)) if common is None else common
    for _ in range(10):
        answer = diverging(theirs, 0, len(leader), 10, len(follower), ours.latest)
        if answer is None:
            break
        cut = truncate_to(ours, len(follower), answer)
        assert cut.end_offset < len(follower), "it asks again without end"
        del follower[cut.end_offset :]
        ours.truncate_end(cut.end_offset)
    assert follower == leader[: len(follower)]
    assert len(follower) == common, "more was cut than had to be"
