"""One test per sentence of the paper on elections (Figure 2, 5.1, 5.2, 5.4.1; thesis 4.2.3, 6.2, 9.6, 3.10)."""

from __future__ import annotations

from random import Random

import pytest
from raft_stage import OPTIONS, Cluster, Solo

from headrace.raft.follower import DOUBT_TICKS
from headrace.raft.machine import Raft
from headrace.raft.messages import (
    AppendEntries,
    Heartbeat,
    HeartbeatAck,
    PreVote,
    PreVoteReply,
    RequestVote,
    Stale,
    TimeoutNow,
    VoteReply,
)
from headrace.raft.outcome import Dropped, Reason
from headrace.raft.ready import RoleName


def candidate(**arguments) -> Solo:
    """A server that was just encouraged to hold an election."""
    server = Solo(**arguments)
    server.tick(OPTIONS.election_ticks)
    assert server.role is RoleName.PRE_CANDIDATE
    server.step(PreVoteReply(2, 1, server.term + 1, True))
    return server


def leader(**arguments) -> Solo:
    server = candidate(**arguments)
    server.step(VoteReply(2, 1, server.term, True))
    assert server.role is RoleName.LEADER
    return server


# Terms (5.1)


def test_servers_start_as_followers():
    assert Solo().role is RoleName.FOLLOWER


@pytest.mark.parametrize("make", [Solo, candidate, leader])
def test_a_higher_term_makes_anybody_a_follower(make):
    server = make()
    server.step(AppendEntries(2, 1, 9, 1, 1, (), 0))
    assert (server.role, server.term, server.raft.standing.leader) == (RoleName.FOLLOWER, 9, 2)


def test_a_higher_term_in_an_answer_ends_a_leadership():
    server = leader()
    server.step(Stale(3, 1, 9))
    assert (server.role, server.term) == (RoleName.FOLLOWER, 9)


def test_a_leader_of_an_older_term_is_told_so_and_not_obeyed():
    server = Solo(terms=(1, 4))
    assert server.answer(AppendEntries(2, 1, 3, 1, 1, (), 1), Stale).term == 4
    assert server.answer(Heartbeat(2, 1, 3, 1, 0), Stale).term == 4
    assert server.raft.standing.leader is None


def test_votes_of_an_older_term_are_refused_with_the_present_one():
    server = Solo(terms=(1, 4))
    assert server.answer(RequestVote(2, 1, 3, 9, 3), VoteReply) == VoteReply(1, 2, 4, False)
    assert server.answer(PreVote(2, 1, 3, 9, 3), PreVoteReply) == PreVoteReply(1, 2, 4, False)


def test_terms_and_votes_survive_a_crash():
    server = Solo()
    server.step(RequestVote(2, 1, 5, 9, 4))
    again = server.restart()
    assert again.term == 5
    assert not again.answer(RequestVote(3, 1, 5, 9, 4), VoteReply).granted
    assert again.answer(RequestVote(2, 1, 5, 9, 4), VoteReply).granted


# Votes (5.2, 5.4.1)


def test_a_server_votes_for_the_first_who_asks_and_for_nobody_else_in_that_term():
    server = Solo()
    assert server.answer(RequestVote(2, 1, 5, 1, 1), VoteReply).granted
    assert not server.answer(RequestVote(3, 1, 5, 1, 1), VoteReply).granted
    assert server.answer(RequestVote(3, 1, 6, 1, 1), VoteReply).granted


def test_a_repeated_request_gets_the_same_vote():
    server = Solo()
    assert server.answer(RequestVote(2, 1, 5, 1, 1), VoteReply).granted
    assert server.answer(RequestVote(2, 1, 5, 1, 1), VoteReply).granted


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(3, 2, True), (4, 2, True), (1, 3, True), (2, 2, False), (9, 1, False)],
)
def test_a_vote_needs_a_log_that_is_at_least_as_up_to_date(last_index, last_term, granted):
    server = Solo(terms=(1, 2, 2))
    assert server.answer(PreVote(2, 1, 7, last_index, last_term), PreVoteReply).granted is granted
    assert server.answer(RequestVote(2, 1, 7, last_index, last_term), VoteReply).granted is granted


def test_a_candidate_votes_for_itself_and_refuses_others_of_its_term():
    server = candidate()
    assert server.role is RoleName.CANDIDATE
    assert not server.answer(RequestVote(3, 1, server.term, 9, 1), VoteReply).granted
    assert server.storage.hard_state().vote == 1


def test_a_candidate_with_a_majority_leads():
    server = candidate(voters=(1, 2, 3, 4, 5))
    server.step(PreVoteReply(3, 1, 2, True))
    server.step(VoteReply(2, 1, 2, True))
    assert server.role is RoleName.CANDIDATE
    server.step(VoteReply(3, 1, 2, True))
    assert server.role is RoleName.LEADER


def test_the_same_vote_counts_once():
    server = candidate(voters=(1, 2, 3, 4, 5))
    server.step(PreVoteReply(3, 1, 2, True))
    server.step(VoteReply(2, 1, 2, True), VoteReply(2, 1, 2, True), VoteReply(2, 1, 2, True))
    assert server.role is RoleName.CANDIDATE


def test_votes_of_strangers_and_of_other_terms_do_not_count():
    server = candidate()
    server.step(VoteReply(9, 1, 2, True), VoteReply(3, 1, 1, True))
    assert server.role is RoleName.CANDIDATE


def test_a_candidate_that_a_majority_refuses_follows():
    server = candidate()
    server.step(VoteReply(2, 1, 2, False), VoteReply(3, 1, 2, False))
    assert server.role is RoleName.FOLLOWER


def test_a_candidate_follows_a_leader_of_its_term():
    server = candidate()
    server.step(AppendEntries(3, 1, server.term, 1, 1, (), 0))
    assert (server.role, server.raft.standing.leader) == (RoleName.FOLLOWER, 3)


def test_a_candidate_without_a_result_tries_again_in_a_new_term():
    server = candidate()
    server.tick(OPTIONS.election_ticks)
    assert server.role is RoleName.PRE_CANDIDATE
    server.step(PreVoteReply(2, 1, 3, True))
    assert (server.role, server.term) == (RoleName.CANDIDATE, 3)


def test_a_server_alone_elects_itself():
    server = Solo(voters=(1,))
    server.tick(OPTIONS.election_ticks)
    assert server.role is RoleName.LEADER
    assert [entry.index for entry in server.committed] == [1, 2]


# Time (5.2)


def test_a_follower_that_hears_of_no_leader_asks_for_votes():
    server = Solo()
    server.tick(OPTIONS.election_ticks - 1)
    assert server.role is RoleName.FOLLOWER
    assert {message.to for message in server.tick() if isinstance(message, PreVote)} == {2, 3}


@pytest.mark.parametrize(
    "message",
    [AppendEntries(2, 1, 1, 1, 1, (), 0), Heartbeat(2, 1, 1, 0, 0), RequestVote(2, 1, 1, 1, 1)],
)
def test_a_leader_or_a_vote_given_makes_a_follower_wait_again(message):
    server = Solo()
    server.tick(OPTIONS.election_ticks - 1)
    server.step(message)
    server.tick(OPTIONS.election_ticks - 1)
    assert server.role is RoleName.FOLLOWER


def test_a_vote_refused_does_not_make_a_follower_wait_again():
    server = Solo(terms=(1, 2))
    server.tick(OPTIONS.election_ticks - 1)
    server.step(RequestVote(2, 1, 5, 1, 1))
    server.tick()
    assert server.role is RoleName.PRE_CANDIDATE


def test_election_timeouts_are_chosen_by_chance_from_one_to_two_times_the_least():
    patience = set()
    for seed in range(200):
        raft = Raft(1, Solo().storage, OPTIONS, Random(seed))
        ticks = 0
        while raft.standing.role is RoleName.FOLLOWER:
            raft.tick()
            ticks += 1
        patience.add(ticks)
    assert patience == set(range(OPTIONS.election_ticks, 2 * OPTIONS.election_ticks))


def test_a_leader_is_heard_at_once_and_again_and_again():
    server = leader()
    assert {message.to for message in server.sent if isinstance(message, AppendEntries)} == {2, 3}
    beats = [message for message in server.tick(OPTIONS.heartbeat_ticks) if isinstance(message, Heartbeat)]
    assert {beat.to for beat in beats} == {2, 3}


# PreVote (thesis, 9.6)


def test_a_server_that_asks_first_changes_no_term_and_no_vote():
    server = Solo()
    server.tick(10 * OPTIONS.election_ticks)
    assert (server.role, server.term) == (RoleName.PRE_CANDIDATE, 1)
    other = Solo(node_id=2)
    other.step(PreVote(1, 2, 2, 1, 1))
    assert (other.term, other.storage.hard_state().vote) == (1, None)


def test_who_promises_a_vote_may_promise_it_to_others():
    server = Solo()
    assert server.answer(PreVote(2, 1, 2, 1, 1), PreVoteReply).granted
    assert server.answer(PreVote(3, 1, 2, 1, 1), PreVoteReply).granted


def test_a_server_that_was_cut_off_does_not_disturb_when_it_returns():
    cluster = Cluster()
    cluster.elect(1)
    cluster.cuts = {3}
    for _ in range(5 * OPTIONS.election_ticks):
        cluster.tick(1)
        cluster.tick(3)
    cluster.cuts = set()
    cluster.tick(3, 2 * OPTIONS.election_ticks)
    cluster.beat(1)
    assert (cluster[1].role, cluster[1].term) == (RoleName.LEADER, 2)
    assert cluster[3].raft.standing.leader == 1


def test_a_question_about_a_term_that_has_begun_is_refused_with_that_term():
    server = Solo(term=5)
    assert server.answer(PreVote(2, 1, 5, 9, 4), PreVoteReply) == PreVoteReply(1, 2, 5, False)


def test_who_is_refused_for_an_old_term_catches_up():
    server = Solo()
    server.tick(OPTIONS.election_ticks)
    server.step(PreVoteReply(2, 1, 8, False))
    assert (server.role, server.term) == (RoleName.FOLLOWER, 8)


def test_an_answer_to_an_earlier_question_does_not_count():
    server = Solo(term=3)
    server.tick(OPTIONS.election_ticks)
    server.step(PreVoteReply(2, 1, 3, True))
    assert server.role is RoleName.PRE_CANDIDATE


# Disruptive servers and check-quorum (thesis, 4.2.3, 6.2)


@pytest.mark.parametrize("kind", [PreVote, RequestVote])
def test_nobody_votes_against_a_leader_it_hears_of(kind):
    server = Solo()
    server.step(Heartbeat(2, 1, 1, 0, 0))
    assert server.step(kind(3, 1, 9, 9, 9)) == []
    assert server.term == 1
    server.tick(OPTIONS.election_ticks)
    assert server.step(kind(3, 1, 9, 9, 9)) != []


def test_a_leader_that_is_doubted_is_protected_no_more_until_it_is_heard():
    server = Solo(node_id=3, vote=None)
    server.step(Heartbeat(2, 3, 1, 0, 0))
    server.raft.doubt(1)  # somebody else
    assert server.step(PreVote(1, 3, 2, 9, 9)) == []
    server.raft.doubt(2)
    assert server.raft.standing.leader is None
    assert server.answer(PreVote(1, 3, 2, 9, 9), PreVoteReply).granted
    server.step(Heartbeat(2, 3, 1, 0, 0))
    assert server.raft.standing.leader == 2
    assert server.step(PreVote(1, 3, 2, 9, 9)) == []
    server.tick(OPTIONS.election_ticks - 1)
    assert server.role is RoleName.FOLLOWER, "its patience is the old one"


def test_voters_that_doubt_their_leader_hold_elections_one_after_the_other():
    patience = {}
    for node in (2, 3):
        server = Solo(node_id=node)
        server.step(Heartbeat(1, node, 1, 0, 0))
        server.raft.doubt(1)
        while server.role is RoleName.FOLLOWER:
            server.tick()
            patience[node] = patience.get(node, 0) + 1
    assert patience == {2: DOUBT_TICKS, 3: 2 * DOUBT_TICKS}


def test_a_server_without_a_vote_that_doubts_its_leader_waits():
    server = Solo(node_id=4)
    server.step(Heartbeat(1, 4, 1, 0, 0))
    server.raft.doubt(1)
    server.tick(3 * OPTIONS.election_ticks)
    assert server.role is RoleName.FOLLOWER


def test_leaders_and_candidates_doubt_nobody():
    for server in (leader(), candidate()):
        role = server.role
        server.raft.doubt(2)
        assert server.role is role


def test_the_others_elect_soon_when_all_of_them_doubt_a_dead_leader():
    cluster = Cluster(5)
    cluster.elect(1)
    cluster.beat(1)
    cluster.cuts.add(1)
    for node in (2, 3, 4, 5):
        cluster[node].raft.doubt(1)
    for _ in range(DOUBT_TICKS):
        for node in (2, 3, 4, 5):
            cluster.tick(node)
    assert cluster[2].role is RoleName.LEADER


def test_a_leader_ignores_candidates_while_it_hears_a_majority():
    server = leader()
    assert server.step(RequestVote(3, 1, 9, 9, 9), PreVote(3, 1, 9, 9, 9)) == []
    assert server.role is RoleName.LEADER


def test_a_leader_without_a_majority_steps_down():
    server = leader()
    server.tick(OPTIONS.election_ticks)
    assert (server.role, server.raft.standing.leader) == (RoleName.FOLLOWER, None)


def test_a_leader_with_a_majority_stays():
    server = leader()
    for _ in range(5 * OPTIONS.election_ticks):
        server.tick()
        server.step(HeartbeatAck(3, 1, server.term, 0))
    assert server.role is RoleName.LEADER


def test_a_server_with_a_higher_term_is_let_in_again():
    """One that had begun a term alone would be ignored for ever if the leader did not step down."""
    cluster = Cluster()
    cluster.elect(1)
    cluster[3].step(RequestVote(9, 3, 7, 0, 0, transfer=True))
    cluster.beat(1)
    assert (cluster[1].role, cluster[1].term) == (RoleName.FOLLOWER, 7)
    cluster.elect(1)
    assert cluster[3].raft.standing.leader == 1


# Handing over (thesis, 3.10)


def test_a_leader_hands_over_to_a_voter_that_has_its_log():
    cluster = Cluster()
    cluster.elect(1).propose(b"a")
    cluster.settle()
    assert cluster[1].raft.transfer(3) is None
    cluster.settle()
    assert cluster[3].role is RoleName.LEADER
    assert cluster[1].raft.standing.leader == 3


def test_a_leader_first_sends_what_the_next_one_lacks():
    cluster = Cluster()
    server = cluster.elect(1)
    cluster.cuts = {3}
    server.propose(b"a")
    cluster.settle()
    cluster.cuts = set()
    server.raft.transfer(3)
    assert not any(isinstance(message, TimeoutNow) for message in server.take())
    cluster.beat(1)
    assert cluster[3].role is RoleName.LEADER
    assert cluster[3].log[2] == (3, 2)


def test_while_it_hands_over_a_leader_takes_no_proposals_until_it_gives_up():
    cluster = Cluster()
    server = cluster.elect(1)
    cluster.cuts = {3}
    server.raft.transfer(3)
    assert server.raft.propose([b"a"]) == Dropped(Reason.TRANSFERRING, 1)
    cluster.tick(1, OPTIONS.election_ticks)
    server.propose(b"a")


def test_leadership_is_handed_to_voters_only():
    server = leader()
    assert server.raft.transfer(7) == Dropped(Reason.NOT_A_VOTER, 1)
    assert server.raft.transfer(1) is None


def test_a_learner_does_not_obey_timeout_now():
    server = Solo(node_id=4)
    server.step(TimeoutNow(1, 4, 1))
    assert server.role is RoleName.FOLLOWER
