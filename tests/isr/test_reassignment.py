"""Replicas that move, one rule each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.isr.reassignment import begin, cancel, original, step
from headrace.isr.state import NO_LEADER, PartitionState

ALL = {1, 2, 3, 4, 5, 6}
STATE = PartitionState((1, 2, 3), (1, 2, 3), 1, 5, 10)


def changed(found: PartitionState | None) -> PartitionState:
    assert found is not None
    return found


def test_while_it_runs_old_and_new_replicas_are_replicas_and_the_leader_stays() -> None:
    assert begin(STATE, (4, 2, 5), ALL) == PartitionState((4, 2, 5, 1, 3), (2, 1, 3), 1, 5, 11, (4, 5), (1, 3))


def test_it_ends_when_the_whole_target_is_in_sync_and_the_leader_moves() -> None:
    running = changed(begin(STATE, (4, 2, 5), ALL))
    almost = changed(running.after(isr={1, 2, 3, 4}, leader=1))
    assert step(running, ALL) is None
    assert step(almost, ALL) is None
    ready = changed(almost.after(isr={1, 2, 3, 4, 5}, leader=1))
    assert step(ready, ALL) == PartitionState((4, 2, 5), (4, 2, 5), 4, 6, 14)


def test_a_leader_that_stays_begins_a_new_epoch_when_replicas_go() -> None:
    running = changed(begin(STATE, (1, 2), ALL))
    assert step(running, ALL) == PartitionState((1, 2), (1, 2), 1, 6, 12)


def test_the_new_leader_is_alive() -> None:
    running = changed(begin(STATE, (4, 2), ALL))
    ready = changed(running.after(isr={1, 2, 3, 4}, leader=1))
    assert changed(step(ready, {1, 2, 3})).leader == 2


def test_it_waits_while_nobody_of_the_target_lives() -> None:
    running = changed(begin(STATE, (4,), ALL))
    ready = changed(running.after(isr={1, 4}, leader=1))
    assert step(ready, {1, 2, 3}) is None


def test_a_new_order_alone_ends_at_once() -> None:
    assert begin(STATE, (3, 1, 2), ALL) == PartitionState((3, 1, 2), (3, 1, 2), 1, 5, 11)


def test_the_target_that_is_there_already_changes_nothing() -> None:
    assert begin(STATE, (1, 2, 3), ALL) is None
    assert step(STATE, ALL) is None
    assert cancel(STATE, ALL) is None


def test_cancelling_drops_what_was_added() -> None:
    running = changed(begin(STATE, (4, 2, 5), ALL))
    grown = changed(running.after(isr={1, 2, 3, 4}, leader=1))
    back = changed(cancel(grown, ALL))
    assert (set(back.replicas), set(back.isr), back.leader) == ({1, 2, 3}, {1, 2, 3}, 1)
    assert (back.adding, back.removing) == ((), ())


def test_cancelling_moves_a_leader_that_was_added() -> None:
    running = changed(begin(STATE, (4, 2, 5), ALL))
    led = changed(running.after(isr={2, 4}, leader=4))
    back = changed(cancel(led, ALL))
    assert (back.leader, back.isr, back.leader_epoch) == (2, (2,), led.leader_epoch + 1)


def test_it_cannot_be_cancelled_when_only_added_replicas_are_in_sync() -> None:
    running = changed(begin(STATE, (4, 5), ALL))
    only = changed(running.after(isr={4}, leader=4))
    assert cancel(only, ALL) is None
    assert begin(only, (6, 1), ALL) is None


def test_it_can_be_cancelled_when_an_old_replica_is_eligible() -> None:
    state = PartitionState((1, 2, 3, 4), (4,), 4, 7, 10, (4,), (3,), elr=(1,), min_isr=2)
    back = changed(cancel(state, ALL))
    assert (back.leader, back.isr, back.elr) == (1, (1,), ())


def test_a_replica_that_goes_is_not_eligible_any_more() -> None:
    state = PartitionState((1, 2, 3, 4), (1,), 1, 5, 10, (4,), (3,), elr=(2, 4), min_isr=2)
    assert changed(cancel(state, ALL)).elr == (2,)


def test_another_target_takes_the_place_of_the_first() -> None:
    running = changed(begin(STATE, (4, 2, 5), ALL))
    again = changed(begin(running, (2, 5, 6), ALL))
    assert set(again.replicas) == {1, 2, 3, 5, 6}
    assert (set(again.adding), set(again.removing)) == ({5, 6}, {1, 3})
    assert set(original(again)) == {1, 2, 3}


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_at_no_time_are_there_fewer_in_sync_copies_than_the_rules_promise(
    old: list[int], target: list[int], data: st.DataObject
) -> None:
    isr = data.draw(st.lists(st.sampled_from(old), min_size=1, unique=True))
    state = PartitionState(tuple(old), tuple(isr), isr[0], 0)
    running = begin(state, target, ALL) or state
    assert set(running.isr) == set(isr)
    assert running.leader == isr[0]
    grown = running.after(isr=running.replicas, leader=running.leader) or running
    done = step(grown, ALL) or grown
    assert done.replicas == tuple(target)
    assert set(done.isr) == set(target)
    assert done.leader != NO_LEADER
    assert not done.is_reassigning
