"""Elections: first a question that changes nothing (PreVote), then the vote.

Rules:
- A server asks whether it would be elected before it begins a term: one that was cut off disturbs nobody when it comes
  back (thesis, 9.6). Only a server that its leader has chosen skips the question.
- A candidate's requests leave, and its own vote counts, when its term and its vote are saved.
- Whoever hears of a leader of its term follows it: the machine sees to that.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.raft.messages import PreVote, PreVoteReply, RequestVote, VoteReply
from headrace.raft.quorum import Tally, tally
from headrace.raft.ready import RoleName
from headrace.raft.role import Role, State, Turn


class PreCandidate(Role):
    name = RoleName.PRE_CANDIDATE

    def __init__(self, state: State, turn: Turn) -> None:
        super().__init__(state, turn)
        self._timeout = state.election_timeout()
        self._votes = {state.node_id: True}

    def enter(self) -> Turn | None:
        state, log = self.state, self.state.log
        for voter in state.other_voters:
            state.send.append(PreVote(state.node_id, voter, state.term + 1, log.last_index, log.last_term))
        return self._count()

    def tick(self) -> Turn | None:
        self.elapsed += 1
        return Turn(RoleName.PRE_CANDIDATE) if self.elapsed >= self._timeout else None

    def _on_reply(self, message: PreVoteReply) -> Turn | None:
        if message.granted and message.term != self.state.term + 1:
            return None  # to a question that was asked before
        self._votes[message.sender] = message.granted
        return self._count()

    def _count(self) -> Turn | None:
        result = tally(self.state.membership.voters, self._votes)
        if result is Tally.WON:
            return Turn(RoleName.CANDIDATE)
        return Turn(RoleName.FOLLOWER) if result is Tally.LOST else None

    def _on_request_vote(self, message: RequestVote) -> Turn | None:
        """Another candidate was faster."""
        return Turn(RoleName.FOLLOWER) if self.answer_vote(message) else None

    HANDLERS: ClassVar = {
        PreVote: Role.answer_pre_vote,
        PreVoteReply: _on_reply,
        RequestVote: _on_request_vote,
    }


class Candidate(Role):
    name = RoleName.CANDIDATE

    def __init__(self, state: State, turn: Turn) -> None:
        super().__init__(state, turn)
        self._timeout = state.election_timeout()
        self._votes: dict[int, bool] = {}
        self._transfer = turn.transfer

    def enter(self) -> Turn | None:
        state, log = self.state, self.state.log
        state.begin_term(state.term + 1, vote=state.node_id)
        for voter in state.other_voters:
            state.send_after_save.append(
                RequestVote(state.node_id, voter, state.term, log.last_index, log.last_term, self._transfer)
            )
        return None

    def saved(self) -> Turn | None:
        if self.state.saved_hard_state != self.state.hard_state:
            return None
        self._votes[self.state.node_id] = True
        return self._count()

    def tick(self) -> Turn | None:
        self.elapsed += 1
        return Turn(RoleName.PRE_CANDIDATE) if self.elapsed >= self._timeout else None

    def _on_reply(self, message: VoteReply) -> Turn | None:
        self._votes[message.sender] = message.granted
        return self._count()

    def _count(self) -> Turn | None:
        result = tally(self.state.membership.voters, self._votes)
        if result is Tally.WON:
            return Turn(RoleName.LEADER, leader=self.state.node_id)
        return Turn(RoleName.FOLLOWER) if result is Tally.LOST else None

    def _on_request_vote(self, message: RequestVote) -> None:
        self.answer_vote(message)  # refused: the vote of this term is this server's own

    HANDLERS: ClassVar = {PreVote: Role.answer_pre_vote, RequestVote: _on_request_vote, VoteReply: _on_reply}
