"""What a leader concludes from the fetches of its followers, one rule each."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.isr.leader import LeaderReplicas
from headrace.isr.state import PartitionState

LAG_S = 10.0
REGISTERED = {1: 101, 2: 102, 3: 103}


def leader(
    isr: tuple[int, ...] = (1, 2, 3), *, end_offset: int = 0, high_watermark: int = 0, now_s: float = 0.0
) -> LeaderReplicas:
    state = PartitionState((1, 2, 3), isr, 1, 5, 10)
    return LeaderReplicas(1, state, end_offset=end_offset, high_watermark=high_watermark, now_s=now_s)


def fetch(replicas: LeaderReplicas, node: int, offset: int, end_offset: int, now_s: float = 0.0) -> bool:
    return replicas.fetched(node, offset, 100 + node, end_offset, now_s)


# The high watermark


def test_the_high_watermark_is_the_least_end_of_the_in_sync_set() -> None:
    replicas = leader()
    replicas.appended(10)
    assert not fetch(replicas, 2, 7, 10)
    assert fetch(replicas, 3, 4, 10)
    assert replicas.high_watermark == 4


def test_replicas_out_of_sync_do_not_count() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(10)
    assert fetch(replicas, 2, 7, 10)
    assert replicas.high_watermark == 7


def test_a_leader_alone_commits_what_it_has() -> None:
    replicas = leader(isr=(1,))
    assert replicas.appended(3)
    assert replicas.high_watermark == 3


def test_the_high_watermark_stands_still_while_too_few_are_in_sync() -> None:
    state = PartitionState((1, 2, 3), (1,), 1, 5, 10)
    replicas = LeaderReplicas(1, state, end_offset=4, high_watermark=2, now_s=0.0, min_isr=2)
    assert not replicas.appended(9)
    assert replicas.high_watermark == 2
    fetch(replicas, 2, 9, 9)
    assert replicas.committed(PartitionState((1, 2, 3), (1, 2), 1, 5, 11), 0.0)
    assert replicas.high_watermark == 9


def test_no_more_are_wanted_in_sync_than_there_are_replicas() -> None:
    state = PartitionState((1, 2), (1, 2), 1, 5, 10)
    replicas = LeaderReplicas(1, state, end_offset=0, high_watermark=0, now_s=0.0, min_isr=3)
    replicas.appended(9)
    assert fetch(replicas, 2, 7, 9)


def test_the_high_watermark_stands_still_while_others_are_eligible_whatever_the_leader_believes_is_wanted() -> None:
    state = PartitionState((1, 2, 3), (1,), 1, 5, 10, elr=(2,))
    replicas = LeaderReplicas(1, state, end_offset=4, high_watermark=2, now_s=0.0)
    assert not replicas.appended(9)
    assert replicas.committed(PartitionState((1, 2, 3), (1,), 1, 5, 11), 0.0)
    assert replicas.high_watermark == 9


def test_a_leader_that_waits_for_its_disk_counts_only_what_is_synced() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(2, 10)
    fetch(replicas, 2, 10, 10)
    assert replicas.high_watermark == 2


def test_the_high_watermark_never_goes_back() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(10)
    fetch(replicas, 2, 8, 10)
    assert not fetch(replicas, 2, 3, 10)
    assert replicas.high_watermark == 8


def test_a_new_leader_keeps_its_high_watermark_until_every_member_has_fetched() -> None:
    replicas = leader(end_offset=9, high_watermark=6)
    fetch(replicas, 2, 9, 9)
    assert replicas.high_watermark == 6
    assert not replicas.offsets_are_known
    fetch(replicas, 3, 9, 9)
    assert replicas.high_watermark == 9
    assert replicas.offsets_are_known


def test_strangers_and_words_of_earlier_incarnations_do_not_count() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(10)
    replicas.fetched(2, 3, 102, 10, 0.0)
    assert not replicas.fetched(2, 10, 101, 10, 0.0)
    assert not replicas.fetched(7, 10, 107, 10, 0.0)
    assert replicas.follower(7) is None
    assert replicas.high_watermark == 3


def test_a_proposed_member_counts_until_the_controller_has_answered() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(4)
    fetch(replicas, 2, 4, 4)
    fetch(replicas, 3, 4, 4)
    assert replicas.to_expand(REGISTERED) == (1, 2, 3)
    replicas.proposed((1, 2, 3), 10)
    replicas.appended(9)
    assert not fetch(replicas, 2, 9, 9)
    assert replicas.to_shrink(LAG_S + 1, LAG_S) is None
    assert not replicas.appended(9)
    assert replicas.high_watermark == 4
    assert replicas.refused()
    assert replicas.high_watermark == 9


def test_a_follower_that_keeps_up_is_waited_for_and_one_that_does_not_no_longer() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(4)
    fetch(replicas, 3, 4, 4)
    replicas.appended(9)
    fetch(replicas, 2, 9, 9)
    assert replicas.high_watermark == 4
    replicas.to_shrink(LAG_S + 1, LAG_S)
    assert replicas.appended(9)
    assert replicas.high_watermark == 9


def test_a_follower_that_is_fenced_is_not_waited_for() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(4)
    fetch(replicas, 3, 4, 4)
    replicas.appended(9)
    fetch(replicas, 2, 9, 9)
    assert replicas.to_expand({1: 101, 2: 102}) is None
    assert replicas.appended(9)
    assert replicas.high_watermark == 9


def test_a_member_that_is_to_leave_counts_until_the_controller_has_answered() -> None:
    replicas = leader()
    replicas.appended(9)
    fetch(replicas, 2, 9, 9)
    replicas.proposed((1, 2), 10)
    assert replicas.high_watermark == 0
    assert replicas.committed(PartitionState((1, 2, 3), (1, 2), 1, 5, 11), 0.0)
    assert replicas.high_watermark == 9


def test_a_newer_state_settles_a_proposal_and_an_older_one_is_passed_over() -> None:
    replicas = leader(isr=(1, 2))
    replicas.proposed((1, 2, 3), 10)
    assert not replicas.committed(PartitionState((1, 2, 3), (1, 3), 1, 5, 9), 0.0)
    assert replicas.proposal == (1, 2, 3)
    replicas.committed(PartitionState((1, 2, 3), (1,), 1, 5, 11), 0.0)
    assert replicas.proposal is None
    assert replicas.state.isr == (1,)


def test_another_leaders_state_is_a_mistake_of_the_driver() -> None:
    with pytest.raises(AssertionError):
        leader().committed(PartitionState((1, 2, 3), (1, 2, 3), 1, 6, 11), 0.0)


# Who is in sync


def test_a_follower_that_was_not_at_the_end_for_long_enough_leaves() -> None:
    replicas = leader()
    replicas.appended(5)
    fetch(replicas, 2, 5, 5, now_s=8.0)
    assert replicas.to_shrink(LAG_S, LAG_S) is None
    replicas.appended(9)
    assert replicas.to_shrink(LAG_S + 1, LAG_S) == (1, 2)
    assert replicas.to_shrink(8.0 + LAG_S + 1, LAG_S) == (1,)


def test_a_follower_at_the_end_stays_however_long_it_is_silent() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(5)
    fetch(replicas, 2, 5, 5)
    assert replicas.to_shrink(1000.0, LAG_S) is None


def test_a_follower_that_keeps_up_under_load_stays_though_it_is_never_at_the_end() -> None:
    replicas = leader(isr=(1, 2))
    for turn in range(50):
        replicas.appended(10 * turn + 10)
        fetch(replicas, 2, 10 * turn, 10 * turn + 10, now_s=float(turn))
    assert replicas.to_shrink(50.0, LAG_S) is None


def test_a_follower_that_fetches_but_falls_behind_leaves() -> None:
    replicas = leader(isr=(1, 2))
    for turn in range(50):
        replicas.appended(10 * turn + 10)
        fetch(replicas, 2, turn, 10 * turn + 10, now_s=float(turn))
    assert replicas.to_shrink(50.0, LAG_S) == (1,)


def test_a_member_has_time_to_fetch_from_a_new_leader() -> None:
    replicas = leader(end_offset=5, now_s=100.0)
    assert replicas.to_shrink(100.0 + LAG_S, LAG_S) is None
    assert replicas.to_shrink(101.0 + LAG_S, LAG_S) == (1,)


def test_a_follower_joins_when_it_has_reached_the_high_watermark() -> None:
    replicas = leader(isr=(1, 2))
    replicas.appended(9)
    fetch(replicas, 2, 6, 9)
    fetch(replicas, 3, 5, 9)
    assert replicas.to_expand(REGISTERED) is None
    fetch(replicas, 3, 6, 9)
    assert replicas.to_expand(REGISTERED) == (1, 2, 3)


def test_a_follower_joins_only_when_it_has_reached_the_start_of_the_epoch() -> None:
    replicas = leader(isr=(1, 2), end_offset=9, high_watermark=4)
    fetch(replicas, 3, 8, 9)
    assert replicas.to_expand(REGISTERED) is None
    fetch(replicas, 3, 9, 9)
    assert replicas.to_expand(REGISTERED) == (1, 2, 3)


@pytest.mark.parametrize("registered", [{1: 101, 2: 102}, {**REGISTERED, 3: 104}])
def test_a_node_that_is_fenced_or_has_restarted_does_not_join(registered: dict[int, int]) -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, 0)
    assert replicas.to_expand(registered) is None


def test_a_node_that_never_fetched_does_not_join() -> None:
    assert leader(isr=(1, 2)).to_expand({**REGISTERED, 3: -1}) is None


def test_one_proposal_at_a_time() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, 0)
    replicas.proposed((1, 2, 3), 10)
    replicas.appended(5)
    assert replicas.to_expand(REGISTERED) is None
    assert replicas.to_shrink(1000.0, LAG_S) is None
    with pytest.raises(AssertionError):
        replicas.proposed((1,), 10)


def test_replicas_that_are_added_are_met_and_those_that_are_removed_are_forgotten() -> None:
    replicas = leader()
    replicas.committed(PartitionState((1, 2, 4), (1, 2), 1, 5, 11, (4,)), 0.0)
    assert replicas.follower(3) is None
    assert replicas.follower(4) is not None


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 50)), max_size=40))
def test_whatever_is_told_the_high_watermark_rises_and_is_held_by_the_leader(events: list[tuple[int, int]]) -> None:
    replicas = leader()
    end = 0
    seen = [0]
    for node, offset in events:
        if node == 1:
            end = max(end, offset)
            replicas.appended(end)
        else:
            fetch(replicas, node, min(offset, end), end)
        seen.append(replicas.high_watermark)
    assert all(before <= after for before, after in pairwise(seen))
    assert seen[-1] <= end
