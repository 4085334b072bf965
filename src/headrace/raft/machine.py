"""One Raft server as a pure machine: messages, ticks and proposals in; what to save, send and apply out.

Rules:
- It decides, the driver acts. `step`, `tick`, `propose`, `change`, `transfer` and `read` change the state in memory at
  once; what that asks of the world comes out of `ready`, and the rules of `ready.py` say in which order to do it.
- A higher term makes anybody a follower of that term; a lower one is told so, or dropped. The exceptions are PreVote,
  which speaks of a term that has not begun, and votes that would disturb a leader that is alive.
- A save that fails is never followed by `advance`: the driver throws the machine away, and may make a new one from what
  is saved. A `CorruptionError` out of `step` means that this disk has lost what it had acknowledged: stop it.
- Pure: chance comes in with `dice`, time with `tick`. Nothing here waits, logs, or knows a file or a socket.

A driver is this loop, with saves in a queue of their own:

    while ready := raft.ready():
        transmit(ready.send); apply(ready.commit); answer(ready.reads); saving.append(ready)
    # and for each Ready of `saving`, in order:
    storage.save(ready.save); transmit(ready.send_after_save); raft.advance(ready)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.raft.candidate import Candidate, PreCandidate
from headrace.raft.follower import Follower
from headrace.raft.leader import Leader
from headrace.raft.log import Storage
from headrace.raft.membership import Change
from headrace.raft.messages import (
    AppendEntries,
    FromLeader,
    Heartbeat,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    Stale,
    VoteReply,
)
from headrace.raft.options import Dice, RaftOptions
from headrace.raft.outcome import Dropped, Proposed
from headrace.raft.progress import Progress
from headrace.raft.ready import Read, Ready, RoleName, Save, Standing
from headrace.raft.records import HardState, Membership, Snapshot
from headrace.raft.role import FOLLOWS, Role, State, Turn

ROLES: Final[Mapping[RoleName, type[Role]]] = {role.name: role for role in (Follower, PreCandidate, Candidate, Leader)}


class Raft:
    """See the module. `storage` holds what an earlier life, or `founding`, has saved."""

    def __init__(self, node_id: int, storage: Storage, options: RaftOptions, dice: Dice) -> None:
        self._state = State(node_id, storage, options, dice)
        self._role: Role = Follower(self._state, Turn(RoleName.FOLLOWER))
        self._handed_hard_state: HardState = self._state.saved_hard_state
        self._handed_standing: Standing | None = None
        self._saving: deque[Ready] = deque()

    # What can be seen

    @property
    def node_id(self) -> int:
        return self._state.node_id

    @property
    def standing(self) -> Standing:
        return Standing(self._state.term, self._role.name, self._role.leader)

    @property
    def membership(self) -> Membership:
        """The one in force. It may not be committed yet."""
        return self._state.membership

    @property
    def commit_index(self) -> int:
        return self._state.log.commit

    @property
    def applied_index(self) -> int:
        """Of the last entry that was handed out to be applied."""
        return self._state.log.applied

    @property
    def last_index(self) -> int:
        return self._state.log.last_index

    @property
    def followers(self) -> Mapping[int, Progress]:
        """What a leader knows of the others; nobody else knows anything."""
        return self._role.followers if isinstance(self._role, Leader) else {}

    # What happens to it

    def step(self, message: Message) -> None:
        state = self._state
        assert message.to == state.node_id, f"a message for node {message.to} reached node {state.node_id}"
        if message.term > state.term:
            if self._would_disturb(message):
                return
            if not isinstance(message, PreVote) and not (isinstance(message, PreVoteReply) and message.granted):
                self._follow(message)
        elif message.term < state.term:
            self._tell_the_term(message)
            return
        elif isinstance(message, FromLeader) and self._role.name in (RoleName.PRE_CANDIDATE, RoleName.CANDIDATE):
            self._turn(Turn(RoleName.FOLLOWER, leader=message.sender))
        self._turn(self._role.step(message))

    def tick(self) -> None:
        self._turn(self._role.tick())

    def propose(self, payloads: Sequence[bytes]) -> Proposed | Dropped:
        """Append commands, one entry each, next to each other. What becomes of them is seen in `commit`."""
        assert payloads and all(payloads), "an empty entry means something else"
        return self._role.propose(payloads)

    def change(self, change: Change) -> Proposed | Dropped:
        """Add, promote or remove one server. It is in force at once, and certain when it is committed."""
        return self._role.change(change)

    def transfer(self, node: int) -> Dropped | None:
        """Hand the leadership over. None: it is tried."""
        return self._role.transfer(node)

    def read(self, number: int) -> Dropped | None:
        """Ask for a linearizable read. The number comes back in `reads` or in `lost_reads`."""
        return self._role.read(number)

    def unreachable(self, node: int) -> None:
        """The driver could not deliver what was sent to a node."""
        if isinstance(self._role, Leader):
            self._role.unreachable(node)

    def doubt(self, node: int) -> None:
        """The driver has reason to believe that a node is dead: if it is the leader followed, do not wait for it."""
        if isinstance(self._role, Follower):
            self._role.doubt(node)

    def snapshot_ended(self, node: int, arrived: bool) -> None:
        """The driver knows what has become of the snapshot that was on its way to a node."""
        if isinstance(self._role, Leader):
            self._role.snapshot_ended(node, arrived)

    def snapshot_at(self, index: int, payload: bytes) -> Snapshot | None:
        """A snapshot of a state that has applied `index`; the driver saves it and may drop what it covers."""
        return self._state.log.snapshot_at(index, payload)

    # What it asks for

    def ready(self) -> Ready | None:
        """What to do next; None if there is nothing. It is not asked for twice."""
        state, log = self._state, self._state.log
        self._role.flush()
        commit = log.take_committed(state.options.max_apply_bytes)
        hard_state, standing = state.hard_state, self.standing
        reads = self._take_reads() if state.reads else ()
        is_new = hard_state != self._handed_hard_state or standing != self._handed_standing
        messages = state.send or state.send_after_save
        if not (messages or commit or is_new or reads or state.lost_reads or log.has_unsaved()):
            return None
        snapshot, entries = log.hand_out()
        ready = Ready(
            save=Save(hard_state if hard_state != self._handed_hard_state else None, snapshot, entries),
            send=tuple(state.send),
            send_after_save=tuple(state.send_after_save),
            commit=commit,
            reads=reads,
            lost_reads=tuple(state.lost_reads),
            standing=standing if standing != self._handed_standing else None,
        )
        state.send.clear()
        state.send_after_save.clear()
        state.lost_reads.clear()
        self._handed_hard_state, self._handed_standing = hard_state, standing
        self._saving.append(ready)
        return ready

    def advance(self, ready: Ready) -> None:
        """All of a Ready's save is durable. Once for each, in order."""
        assert self._saving and self._saving[0] is ready, (
            "saves are acknowledged once, in the order they were asked for"
        )
        self._saving.popleft()
        self._state.log.mark_saved(ready.save.snapshot)
        if ready.save.hard_state is not None:
            self._state.saved_hard_state = ready.save.hard_state
        self._turn(self._role.saved())

    def _take_reads(self) -> tuple[Read, ...]:
        state = self._state
        served = tuple(read for read in state.reads if read.index <= state.log.applied)
        state.reads = [read for read in state.reads if read.index > state.log.applied]
        return served

    # Terms and roles

    def _would_disturb(self, message: Message) -> bool:
        if isinstance(message, RequestVote) and message.transfer:
            return False
        return isinstance(message, PreVote | RequestVote) and self._role.protects_a_leader

    def _follow(self, message: Message) -> None:
        """A new term has begun. A follower that hears of no leader goes on waiting."""
        self._state.begin_term(message.term)
        leader = message.sender if isinstance(message, FromLeader) else None
        waited = self._role.elapsed if leader is None and self._role.name is RoleName.FOLLOWER else 0
        self._turn(Turn(RoleName.FOLLOWER, leader=leader, elapsed=waited))

    def _tell_the_term(self, message: Message) -> None:
        state = self._state
        if isinstance(message, AppendEntries | Heartbeat | InstallSnapshot):
            state.send.append(Stale(state.node_id, message.sender, state.term))
        elif isinstance(message, PreVote):
            state.send.append(PreVoteReply(state.node_id, message.sender, state.term, False))
        elif isinstance(message, RequestVote):
            state.send.append(VoteReply(state.node_id, message.sender, state.term, False))

    def _turn(self, turn: Turn | None) -> None:
        while turn is not None:
            assert turn.role in FOLLOWS[self._role.name], f"no way from {self._role.name} to {turn.role}"
            self._role.leave()
            self._role = ROLES[turn.role](self._state, turn)
            turn = self._role.enter()
