"""What all roles share: the state of a server (Figure 2), what is on its way out, and how roles follow each other.

Rules:
- A role handles the kinds of messages in its table; a kind that is missing there means nothing to it and is dropped. It
  only ever sees messages of the present term (and PreVotes about a later one).
- A role never makes another one: it returns a `Turn`, and the machine obeys. `FOLLOWS` has the turns that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from headrace.raft.log import Log, Storage
from headrace.raft.membership import Change
from headrace.raft.messages import Message, PreVote, PreVoteReply, RequestVote, VoteReply
from headrace.raft.options import Dice, RaftOptions
from headrace.raft.outcome import Dropped, Proposed, Reason
from headrace.raft.ready import Read, RoleName
from headrace.raft.records import HardState, Membership

FOLLOWS: Final[Mapping[RoleName, frozenset[RoleName]]] = {
    RoleName.FOLLOWER: frozenset({RoleName.FOLLOWER, RoleName.PRE_CANDIDATE, RoleName.CANDIDATE}),
    RoleName.PRE_CANDIDATE: frozenset({RoleName.FOLLOWER, RoleName.PRE_CANDIDATE, RoleName.CANDIDATE}),
    RoleName.CANDIDATE: frozenset({RoleName.FOLLOWER, RoleName.PRE_CANDIDATE, RoleName.LEADER}),
    RoleName.LEADER: frozenset({RoleName.FOLLOWER}),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """The next role. `elapsed`: ticks that a follower has waited already. `transfer`: the leader wants the election."""

    role: RoleName
    leader: int | None = None
    elapsed: int = 0
    transfer: bool = False


class State:
    """One server, whatever its role."""

    def __init__(self, node_id: int, storage: Storage, options: RaftOptions, dice: Dice) -> None:
        self.node_id = node_id
        self.storage = storage
        self.options = options
        self.dice = dice
        self.log = Log(storage)
        found = storage.hard_state()
        # A crash may have kept entries of a term and not the term itself. No vote of that term has left then.
        newer = self.log.last_term > found.term
        self.term = self.log.last_term if newer else found.term
        self.vote = None if newer else found.vote
        self.saved_hard_state = found
        self.send: list[Message] = []
        self.send_after_save: list[Message] = []
        self.reads: list[Read] = []  # that may be served once their index is applied
        self.lost_reads: list[int] = []
        self._read_number = dice.randrange(2**62)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote)

    @property
    def membership(self) -> Membership:
        return self.log.membership

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.membership.voters

    @property
    def may_campaign(self) -> bool:
        """Whether it may hold an election: voters may, and a voter whose removal is not known to be committed. It may
        be the only one with the newest entries (thesis, 4.2.2). Its own vote does not count then."""
        memberships = self.log.memberships
        if self.is_voter or memberships.latest_index <= self.log.commit:
            return self.is_voter
        return self.node_id in memberships.at(memberships.latest_index - 1).voters

    @property
    def other_voters(self) -> list[int]:
        return [voter for voter in self.membership.voters if voter != self.node_id]

    def begin_term(self, term: int, vote: int | None = None) -> None:
        """Terms only grow, and a vote is given once in each."""
        assert term > self.term
        self.term, self.vote = term, vote

    def election_timeout(self) -> int:
        return self.options.election_ticks + self.dice.randrange(self.options.election_ticks)

    def next_read_number(self) -> int:
        self._read_number += 1
        return self._read_number


class Role:
    """A follower, a candidate or a leader. What a role does not override, it does not do."""

    name: ClassVar[RoleName]
    HANDLERS: ClassVar[Mapping[type, Callable[[Any, Any], Turn | None]]] = {}

    def __init__(self, state: State, turn: Turn) -> None:
        self.state = state
        self.leader = turn.leader
        self.elapsed = turn.elapsed

    @property
    def protects_a_leader(self) -> bool:
        """Whether a vote for somebody else would disturb a leader that is alive (6, last paragraphs; thesis 4.2.3)."""
        return False

    def enter(self) -> Turn | None:
        return None

    def leave(self) -> None:
        return None

    def tick(self) -> Turn | None:
        raise NotImplementedError

    def step(self, message: Message) -> Turn | None:
        handler = self.HANDLERS.get(type(message))
        return handler(self, message) if handler else None

    def saved(self) -> Turn | None:
        """Something was made durable."""
        return None

    def flush(self) -> None:
        """Put what others should know into the messages on their way out."""

    def propose(self, payloads: Sequence[bytes]) -> Proposed | Dropped:
        return self._not_leader()

    def change(self, change: Change) -> Proposed | Dropped:
        return self._not_leader()

    def transfer(self, node: int) -> Dropped | None:
        return self._not_leader()

    def read(self, number: int) -> Dropped | None:
        return self._not_leader()

    def _not_leader(self) -> Dropped:
        return Dropped(Reason.NO_LEADER if self.leader is None else Reason.NOT_LEADER, self.leader)

    def answer_pre_vote(self, message: PreVote) -> None:
        """It changes no state and promises nothing. A refusal tells the term, so that who is behind catches up."""
        state = self.state
        granted = message.term > state.term and state.log.is_up_to_date(message.last_index, message.last_term)
        term = message.term if granted else state.term
        state.send.append(PreVoteReply(state.node_id, message.sender, term, granted))

    def answer_vote(self, message: RequestVote) -> bool:
        """The first who asks in a term gets the vote, if no committed entry can be missing in its log (5.2, 5.4.1)."""
        state = self.state
        granted = self._may_vote_for(message.sender) and state.log.is_up_to_date(message.last_index, message.last_term)
        if granted:
            state.vote = message.sender
        state.send_after_save.append(VoteReply(state.node_id, message.sender, state.term, granted))
        return granted

    def _may_vote_for(self, candidate: int) -> bool:
        return self.state.vote in (None, candidate)
