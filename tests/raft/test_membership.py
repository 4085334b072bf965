"""Membership changes, one server at a time (thesis, chapter 4)."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raft_stage import OPTIONS, Cluster, Solo

from headrace.raft.machine import Raft
from headrace.raft.membership import Change, ChangeKind, Memberships, changed, founding
from headrace.raft.memory import MemoryStorage
from headrace.raft.messages import (
    AppendAccepted,
    AppendEntries,
    Heartbeat,
    PreVote,
    PreVoteReply,
    RequestVote,
    VoteReply,
)
from headrace.raft.outcome import Dropped, Proposed, Reason
from headrace.raft.quorum import Tally, agreed, majority, tally
from headrace.raft.ready import RoleName
from headrace.raft.records import Entry, Membership

ADD, PROMOTE, REMOVE = ChangeKind


def do(cluster: Cluster, node: int, kind: ChangeKind, whom: int) -> None:
    outcome = cluster[node].raft.change(Change(kind, whom))
    assert isinstance(outcome, Proposed), outcome
    cluster.settle()


nodes = st.sets(st.integers(1, 9), min_size=1, max_size=7)


@given(voters=nodes, learners=nodes, kind=st.sampled_from(ChangeKind), node=st.integers(1, 9))
def test_majorities_before_and_after_a_change_have_a_server_in_common(voters, learners, kind, node):
    before = Membership(tuple(sorted(voters)), tuple(sorted(learners - voters)))
    after = changed(before, Change(kind, node))
    if isinstance(after, Reason):
        return
    assert len(set(before.voters) ^ set(after.voters)) <= 1 and after.voters
    for one in combinations(before.voters, majority(before.voters)):
        for two in combinations(after.voters, majority(after.voters)):
            assert set(one) & set(two)


@given(voters=nodes, votes=st.dictionaries(st.integers(1, 9), st.booleans()))
def test_an_election_is_won_or_lost_when_the_rest_cannot_change_it(voters, votes):
    granted = sum(votes.get(voter) is True for voter in voters)
    possible = sum(votes.get(voter) is not False for voter in voters)
    expected = Tally.WON if 2 * granted > len(voters) else Tally.OPEN if 2 * possible > len(voters) else Tally.LOST
    assert tally(voters, votes) is expected


@given(voters=nodes, reached=st.dictionaries(st.integers(1, 9), st.integers(0, 20)))
def test_a_majority_has_reached_what_is_agreed_and_not_more(voters, reached):
    def count(index: int) -> int:
        return sum(reached.get(voter, 0) >= index for voter in voters)

    index = agreed(voters, reached)
    assert 2 * count(index) > len(voters) >= 2 * count(index + 1)


def test_a_cluster_is_founded_by_the_same_entry_everywhere():
    storage = MemoryStorage()
    storage.save(founding([3, 1, 2]))
    raft = Raft(1, storage, OPTIONS, Solo().raft._state.dice)
    assert (raft.membership, raft.standing.term, raft.last_index) == (Membership((1, 2, 3)), 1, 1)


def test_a_server_without_a_cluster_waits():
    server = Solo(node_id=4, terms=())
    assert server.tick(10 * OPTIONS.election_ticks) == []
    assert server.role is RoleName.FOLLOWER


def test_a_server_joins_as_a_learner_catches_up_and_becomes_a_voter():
    cluster = Cluster(joiners=1)
    cluster.elect(1).propose(*[b"%d" % number for number in range(10)])
    do(cluster, 1, ADD, 4)
    assert cluster[4].log == cluster[1].log
    assert cluster[4].raft.membership == Membership((1, 2, 3), (4,))
    do(cluster, 1, PROMOTE, 4)
    assert all(server.raft.membership == Membership((1, 2, 3, 4)) for server in cluster.servers.values())


def test_a_learner_is_not_counted_and_holds_no_election():
    cluster = Cluster(founders=2, joiners=1)
    cluster.elect(1)
    do(cluster, 1, ADD, 3)
    cluster.cuts = {2}
    index = cluster[1].propose(b"a").last_index
    cluster.settle()
    assert cluster[1].raft.commit_index < index
    assert not any(isinstance(message, PreVote) for message in cluster[3].tick(5 * OPTIONS.election_ticks))


def test_a_learner_votes_when_it_is_asked():
    """It may have been promoted by an entry that it does not have yet."""
    cluster = Cluster(joiners=1)
    cluster.elect(1)
    do(cluster, 1, ADD, 4)
    cluster[4].tick(OPTIONS.election_ticks)
    assert cluster[4].answer(RequestVote(2, 4, 9, 9, 9), VoteReply).granted


def test_a_learner_that_is_behind_is_not_promoted():
    cluster = Cluster(joiners=1, options=replace(OPTIONS, promote_lag=5))
    cluster.elect(1)
    cluster.cuts = {4}
    do(cluster, 1, ADD, 4)
    cluster[1].propose(*[b"a"] * 10)
    cluster.settle()
    assert cluster[1].raft.change(Change(PROMOTE, 4)) == Dropped(Reason.LEARNER_BEHIND, 1)
    cluster.cuts = set()
    cluster.beat(1)
    cluster.beat(1)
    do(cluster, 1, PROMOTE, 4)


def test_nothing_changes_before_an_entry_of_the_leader_s_term_is_committed():
    """Otherwise two changes of two terms, neither committed, could make majorities that do not meet."""
    cluster = Cluster()
    cluster.settle()
    cluster.cuts = {3}
    server = cluster[1]
    server.tick(OPTIONS.election_ticks)
    server.step(PreVoteReply(2, 1, 2, True), VoteReply(2, 1, 2, True))
    assert server.role is RoleName.LEADER
    assert server.raft.change(Change(REMOVE, 3)) == Dropped(Reason.TERM_NOT_STARTED, 1)
    server.step(AppendAccepted(2, 1, 2, 2))
    assert isinstance(server.raft.change(Change(REMOVE, 3)), Proposed)


def test_one_change_at_a_time():
    cluster = Cluster(joiners=2)
    cluster.elect(1)
    cluster.cuts = {2, 3}
    cluster[1].raft.change(Change(ADD, 4))
    assert cluster[1].raft.change(Change(ADD, 5)) == Dropped(Reason.CHANGE_PENDING, 1)
    cluster.cuts = set()
    cluster.settle()
    cluster.beat(1)
    do(cluster, 1, ADD, 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change(ADD, 2), Reason.ALREADY_A_MEMBER),
        (Change(PROMOTE, 2), Reason.NOT_A_LEARNER),
        (Change(PROMOTE, 7), Reason.NOT_A_LEARNER),
        (Change(REMOVE, 7), Reason.NOT_A_MEMBER),
    ],
)
def test_changes_that_make_no_sense_are_dropped(change, reason):
    cluster = Cluster()
    cluster.elect(1)
    assert cluster[1].raft.change(change) == Dropped(reason, 1)


def test_the_last_voter_stays():
    cluster = Cluster(founders=1)
    cluster.elect(1)
    assert cluster[1].raft.change(Change(REMOVE, 1)) == Dropped(Reason.LAST_VOTER, 1)


def test_changes_are_asked_of_the_leader():
    assert Solo().raft.change(Change(ADD, 4)) == Dropped(Reason.NO_LEADER)


def test_a_membership_is_in_force_when_it_is_appended():
    server = Solo()
    entry = Entry(2, 1, membership=Membership((1, 2, 3, 4)))
    server.step(AppendEntries(2, 1, 1, 1, 1, (entry,), 0))
    assert server.raft.membership.voters == (1, 2, 3, 4)


def test_a_membership_that_is_overwritten_was_never_in_force():
    server = Solo()
    server.step(AppendEntries(2, 1, 1, 1, 1, (Entry(2, 1, membership=Membership((1, 2, 3, 4))),), 0))
    server.step(AppendEntries(3, 1, 2, 1, 1, (Entry(2, 2, b"x"),), 0))
    assert server.raft.membership.voters == (1, 2, 3)
    assert server.restart().raft.membership.voters == (1, 2, 3)


def test_a_removed_server_hears_nothing_more_and_disturbs_nobody():
    cluster = Cluster()
    cluster.elect(1)
    do(cluster, 1, REMOVE, 3)
    cluster.delivered.clear()
    cluster.beat(1)
    assert all(message.to != 3 for message in cluster.delivered)
    cluster.tick(3, 5 * OPTIONS.election_ticks)
    cluster.beat(1)
    assert (cluster[1].role, cluster[1].term) == (RoleName.LEADER, 2)


def test_a_leader_that_removes_itself_leads_until_that_is_committed_and_does_not_count_itself():
    cluster = Cluster()
    server = cluster.elect(1)
    server.raft.change(Change(REMOVE, 1))
    server.run()
    server.step(AppendAccepted(2, 1, 2, 3))
    assert (server.role, server.raft.commit_index) == (RoleName.LEADER, 2)
    server.step(AppendAccepted(3, 1, 2, 3))
    assert (server.role, server.raft.commit_index) == (RoleName.FOLLOWER, 3)


def test_a_leader_that_has_removed_itself_lets_another_lead_at_once():
    cluster = Cluster()
    cluster.elect(1)
    do(cluster, 1, REMOVE, 1)
    assert RoleName.LEADER in {cluster[2].role, cluster[3].role}
    assert not any(isinstance(message, PreVote) for message in cluster[1].tick(5 * OPTIONS.election_ticks))


def test_a_voter_whose_removal_is_not_committed_may_still_have_to_lead():
    """It alone may have the newest entries; without it nobody could be elected (found by the simulation)."""
    cluster = Cluster(founders=2)
    cluster.elect(1)
    cluster.cuts = {2}
    cluster[1].raft.change(Change(REMOVE, 1))
    cluster.settle()
    cluster.servers[1] = cluster[1].restart()
    cluster.cuts = set()
    for _ in range(4 * OPTIONS.election_ticks):
        cluster.tick(1)
        cluster.tick(2)
    assert cluster[2].role is RoleName.LEADER
    assert cluster[2].raft.membership == Membership((2,))


def test_a_smaller_cluster_goes_on_without_those_who_left():
    cluster = Cluster(founders=2)
    cluster.elect(1)
    cluster.cuts = {2}
    cluster[1].raft.read(7)
    cluster.settle()
    assert isinstance(cluster[1].raft.change(Change(REMOVE, 2)), Proposed)
    cluster[1].propose(b"alone")
    cluster.settle()
    assert cluster[1].committed[-1].payload == b"alone"
    assert [read.number for read in cluster[1].reads] == [7]


def test_a_snapshot_carries_the_membership_of_its_index():
    cluster = Cluster(joiners=1)
    server = cluster.elect(1)
    do(cluster, 1, ADD, 4)
    index = server.raft.applied_index
    do(cluster, 1, PROMOTE, 4)
    snapshot = server.raft.snapshot_at(index, b"")
    assert snapshot is not None and snapshot.membership == Membership((1, 2, 3), (4,))


def test_memberships_remember_what_can_be_asked_for():
    memberships = Memberships(0, Membership((1,)))
    for index in (3, 5, 9):
        memberships.append(index, Membership((index,)))
    memberships.truncate(9)
    memberships.compact(4)
    assert [memberships.at(index).voters for index in (3, 4, 5, 8)] == [(3,), (3,), (5,), (5,)]
    assert memberships.latest_index == 5


def test_heartbeats_reach_learners():
    cluster = Cluster(joiners=1)
    cluster.elect(1)
    do(cluster, 1, ADD, 4)
    assert 4 in {message.to for message in cluster[1].tick(2) if isinstance(message, Heartbeat)}
