"""Linearizable reads (thesis, 6.4)."""

from __future__ import annotations

from dataclasses import replace

from raft_stage import OPTIONS, Cluster, Solo

from headrace.raft.messages import (
    AppendAccepted,
    Heartbeat,
    HeartbeatAck,
    PreVoteReply,
    ReadAnswer,
    ReadRequest,
    VoteReply,
)
from headrace.raft.outcome import Dropped, Reason
from headrace.raft.ready import Read, RoleName


def leader(**arguments) -> Solo:
    """A leader whose first entry is committed."""
    server = Solo(**arguments)
    server.tick(OPTIONS.election_ticks)
    server.step(PreVoteReply(2, 1, 2, True), VoteReply(2, 1, 2, True), AppendAccepted(2, 1, 2, 2))
    assert server.raft.commit_index == 2
    return server


def test_a_leader_serves_a_read_when_a_majority_has_answered_after_it():
    server = leader()
    server.raft.read(7)
    beats = [message for message in server.run() if isinstance(message, Heartbeat)]
    assert {beat.round for beat in beats} == {1} and server.reads == []
    server.step(HeartbeatAck(2, 1, 2, 1))
    assert server.reads == [Read(7, 2)]


def test_an_answer_to_an_earlier_heartbeat_confirms_nothing():
    server = leader()
    server.raft.read(7)
    server.step(HeartbeatAck(2, 1, 2, 0), HeartbeatAck(3, 1, 2, 0))
    assert server.reads == []


def test_reads_that_come_during_a_round_share_the_next_one():
    server = leader()
    for number in (7, 8, 9):
        server.raft.read(number)
        server.run()
    server.step(HeartbeatAck(2, 1, 2, 1))
    assert server.reads == [Read(7, 2)]
    server.step(HeartbeatAck(2, 1, 2, 2))
    assert server.reads == [Read(7, 2), Read(8, 2), Read(9, 2)]


def test_a_round_that_was_lost_is_repeated_with_the_heartbeats():
    server = leader()
    server.raft.read(7)
    server.run()
    assert {message.round for message in server.tick(2) if isinstance(message, Heartbeat)} == {1}


def test_a_leader_serves_no_read_before_an_entry_of_its_term_is_committed():
    server = Solo(terms=(1, 1))
    server.tick(OPTIONS.election_ticks)
    server.step(PreVoteReply(2, 1, 2, True), VoteReply(2, 1, 2, True))
    server.raft.read(7)
    server.step(HeartbeatAck(2, 1, 2, 0), HeartbeatAck(3, 1, 2, 1))
    assert server.reads == []
    server.step(AppendAccepted(2, 1, 2, 3), HeartbeatAck(2, 1, 2, 1))
    assert server.reads == [Read(7, 3)]


def test_a_read_waits_until_its_index_is_applied():
    server = leader(voters=(1, 2, 3))
    index = server.propose(b"a").last_index
    server.take()  # on its way to the disk
    server.raft.step(AppendAccepted(2, 1, 2, index))
    server.raft.step(AppendAccepted(3, 1, 2, index))
    server.raft.read(7)
    server.take()
    server.raft.step(HeartbeatAck(2, 1, 2, 1))
    server.take()
    assert server.reads == []
    server.run()
    assert server.reads == [Read(7, index)]
    assert server.committed[-1].index == index


def test_a_follower_asks_its_leader():
    cluster = Cluster()
    cluster.elect(1).propose(b"a")
    cluster.settle()
    assert cluster[3].raft.read(7) is None
    cluster.settle()
    assert cluster[3].reads == [Read(7, 3)]


def test_a_follower_believes_only_answers_to_its_own_questions():
    server = Solo()
    server.step(Heartbeat(2, 1, 1, 0, 0))
    server.raft.read(7)
    (request,) = (message for message in server.run() if isinstance(message, ReadRequest))
    server.step(ReadAnswer(2, 1, 1, request.number + 1, 0))
    assert server.reads == []
    server.step(ReadAnswer(2, 1, 1, request.number, 0), ReadAnswer(2, 1, 1, request.number, 0))
    assert server.reads == [Read(7, 0)]


def test_a_read_that_nobody_answers_is_given_up():
    server = Solo()
    server.step(Heartbeat(2, 1, 1, 0, 0))
    server.raft.read(7)
    server.tick(OPTIONS.election_ticks)
    assert server.lost_reads == [7]


def test_reads_are_lost_with_the_leader():
    follower, old = Solo(), leader()
    follower.step(Heartbeat(2, 1, 1, 0, 0))
    follower.raft.read(7)
    follower.step(Heartbeat(3, 1, 5, 0, 0))
    old.raft.read(8)
    old.raft.read(9)
    old.tick(2 * OPTIONS.election_ticks)
    assert old.role is not RoleName.LEADER
    assert (follower.lost_reads, old.lost_reads) == ([7], [8, 9])


def test_reads_need_a_leader_and_there_is_a_limit():
    assert Solo().raft.read(7) == Dropped(Reason.NO_LEADER)
    server = leader(options=replace(OPTIONS, max_reads=1))
    assert server.raft.read(7) is None
    assert server.raft.read(8) == Dropped(Reason.BUSY, 1)
    follower = Solo(options=replace(OPTIONS, max_reads=1))
    follower.step(Heartbeat(2, 1, 1, 0, 0))
    assert follower.raft.read(7) is None
    assert follower.raft.read(8) == Dropped(Reason.BUSY, 2)


def test_a_server_alone_answers_at_once():
    server = Solo(voters=(1,))
    server.tick(OPTIONS.election_ticks)
    server.raft.read(7)
    server.run()
    assert server.reads == [Read(7, 2)]
