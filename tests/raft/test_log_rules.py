"""One test per sentence of the paper on logs and commitment (Figure 2, 5.3, 5.4.2), and on what must be saved first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_stage import OPTIONS, Cluster, Solo

from headrace.core.errors import CorruptionError
from headrace.raft.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    Heartbeat,
    HeartbeatAck,
    InstallSnapshot,
    PreVoteReply,
    RequestVote,
    VoteReply,
)
from headrace.raft.outcome import Dropped, Proposed, Reason
from headrace.raft.ready import RoleName
from headrace.raft.records import Entry, Membership, Snapshot


def leader(terms=(1,), voters=(1, 2, 3), **arguments) -> Solo:
    server = Solo(terms=terms, voters=voters, **arguments)
    server.tick(OPTIONS.election_ticks)
    for other in voters[1:]:
        server.step(PreVoteReply(other, 1, server.term + 1, True))
    for other in voters[1:]:
        server.step(VoteReply(other, 1, server.term, True))
    assert server.role is RoleName.LEADER
    return server


def appended(messages, to=2) -> list[AppendEntries]:
    return [message for message in messages if isinstance(message, AppendEntries) and message.to == to]


# Followers (Figure 2, AppendEntries)


def test_entries_are_refused_without_the_entry_before_them():
    server = Solo(terms=(1, 1))
    assert server.answer(AppendEntries(2, 1, 2, 3, 1, (), 0), AppendRejected).rejected == 3
    assert server.answer(AppendEntries(2, 1, 2, 2, 2, (), 0), AppendRejected).rejected == 2


def test_a_conflicting_entry_and_all_after_it_are_replaced():
    server = Solo(terms=(1, 2, 2, 2))
    server.answer(AppendEntries(2, 1, 3, 2, 2, (Entry(3, 3, b"x"),), 0), AppendAccepted)
    assert server.log == [(1, 1), (2, 2), (3, 3)]
    assert server.restart().log == [(1, 1), (2, 2), (3, 3)]


def test_entries_that_are_there_already_are_left_alone_and_what_follows_them_too():
    """A message that was overtaken must not shorten the log."""
    server = Solo(terms=(1, 2, 2, 2))
    entry = Entry(2, 2, b"2")
    assert server.answer(AppendEntries(2, 1, 2, 1, 1, (entry,), 0), AppendAccepted).match == 2
    assert len(server.log) == 4


def test_new_entries_are_appended():
    server = Solo()
    entries = (Entry(2, 2, b"a"), Entry(3, 2, b"b"))
    assert server.answer(AppendEntries(2, 1, 2, 1, 1, entries, 0), AppendAccepted).match == 3
    assert server.log == [(1, 1), (2, 2), (3, 2)]


def test_a_follower_commits_no_further_than_the_last_new_entry():
    server = Solo(terms=(1, 1, 1))
    server.step(AppendEntries(2, 1, 2, 1, 1, (), 3))
    assert server.raft.commit_index == 1
    server.step(AppendEntries(2, 1, 2, 2, 1, (), 9))
    assert server.raft.commit_index == 2


def test_a_late_message_is_answered_with_what_is_committed():
    server = Solo(terms=(1, 1, 1))
    server.step(AppendEntries(2, 1, 2, 3, 1, (), 3))
    assert server.answer(AppendEntries(2, 1, 2, 1, 1, (Entry(2, 1, b"2"),), 3), AppendAccepted).match == 3


def test_the_commit_index_never_goes_back():
    server = Solo(terms=(1, 1, 1))
    server.step(AppendEntries(2, 1, 2, 3, 1, (), 3), AppendEntries(2, 1, 2, 3, 1, (), 1), Heartbeat(2, 1, 2, 0, 0))
    assert server.raft.commit_index == 3


def test_a_log_that_lost_what_it_acknowledged_stops():
    server = Solo(terms=(1, 1))
    with pytest.raises(CorruptionError):
        server.step(Heartbeat(2, 1, 1, 7, 0))


def test_committed_entries_are_handed_out_once_in_order():
    server = Solo(terms=(1, 1, 1))
    server.step(AppendEntries(2, 1, 2, 3, 1, (), 2), AppendEntries(2, 1, 2, 3, 1, (), 2))
    server.step(AppendEntries(2, 1, 2, 3, 1, (Entry(4, 2, b"x"),), 4))
    assert [entry.index for entry in server.committed] == [1, 2, 3, 4]


# Leaders (Figure 2, rules for servers)


def test_a_leader_begins_with_an_empty_entry_of_its_term():
    server = leader(terms=(1, 1))
    assert server.log[-1] == (3, 2)
    assert not server.storage.entries(3, 4, 100)[0].payload


def test_a_leader_never_changes_its_own_entries():
    server = leader(terms=(1, 1, 1))
    before = server.log
    server.propose(b"a")
    server.step(AppendRejected(2, 1, 2, 3, 0, 0))
    assert server.log[: len(before)] == before


def test_a_proposal_is_committed_when_a_majority_has_saved_it():
    server = leader(voters=(1, 2, 3, 4, 5))
    index = server.propose(b"a").last_index
    server.run()
    server.step(AppendAccepted(2, 1, 2, index))
    assert server.raft.commit_index == 0
    server.step(AppendAccepted(3, 1, 2, index))
    assert server.raft.commit_index == index
    assert server.committed[-1].payload == b"a"


def test_a_leader_does_not_count_itself_before_it_has_saved():
    server = leader()
    index = server.propose(b"a").last_index
    server.take()
    server.raft.step(AppendAccepted(2, 1, 2, index))
    assert server.raft.commit_index < index
    server.save()
    assert server.raft.commit_index == index


def test_the_others_may_commit_what_the_leader_is_still_saving():
    """Its disk may be slower than theirs (thesis, 10.2.1), but it applies nothing that it has not saved."""
    server = leader()
    server.step(AppendAccepted(2, 1, 2, 2))
    index = server.propose(b"a").last_index
    assert [entry.index for message in appended(server.take()) for entry in message.entries][-1] == index
    server.raft.step(AppendAccepted(2, 1, 2, index))
    server.raft.step(AppendAccepted(3, 1, 2, index))
    server.take()
    assert server.raft.commit_index == index
    assert not any(entry.payload == b"a" for entry in server.committed)
    server.run()
    assert server.committed[-1].payload == b"a"


def test_entries_of_older_terms_are_not_committed_by_counting():
    """Figure 8."""
    server = leader(terms=(1, 2, 3))
    server.step(AppendAccepted(2, 1, 4, 3), AppendAccepted(3, 1, 4, 3))
    assert server.raft.commit_index == 0
    server.step(AppendAccepted(2, 1, 4, 4))
    assert server.raft.commit_index == 4


def test_a_new_leader_does_not_know_what_is_committed_until_its_own_entry_is():
    server = leader(terms=(1, 1))
    assert [message.commit for message in server.sent if isinstance(message, AppendEntries)] == [0, 0]


def test_followers_hear_of_the_commit_index():
    cluster = Cluster()
    cluster.elect(1).propose(b"a")
    cluster.settle()
    assert [server.raft.commit_index for server in cluster.servers.values()] == [3, 3, 3]
    assert all(server.committed[-1].payload == b"a" for server in cluster.servers.values())


def test_heartbeats_commit_no_more_than_the_follower_is_known_to_have():
    server = leader()
    server.step(AppendAccepted(2, 1, 2, 2))
    beats = {message.to: message.commit for message in server.tick(2) if isinstance(message, Heartbeat)}
    assert beats == {2: 2, 3: 0}


# Backing up (5.3)

FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("follower", FIGURE_7)
def test_every_log_of_figure_7_becomes_the_leader_s(follower):
    cluster = Cluster()
    cluster.servers = {
        1: Solo(1, terms=(1, 1, 1, 4, 4, 5, 5, 6, 6, 6), term=7),
        2: Solo(2, terms=FIGURE_7[follower], term=7),
        3: Solo(3, terms=(1,), term=7),
    }
    cluster.elect(1)
    cluster.beat(1)
    assert cluster[2].log == cluster[1].log == cluster[3].log


def test_a_leader_skips_whole_terms_when_it_backs_up():
    cluster = Cluster()
    old = (1, *[2] * 50)
    cluster.servers = {
        1: Solo(1, terms=(1, *[3] * 50), term=3),
        2: Solo(2, terms=old, term=3),
        3: Solo(3, terms=(1,), term=3),
    }
    cluster.elect(1)
    cluster.beat(1)
    assert cluster[2].log == cluster[1].log
    assert sum(isinstance(message, AppendRejected) and message.sender == 2 for message in cluster.delivered) <= 2


# What must be saved before a message leaves (Figure 2: "updated on stable storage before responding")


def test_a_vote_leaves_when_it_is_saved():
    server = Solo()
    server.run()
    server.raft.step(RequestVote(2, 1, 5, 1, 1))
    assert server.take() == []
    assert server.readies[-1].save.hard_state is not None
    assert server.save() == [VoteReply(1, 2, 5, True)]


def test_an_acknowledgement_leaves_when_its_entries_are_saved():
    server = Solo()
    server.run()
    server.raft.step(AppendEntries(2, 1, 1, 1, 1, (Entry(2, 1, b"a"),), 0))
    assert server.take() == []
    assert server.save() == [AppendAccepted(1, 2, 1, 2)]


def test_a_repeated_message_is_not_acknowledged_before_the_first_one_is_saved():
    server = Solo()
    server.run()
    message = AppendEntries(2, 1, 1, 1, 1, (Entry(2, 1, b"a"),), 0)
    server.raft.step(message)
    server.take()
    server.raft.step(message)
    assert server.take() == []
    assert server.readies[-1].send_after_save and not server.readies[-1].save


def test_requests_for_votes_leave_when_the_candidate_has_saved_its_own():
    server = Solo()
    server.tick(OPTIONS.election_ticks)
    server.raft.step(PreVoteReply(2, 1, 2, True))
    assert not any(isinstance(message, RequestVote) for message in server.take())
    assert sum(isinstance(message, RequestVote) for message in server.save()) == 2


def test_a_candidate_s_own_vote_counts_when_it_is_saved():
    server = Solo(voters=(1,))
    for _ in range(OPTIONS.election_ticks):
        server.raft.tick()
    server.take()
    assert server.role is RoleName.CANDIDATE
    server.run()
    assert server.role is RoleName.LEADER


def test_heartbeats_are_answered_while_the_disk_is_busy():
    server = Solo()
    server.run()
    server.raft.step(AppendEntries(2, 1, 1, 1, 1, (Entry(2, 1, b"a"),), 0))
    server.take()
    server.raft.step(Heartbeat(2, 1, 1, 0, 3))
    assert server.take() == [HeartbeatAck(1, 2, 1, 3)]


def test_a_save_that_was_overtaken_does_not_count_for_what_replaced_it():
    server = Solo()
    server.run()
    server.raft.step(AppendEntries(2, 1, 2, 1, 1, (Entry(2, 2, b"a"), Entry(3, 2, b"b")), 0))
    server.take()
    first = len(server.readies)
    server.raft.step(AppendEntries(3, 1, 3, 1, 1, (Entry(2, 3, b"c"), Entry(3, 3, b"d")), 3))
    server.take()
    server.save(first)
    assert server.raft._state.log.saved == 1
    assert server.committed == [] or server.committed[-1].index == 1
    server.run()
    assert [entry.payload for entry in server.committed[1:]] == [b"c", b"d"]


def test_saves_are_acknowledged_in_order():
    server = Solo()
    server.run()
    for index in (2, 3):
        server.raft.step(AppendEntries(2, 1, 1, index - 1, 1, (Entry(index, 1, b"a"),), 0))
        server.take()
    with pytest.raises(AssertionError):
        server.raft.advance(server.readies[1])


def test_entries_of_a_term_that_was_not_saved_with_them_are_believed():
    """A crash between the entries and the hard state, in a storage that writes them the other way round."""
    server = Solo(terms=(1, 1))
    server.storage.save(replace(server.raft.ready().save, entries=(Entry(3, 8, b"x"),)))
    assert server.restart().term == 8


# Proposals


def test_proposals_need_a_leader():
    server = Solo()
    assert server.raft.propose([b"a"]) == Dropped(Reason.NO_LEADER)
    server.step(Heartbeat(2, 1, 1, 0, 0))
    assert server.raft.propose([b"a"]) == Dropped(Reason.NOT_LEADER, 2)


def test_proposals_are_entries_next_to_each_other():
    server = leader()
    assert server.raft.propose([b"a", b"b"]) == Proposed(2, 3, 4)
    assert server.raft.propose([b"c"]) == Proposed(2, 5, 5)


def test_a_leader_takes_only_so_much_that_is_not_committed():
    server = leader(options=replace(OPTIONS, max_uncommitted_bytes=100))
    server.propose(b"a" * 50)
    assert server.raft.propose([b"b" * 50]) == Dropped(Reason.BUSY, 1)
    server.run()
    server.step(AppendAccepted(2, 1, 2, 3))
    server.propose(b"b" * 500)  # alone, it may be larger than the limit


def test_a_follower_takes_only_so_much_that_is_not_saved():
    server = Solo(options=replace(OPTIONS, max_unsaved_bytes=100))
    server.run()
    server.raft.step(AppendEntries(2, 1, 1, 1, 1, (Entry(2, 1, b"a" * 200),), 0))
    server.take()
    server.raft.step(AppendEntries(2, 1, 1, 2, 1, (Entry(3, 1, b"b"),), 0))
    server.take()
    assert server.raft.last_index == 2
    server.save()
    assert server.answer(AppendEntries(2, 1, 1, 2, 1, (Entry(3, 1, b"b"),), 0), AppendAccepted).match == 3


# Flow


def test_entries_flow_without_waiting_up_to_a_limit():
    server = leader(options=replace(OPTIONS, max_inflight=3, max_append_bytes=1))
    server.step(AppendAccepted(2, 1, 2, 2))
    server.propose(*[b"a"] * 10)
    assert [len(message.entries) for message in appended(server.run())] == [1, 1, 1]
    assert appended(server.step(AppendAccepted(2, 1, 2, 4)))[-1].prev_index == 6


def test_a_follower_that_is_not_known_gets_one_message_at_a_time():
    server = leader(options=replace(OPTIONS, max_append_bytes=1))
    assert len(appended(server.sent)) == 1
    server.propose(b"a", b"b")
    assert appended(server.run()) == []
    assert len(appended(server.step(AppendAccepted(2, 1, 2, 1)))) == 3


def test_what_was_lost_is_sent_again_after_a_heartbeat():
    cluster = Cluster()
    server = cluster.elect(1)
    cluster.cuts = {3}
    for payload in (b"a", b"b", b"c"):
        server.propose(payload)
        cluster.settle()
    cluster.cuts = set()
    cluster.beat(1)
    cluster.beat(1)
    assert cluster[3].log == server.log


def test_a_peer_that_cannot_be_reached_is_asked_again_from_what_it_has():
    server = leader()
    server.step(AppendAccepted(2, 1, 2, 2))
    server.propose(b"a")
    server.run()
    server.raft.unreachable(2)
    assert [entry.index for entry in appended(server.run())[0].entries] == [3]


# Snapshots (7)


def test_a_follower_that_needs_what_is_compacted_gets_a_snapshot():
    cluster = Cluster()
    server = cluster.elect(1)
    cluster.cuts = {3}
    server.propose(*[b"%d" % number for number in range(20)])
    cluster.settle()
    snapshot = cluster.compact(1)
    server.propose(b"after")
    cluster.cuts = set()
    cluster.beat(1)
    cluster.beat(1)
    assert any(isinstance(message, InstallSnapshot) for message in cluster.delivered)
    assert cluster[3].storage.snapshot() == snapshot
    assert cluster[3].committed[-1].payload == b"after"
    assert cluster[3].raft.applied_index == server.raft.applied_index


def test_a_snapshot_is_acknowledged_when_it_is_saved_and_replaces_the_log():
    server = Solo(terms=(1, 2, 2))
    server.run()
    snapshot = Snapshot(9, 5, Membership((1, 2, 3, 4)), b"state")
    server.raft.step(InstallSnapshot(2, 1, 6, snapshot))
    assert server.take() == []
    assert AppendAccepted(1, 2, 6, 9) in server.save()
    assert (server.log, server.raft.commit_index, server.raft.applied_index) == ([], 9, 9)
    assert server.raft.membership.voters == (1, 2, 3, 4)
    again = server.restart()
    assert (again.raft.last_index, again.raft.membership.voters) == (9, (1, 2, 3, 4))


def test_an_old_snapshot_is_not_installed():
    server = Solo(terms=(1, 1, 1))
    server.step(AppendEntries(2, 1, 2, 3, 1, (), 3))
    snapshot = Snapshot(2, 1, Membership((1, 2, 3)), b"state")
    assert server.answer(InstallSnapshot(2, 1, 2, snapshot), AppendAccepted).match == 3
    assert len(server.log) == 3


def test_a_snapshot_of_entries_that_are_there_only_commits_them():
    server = Solo(terms=(1, 1, 1))
    snapshot = Snapshot(2, 1, Membership((1, 2, 3)), b"state")
    assert server.answer(InstallSnapshot(2, 1, 2, snapshot), AppendAccepted).match == 2
    assert (len(server.log), server.raft.commit_index) == (3, 2)


def test_nothing_is_sent_to_a_follower_on_its_way_through_a_snapshot():
    server = leader(terms=(1, *[1] * 5), options=replace(OPTIONS, snapshot_ticks=7))
    server.step(AppendAccepted(2, 1, 2, 7))
    server.storage.compact(server.raft.snapshot_at(7, b"state"))
    server.step(AppendRejected(3, 1, 2, 6, 0, 0), HeartbeatAck(3, 1, 2, 0))
    assert isinstance(server.sent[-1], InstallSnapshot)
    server.propose(b"a")
    server.step(HeartbeatAck(3, 1, 2, 0))
    assert not any(isinstance(message, AppendEntries) and message.to == 3 for message in server.sent[-2:])
    # Lost: after a while it is sent again. Said to be lost: at the next sign of life.
    assert not any(isinstance(message, InstallSnapshot) for message in server.tick(7))
    assert any(isinstance(message, InstallSnapshot) for message in server.step(HeartbeatAck(3, 1, 2, 0)))
    server.raft.snapshot_ended(3, arrived=False)
    assert any(isinstance(message, InstallSnapshot) for message in server.step(HeartbeatAck(3, 1, 2, 0)))
    server.raft.snapshot_ended(3, arrived=True)
    assert appended(server.step(HeartbeatAck(3, 1, 2, 0)), to=3)[0].prev_index == 7


def test_a_snapshot_is_taken_of_what_was_applied_only():
    server = leader(terms=(1, 1, 1))
    assert server.raft.snapshot_at(1, b"") is None
    server.step(AppendAccepted(2, 1, 2, 4))
    assert server.raft.snapshot_at(4, b"s") == Snapshot(4, 2, Membership((1, 2, 3)), b"s")
    assert server.raft.snapshot_at(5, b"") is None
