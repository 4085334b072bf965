"""The controller's rules, one test each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.isr.election import (
    Election,
    after_death,
    after_log_loss,
    after_return,
    after_short_leader,
    after_unclean_restart,
    elect,
    prefer,
    preferred_due,
)
from headrace.isr.state import NEVER, NO_LEADER, PartitionState

REPLICAS = (1, 2, 3)
ALL = {1, 2, 3}


def state(isr: tuple[int, ...] = REPLICAS, leader: int = 1, leader_epoch: int = 5) -> PartitionState:
    return PartitionState(REPLICAS, isr, leader, leader_epoch, 10)


def changed(found: PartitionState | None) -> PartitionState:
    assert found is not None
    return found


def test_a_leader_that_may_stay_stays() -> None:
    assert elect(REPLICAS, (1, 2, 3), ALL, 2, unclean=False) == Election(2, (1, 2, 3))


def test_the_first_replica_that_lives_and_is_in_sync_leads() -> None:
    assert elect(REPLICAS, (2, 3), ALL, NO_LEADER, unclean=False) == Election(2, (2, 3))
    assert elect(REPLICAS, (2, 3), {1, 3}, NO_LEADER, unclean=False) == Election(3, (2, 3))


def test_nobody_outside_the_in_sync_set_is_elected() -> None:
    assert elect(REPLICAS, (3,), {1, 2}, 3, unclean=False) is None


def test_an_unclean_election_happens_only_when_no_member_lives_and_leaves_one_member() -> None:
    assert elect(REPLICAS, (3,), {2, 3}, 1, unclean=True) == Election(3, (3,))
    assert elect(REPLICAS, (3,), {2}, 3, unclean=True) == Election(2, (2,), is_unclean=True)
    assert elect(REPLICAS, (3,), set(), 3, unclean=True) is None


def test_the_preferred_leader_takes_over_only_if_it_is_in_sync_and_alive() -> None:
    assert elect(REPLICAS, REPLICAS, ALL, 3, unclean=False, preferred=True) == Election(1, REPLICAS)
    assert elect(REPLICAS, (2, 3), ALL, 3, unclean=False, preferred=True) == Election(3, (2, 3))
    assert elect(REPLICAS, REPLICAS, {2, 3}, 3, unclean=False, preferred=True) == Election(3, REPLICAS)


def test_the_death_of_a_leader_moves_leadership_and_raises_both_epochs() -> None:
    assert after_death(state(), 1, ALL) == PartitionState(REPLICAS, (2, 3), 2, 6, 11)


def test_the_death_of_a_follower_raises_only_the_partition_epoch() -> None:
    assert after_death(state(), 3, ALL) == PartitionState(REPLICAS, (1, 2), 1, 5, 11)


def test_the_death_of_a_replica_out_of_sync_changes_nothing() -> None:
    assert after_death(state(isr=(1, 2)), 3, ALL) is None


def test_the_last_in_sync_replica_stays_in_the_set_when_it_dies_and_leads_again_when_it_returns() -> None:
    alone = state(isr=(1,))
    dead = changed(after_death(alone, 1, {2, 3}))
    assert dead == PartitionState(REPLICAS, (1,), NO_LEADER, 6, 11)
    assert after_return(dead, {2, 3}) is None
    assert after_return(dead, ALL) == PartitionState(REPLICAS, (1,), 1, 7, 12)


def test_a_node_that_returns_takes_nobodys_leadership() -> None:
    assert after_return(state(leader=2), ALL) is None


def test_the_user_may_allow_an_unclean_election() -> None:
    dead = changed(after_death(state(isr=(1,)), 1, {2, 3}, unclean=True))
    assert (dead.leader, dead.isr) == (2, (2,))


def test_a_follower_that_lost_bytes_leaves_the_in_sync_set() -> None:
    assert after_unclean_restart(state(), 3) == PartitionState(REPLICAS, (1, 2), 1, 5, 11)


def test_a_leader_that_lost_bytes_gives_up_its_leadership() -> None:
    assert after_unclean_restart(state(), 1) == PartitionState(REPLICAS, (2, 3), 2, 6, 11)


def test_a_leader_that_lost_bytes_does_not_lead_even_if_its_successors_are_away() -> None:
    away = changed(after_unclean_restart(state(), 1, alive={1}))
    assert (away.leader, away.isr) == (NO_LEADER, (2, 3))


def test_the_last_member_that_lost_bytes_leads_in_a_new_epoch() -> None:
    assert after_unclean_restart(state(isr=(1,)), 1) == PartitionState(REPLICAS, (1,), 1, 6, 11)


def test_the_unclean_restart_of_a_replica_out_of_sync_changes_nothing() -> None:
    assert after_unclean_restart(state(isr=(1, 2)), 3) is None


@pytest.mark.parametrize(
    ("leader", "isr", "alive", "due"),
    [(1, REPLICAS, ALL, False), (2, REPLICAS, ALL, True), (2, (2, 3), ALL, False), (2, REPLICAS, {2, 3}, False)],
)
def test_a_preferred_election_is_due(leader: int, isr: tuple[int, ...], alive: set[int], due: bool) -> None:
    partition = state(isr=isr, leader=leader)
    assert preferred_due(partition, alive) is due
    assert (prefer(partition, alive) is not None) is due


def test_the_preferred_leader_begins_a_new_epoch() -> None:
    assert prefer(state(leader=2), ALL) == PartitionState(REPLICAS, REPLICAS, 1, 6, 11)


subsets = st.sets(st.sampled_from(REPLICAS))


@given(
    isr=subsets.filter(bool),
    leader=st.sampled_from((NO_LEADER, *REPLICAS)),
    alive=subsets,
    node=st.sampled_from(REPLICAS),
    rule=st.sampled_from(["death", "return", "unclean restart", "preferred"]),
)
def test_every_clean_rule_elects_from_the_old_in_sync_set_and_never_widens_it(
    isr: set[int], leader: int, alive: set[int], node: int, rule: str
) -> None:
    before = state(tuple(sorted(isr)), leader if leader in isr else NO_LEADER)
    after = {
        "death": lambda: after_death(before, node, alive),
        "return": lambda: after_return(before, alive),
        "unclean restart": lambda: after_unclean_restart(before, node, alive),
        "preferred": lambda: prefer(before, alive),
    }[rule]()
    if after is None:
        return
    assert set(after.isr) <= set(before.isr)
    assert after.leader == NO_LEADER or after.leader in before.isr
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.leader_epoch - before.leader_epoch >= (after.leader != before.leader)


def test_a_replica_that_lost_its_log_leaves_the_in_sync_set_and_its_leadership():
    after = changed(after_log_loss(state(), 1, ALL))
    assert (after.isr, after.leader, after.leader_epoch) == ((2, 3), 2, 6)


def test_a_replica_that_lost_its_log_does_not_lead_while_the_others_are_away():
    after = changed(after_log_loss(state((1, 2)), 1, {1}))
    assert (after.isr, after.leader) == ((2,), NO_LEADER)


def test_the_last_replica_in_sync_stays_when_its_log_is_lost():
    assert after_log_loss(state((1,)), 1, ALL) is None


# Eligible leader replicas (KIP-966)


def tracked(
    isr: tuple[int, ...] = REPLICAS, leader: int = 1, *, elr: tuple[int, ...] = (), least: int = 2, **more: object
) -> PartitionState:
    return PartitionState(REPLICAS, isr, leader, 5, 10, elr=elr, min_isr=least, **more)  # type: ignore[arg-type]


def test_a_member_that_leaves_with_enough_others_in_sync_is_not_eligible() -> None:
    after = changed(after_death(tracked(), 3, {1, 2}))
    assert (after.isr, after.elr) == ((1, 2), ())


def test_a_member_that_leaves_too_few_behind_is_eligible() -> None:
    after = changed(after_death(tracked((1, 2)), 2, {1}))
    assert (after.isr, after.elr, after.leader) == ((1,), (2,), 1)


def test_no_more_members_are_wanted_than_there_are_replicas() -> None:
    two = PartitionState((1, 2), (1, 2), 1, 5, 10, min_isr=3)
    assert changed(after_death(two, 2, {1})).elr == (2,)
    one = PartitionState((1,), (1,), NO_LEADER, 5, 10, min_isr=3)
    assert changed(after_return(one, {1})).elr == ()


def test_nobody_else_is_eligible_when_enough_are_in_sync_again() -> None:
    grown = changed(tracked((1,), elr=(2,)).after(isr={1, 3}, leader=1))
    assert (grown.isr, grown.elr) == ((1, 3), ())


def test_the_last_member_leaves_and_stays_eligible_as_the_last_known_leader() -> None:
    dead = changed(after_death(tracked((1,), elr=(2,)), 1, {3}))
    assert (dead.isr, dead.elr, dead.leader, dead.last_known_elr) == ((), (1, 2), NO_LEADER, (1,))


def test_an_eligible_replica_leads_when_nobody_in_sync_is_alive_and_the_others_remain_eligible() -> None:
    after = changed(after_death(tracked((1,), elr=(2, 3)), 1, {2, 3}))
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (2, (2,), (1, 3), ())
    assert (after.leader_epoch, after.unclean_epoch) == (6, NEVER)


def test_an_eligible_replica_does_not_lead_while_a_member_is_alive() -> None:
    assert elect(REPLICAS, (3,), ALL, NO_LEADER, unclean=False, elr=(1, 2)) == Election(3, (3,))


def test_who_lost_bytes_is_neither_in_sync_nor_eligible() -> None:
    after = changed(after_unclean_restart(tracked((1,), elr=(2, 3)), 1, {2}))
    assert (after.leader, after.isr, after.elr) == (2, (2,), (3,))
    assert changed(after_unclean_restart(tracked((1,), elr=(2, 3)), 3, ALL)).elr == (2,)


def test_nobody_leads_until_an_eligible_replica_returns_however_long_the_one_that_lost_bytes_is_back() -> None:
    after = changed(after_unclean_restart(tracked((1,), elr=(2,)), 1, {1, 3}))
    assert (after.leader, after.isr, after.elr) == (NO_LEADER, (), (2,))
    assert after_return(after, {1, 3}) is None
    assert changed(after_return(after, {1, 2, 3})).leader == 2


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 1)])
def test_the_last_candidate_leads_uncleanly_when_all_have_lost_something(first: int, last: int) -> None:
    dead = changed(after_death(tracked((2,), 2, elr=(1,)), 2, {3}))
    one = changed(after_unclean_restart(dead, first, {3}))
    both = changed(after_unclean_restart(one, last, {3}))
    assert (both.isr, both.elr, both.last_known_elr) == ((), (), (last,))
    assert after_return(both, {first, 3}) is None
    led = changed(after_return(both, ALL))
    assert (led.leader, led.isr, led.last_known_elr) == (last, (last,), ())
    assert led.unclean_epoch == led.leader_epoch


def test_the_only_one_in_sync_that_lost_bytes_leads_uncleanly_if_nobody_is_eligible() -> None:
    gone = changed(after_unclean_restart(tracked((1,), least=1), 1, {2, 3}))
    assert (gone.isr, gone.leader, gone.last_known_elr) == ((), NO_LEADER, (1,))
    led = changed(after_return(gone, ALL))
    assert (led.leader, led.unclean_epoch) == (1, led.leader_epoch)


def test_an_unclean_election_is_marked_with_its_epoch_and_leaves_nobody_eligible() -> None:
    dead = changed(after_death(tracked((1,), elr=(2,)), 1, {3}, unclean=True))
    assert (dead.leader, dead.isr, dead.elr, dead.unclean_epoch) == (3, (3,), (), 6)
    later = changed(after_death(changed(dead.after(isr={1, 3}, leader=3)), 3, {1}))
    assert (later.leader, later.unclean_epoch) == (1, 6)


def test_a_lost_log_is_neither_in_sync_nor_eligible_unless_it_is_the_last_candidate() -> None:
    after = changed(after_log_loss(tracked((1,), elr=(2,)), 1, {1, 3}))
    assert (after.isr, after.elr, after.leader) == ((), (2,), NO_LEADER)
    assert changed(after_log_loss(tracked((1,), elr=(2,)), 2, ALL)).elr == ()
    assert after_log_loss(tracked((), NO_LEADER, elr=(2,)), 2, ALL) is None


def test_a_leader_that_lacks_what_is_committed_is_deposed() -> None:
    after = changed(after_short_leader(tracked(), 3, ALL))
    assert (after.leader, after.isr, after.elr, after.leader_epoch) == (3, (2, 3), (), 6)
    after = changed(after_short_leader(tracked((1,), elr=(2, 3)), 3, ALL))
    assert (after.leader, after.isr, after.elr) == (3, (3,), (2,))
    after = changed(after_short_leader(tracked((1,), elr=(3,)), 2, ALL))
    assert (after.leader, after.isr, after.elr) == (3, (3,), ())


def test_without_another_candidate_a_short_leader_leaves_nobody_until_a_person_elects_one() -> None:
    offline = changed(after_short_leader(tracked((1,)), 2, ALL))
    assert (offline.leader, offline.isr, offline.last_known_elr) == (NO_LEADER, (), (2, 1))
    assert after_return(offline, ALL) is None
    assert changed(after_return(offline, ALL, unclean=True)).leader == 2
    assert changed(after_short_leader(tracked((1,)), 2, ALL, unclean=True)).leader == 2


def test_a_leader_is_not_deposed_by_itself_or_by_a_stranger() -> None:
    assert after_short_leader(tracked(), 1, ALL) is None
    assert after_short_leader(tracked(), 4, ALL) is None


def test_fewer_wanted_in_sync_end_the_eligibility_of_others() -> None:
    state = tracked((1,), elr=(2,), least=1)
    assert changed(state.after(isr=state.isr, leader=state.leader)).elr == ()
    state = tracked((1,), elr=(2,), least=3)
    assert state.after(isr=state.isr, leader=state.leader) is None


@given(
    isr=subsets,
    elr=subsets,
    lost=st.sampled_from(REPLICAS),
    alive=subsets,
    least=st.integers(1, 3),
    rule=st.sampled_from(["death", "return", "unclean restart", "log loss", "short leader"]),
)
def test_every_clean_rule_elects_a_candidate_and_makes_nobody_one(
    isr: set[int], elr: set[int], lost: int, alive: set[int], least: int, rule: str
) -> None:
    leader = min(isr) if isr else NO_LEADER
    eligible = elr - isr if len(isr) < least else set()
    before = tracked(tuple(sorted(isr)), leader, elr=tuple(sorted(eligible)), least=least)
    after = {
        "death": lambda: after_death(before, lost, alive),
        "return": lambda: after_return(before, alive),
        "unclean restart": lambda: after_unclean_restart(before, lost, alive - {lost}),
        "log loss": lambda: after_log_loss(before, lost, alive),
        "short leader": lambda: after_short_leader(before, lost, alive),
    }[rule]()
    if after is None:
        return
    assert set(after.candidates) <= set(before.candidates)
    assert not (after.elr and len(after.isr) >= least)
    assert after.unclean_epoch == NEVER or after.leader == before.leader == lost
    if rule in ("unclean restart", "log loss"):
        assert lost not in after.candidates
