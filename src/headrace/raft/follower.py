"""A follower: answers leaders and candidates, and holds an election when it hears of neither for too long.

Learners, and servers that belong to no cluster yet, are followers that hold no elections. They vote when they are
asked: a server may have been made a voter by an entry that it does not have yet.

A leader that is doubted is protected no more, and the voters hold an election soon, one after the other so that votes
are not split. It is enough that it is heard again: nobody's term has changed, and PreVote asks a majority first.
"""

from __future__ import annotations

from typing import ClassVar, Final

from headrace.raft.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    FromLeader,
    Heartbeat,
    HeartbeatAck,
    InstallSnapshot,
    PreVote,
    ReadAnswer,
    ReadRequest,
    RequestVote,
    TimeoutNow,
)
from headrace.raft.outcome import Dropped, Reason
from headrace.raft.reads import ForwardedReads
from headrace.raft.ready import Read, RoleName
from headrace.raft.role import Role, State, Turn

DOUBT_TICKS: Final = 2  # from a doubt to the election, and from one voter's election to the next one's


class Follower(Role):
    name = RoleName.FOLLOWER

    def __init__(self, state: State, turn: Turn) -> None:
        super().__init__(state, turn)
        self._timeout = state.election_timeout()
        self._reads = ForwardedReads()

    @property
    def protects_a_leader(self) -> bool:
        return self.leader is not None and self.elapsed < self.state.options.election_ticks

    def doubt(self, node: int) -> None:
        if node != self.leader:
            return
        self.leader = None
        heirs = sorted(voter for voter in self.state.membership.voters if voter != node)
        if self.state.node_id in heirs:
            turn = heirs.index(self.state.node_id)
            self._timeout = min(self._timeout, self.elapsed + DOUBT_TICKS * (turn + 1))

    def leave(self) -> None:
        self.state.lost_reads.extend(self._reads.drop())

    def tick(self) -> Turn | None:
        self.elapsed += 1
        self.state.lost_reads.extend(self._reads.tick(self.state.options.election_ticks))
        if self.elapsed < self._timeout:
            return None
        self.leader = None
        return Turn(RoleName.PRE_CANDIDATE) if self.state.may_campaign else None

    def read(self, number: int) -> Dropped | None:
        if self.leader is None:
            return self._not_leader()
        if len(self._reads) >= self.state.options.max_reads:
            return Dropped(Reason.BUSY, self.leader)
        state, wire_number = self.state, self.state.next_read_number()
        self._reads.add(wire_number, number)
        state.send.append(ReadRequest(state.node_id, self.leader, state.term, wire_number))
        return None

    def _hear(self, message: FromLeader) -> None:
        assert self.leader in (None, message.sender), f"term {message.term} has two leaders"
        if self.leader is None:
            self.leader = message.sender
            self._timeout = self.state.election_timeout()  # it may have been shortened
        self.elapsed = 0

    def _on_request_vote(self, message: RequestVote) -> None:
        if self.answer_vote(message):
            self.elapsed = 0

    def _on_append(self, message: AppendEntries) -> None:
        self._hear(message)
        state, log = self.state, self.state.log
        if message.prev_index < log.commit:
            # Late: up to the commit index all logs agree, and below it the terms may be forgotten.
            self._accept(message.sender, log.commit)
            return
        if message.entries and log.unsaved_bytes > state.options.max_unsaved_bytes:
            return  # the disk is behind; the leader will send it again
        if not log.merge(message.prev_index, message.prev_term, message.entries):
            index, term = log.conflict(message.prev_index, message.prev_term)
            state.send_after_save.append(
                AppendRejected(state.node_id, message.sender, state.term, message.prev_index, index, term)
            )
            return
        last_new = message.prev_index + len(message.entries)
        log.commit_to(min(message.commit, last_new))
        self._accept(message.sender, last_new)

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._hear(message)
        state = self.state
        state.log.commit_to(message.commit)
        state.send.append(HeartbeatAck(state.node_id, message.sender, state.term, message.round))

    def _on_snapshot(self, message: InstallSnapshot) -> None:
        self._hear(message)
        log, snapshot = self.state.log, message.snapshot
        if snapshot.index > log.commit:
            if log.term(snapshot.index) == snapshot.term:
                log.commit_to(snapshot.index)  # the entries are here: no need to begin anew
            else:
                log.restore(snapshot)
        self._accept(message.sender, log.commit)

    def _accept(self, leader: int, match: int) -> None:
        state = self.state
        state.send_after_save.append(AppendAccepted(state.node_id, leader, state.term, match))

    def _on_timeout_now(self, message: TimeoutNow) -> Turn | None:
        return Turn(RoleName.CANDIDATE, transfer=True) if self.state.may_campaign else None

    def _on_read_answer(self, message: ReadAnswer) -> None:
        number = self._reads.answered(message.number)
        if number is not None:
            self.state.reads.append(Read(number, message.index))

    HANDLERS: ClassVar = {
        PreVote: Role.answer_pre_vote,
        RequestVote: _on_request_vote,
        AppendEntries: _on_append,
        Heartbeat: _on_heartbeat,
        InstallSnapshot: _on_snapshot,
        TimeoutNow: _on_timeout_now,
        ReadAnswer: _on_read_answer,
    }
