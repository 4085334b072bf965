"""A leader: appends, replicates, commits, confirms reads, and steps down when it must.

Rules:
- A leader's first entry is empty. Until one entry of its term is committed it changes no membership, confirms no read.
- Only entries of its own term are committed by counting; older ones are committed with them (5.4.2).
- It counts itself up to what it has saved, and only if it is a voter.
- It never replaces an entry of its log.
- Without an answer from a majority within an election timeout it steps down, so that nobody waits for it.
- One membership change at a time. A leader that removes itself leads until that is committed, without counting itself.
- While it hands over, it takes no proposals. It hands over to a voter that has its whole log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from headrace.raft.membership import Change, ChangeKind, changed
from headrace.raft.messages import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    Heartbeat,
    HeartbeatAck,
    InstallSnapshot,
    ReadAnswer,
    ReadRequest,
    RequestVote,
    TimeoutNow,
)
from headrace.raft.outcome import Dropped, Proposed, Reason
from headrace.raft.progress import Progress
from headrace.raft.quorum import agreed, majority
from headrace.raft.reads import Asker, ReadRounds
from headrace.raft.ready import Read, RoleName
from headrace.raft.records import Entry
from headrace.raft.role import Role, State, Turn


class Leader(Role):
    name = RoleName.LEADER

    def __init__(self, state: State, turn: Turn) -> None:
        super().__init__(state, turn)
        self.followers: dict[int, Progress] = {}
        self._start_index = state.log.last_index + 1
        self._beat_ticks = 0
        self._transfer_to: int | None = None
        self._transfer_ticks = 0
        self._uncommitted: deque[tuple[int, int]] = deque()  # index and size of what was proposed here
        self._uncommitted_bytes = 0
        self._reads = ReadRounds()

    @property
    def protects_a_leader(self) -> bool:
        return True

    @property
    def has_started(self) -> bool:
        """Whether an entry of this term is committed."""
        return self.state.log.commit >= self._start_index

    def enter(self) -> Turn | None:
        self._track()
        self.state.log.append(
            [Entry(self._start_index, self.state.term)]
        )  # its way to the others is the first heartbeat
        return None

    def leave(self) -> None:
        mine = self.state.node_id
        self.state.lost_reads.extend(asker.number for asker in self._reads.askers() if asker.node == mine)

    def saved(self) -> Turn | None:
        return self._commit()

    # Time

    def tick(self) -> Turn | None:
        options = self.state.options
        self.elapsed += 1
        if self.elapsed >= options.election_ticks:
            self.elapsed = 0
            if not self._hears_a_majority():
                return Turn(RoleName.FOLLOWER)
        if self._transfer_to is not None:
            self._transfer_ticks += 1
            if self._transfer_ticks >= options.election_ticks:
                self._transfer_to = None
        self._beat_ticks += 1
        if self._beat_ticks >= options.heartbeat_ticks:
            self._beat()
        for progress in self.followers.values():
            progress.tick(options.snapshot_ticks)
        return None

    def _hears_a_majority(self) -> bool:
        active = {node for node, progress in self.followers.items() if progress.is_active} | {self.state.node_id}
        for progress in self.followers.values():
            progress.is_active = False
        voters = self.state.membership.voters
        return len(active.intersection(voters)) >= majority(voters)

    def _beat(self) -> None:
        state = self.state
        self._beat_ticks = 0
        for node, progress in self.followers.items():
            commit = min(progress.match, state.log.commit)
            state.send.append(Heartbeat(state.node_id, node, state.term, commit, self._reads.round))

    # What is asked of it

    def propose(self, payloads: Sequence[bytes]) -> Proposed | Dropped:
        if self._transfer_to is not None:
            return self._drop(Reason.TRANSFERRING)
        first = self.state.log.last_index + 1
        entries = [Entry(first + place, self.state.term, payload) for place, payload in enumerate(payloads)]
        return self._append(entries)

    def change(self, change: Change) -> Proposed | Dropped:
        log, node = self.state.log, change.node
        if self._transfer_to is not None:
            return self._drop(Reason.TRANSFERRING)
        if not self.has_started:
            return self._drop(Reason.TERM_NOT_STARTED)
        if log.memberships.latest_index > log.commit:
            return self._drop(Reason.CHANGE_PENDING)
        membership = changed(log.membership, change)
        if isinstance(membership, Reason):
            return self._drop(membership)
        if change.kind is ChangeKind.PROMOTE and self._lag(node) > self.state.options.promote_lag:
            return self._drop(Reason.LEARNER_BEHIND)
        outcome = self._append([Entry(log.last_index + 1, self.state.term, membership=membership)])
        self._track()
        self._confirm_reads()  # a smaller cluster may have a majority already
        return outcome

    def transfer(self, node: int) -> Dropped | None:
        """Abandoned if it takes longer than an election timeout."""
        if node not in self.state.membership.voters:
            return self._drop(Reason.NOT_A_VOTER)
        if node != self.state.node_id:
            self._transfer_to = node
            self._transfer_ticks = 0
            self._hand_over(node)
        return None

    def read(self, number: int) -> Dropped | None:
        return None if self._ask(Asker(self.state.node_id, number)) else self._drop(Reason.BUSY)

    def unreachable(self, node: int) -> None:
        if node in self.followers:
            self.followers[node].unreachable()

    def snapshot_ended(self, node: int, arrived: bool) -> None:
        if node in self.followers:
            self.followers[node].snapshot_ended(arrived)

    def _drop(self, reason: Reason) -> Dropped:
        return Dropped(reason, self.state.node_id)

    def _append(self, entries: Sequence[Entry]) -> Proposed | Dropped:
        size = sum(entry.size_bytes for entry in entries)
        if self._uncommitted and self._uncommitted_bytes + size > self.state.options.max_uncommitted_bytes:
            return self._drop(Reason.BUSY)
        self._uncommitted.append((entries[-1].index, size))
        self._uncommitted_bytes += size
        self.state.log.append(entries)
        return Proposed(self.state.term, entries[0].index, entries[-1].index)

    # Followers

    def _track(self) -> None:
        """Follow the membership: newcomers are looked after, those who left are left alone."""
        members = [node for node in self.state.membership.members if node != self.state.node_id]
        options, last_index = self.state.options, self.state.log.last_index
        self.followers = {
            node: self.followers.get(node) or Progress(last_index + 1, options.max_inflight) for node in members
        }

    def _lag(self, node: int) -> int:
        progress = self.followers.get(node)
        return self.state.log.last_index - (progress.match if progress else 0)

    def flush(self) -> None:
        for node, progress in self.followers.items():
            while progress.may_send:
                if not self._replicate(node, progress):
                    break

    def _replicate(self, node: int, progress: Progress) -> bool:
        """Send the next message to a follower. Whether more may follow it."""
        state, log = self.state, self.state.log
        first = progress.next_index
        if first > log.last_index and not progress.is_poked:
            return False
        prev_term = log.term(first - 1)
        if prev_term is None or first < log.first_index:
            return self._send_snapshot(node, progress)
        entries = [] if progress.is_full else log.slice(first, log.last_index + 1, state.options.max_append_bytes)
        state.send.append(
            AppendEntries(state.node_id, node, state.term, first - 1, prev_term, tuple(entries), log.commit)
        )
        progress.sent(first + len(entries) - 1)
        return bool(entries)

    def _send_snapshot(self, node: int, progress: Progress) -> bool:
        """Only to those who are alive: it is dear."""
        if progress.is_active:
            state, snapshot = self.state, self.state.log.snapshot
            state.send.append(InstallSnapshot(state.node_id, node, state.term, snapshot))
            progress.begin_snapshot(snapshot.index)
        return False

    def _on_accepted(self, message: AppendAccepted) -> Turn | None:
        progress, log = self.followers.get(message.sender), self.state.log
        if progress is None:
            return None
        assert message.match <= log.last_index
        progress.is_active = True
        turn = self._commit() if progress.accepted(message.match, log.first_index) else None
        if turn is None and message.sender == self._transfer_to:
            self._hand_over(message.sender)
        return turn

    def _on_rejected(self, message: AppendRejected) -> None:
        progress = self.followers.get(message.sender)
        if progress is not None:
            progress.is_active = True
            hint, _ = self.state.log.conflict(message.hint_index, message.hint_term)
            progress.rejected(message.rejected, hint)

    def _on_heartbeat_ack(self, message: HeartbeatAck) -> None:
        progress = self.followers.get(message.sender)
        if progress is not None:
            progress.answered(self.state.log.last_index)
            progress.round = max(progress.round, message.round)
            self._confirm_reads()

    def _hand_over(self, node: int) -> None:
        state, progress = self.state, self.followers[node]
        if progress.match == state.log.last_index:
            state.send.append(TimeoutNow(state.node_id, node, state.term))

    # Commitment

    def _commit(self) -> Turn | None:
        log = self.state.log
        index = self._reached()
        if index <= log.commit or not self._may_commit(index):
            return None
        log.commit_to(index)
        for progress in self.followers.values():
            progress.is_poked = True
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        self._begin_reads()
        if log.memberships.latest_index <= log.commit and not self.state.is_voter:
            return self._retire()
        return None

    def _reached(self) -> int:
        """The greatest index that a majority has saved."""
        match = {node: progress.match for node, progress in self.followers.items()}
        match[self.state.node_id] = self.state.log.saved
        return agreed(self.state.membership.voters, match)

    def _may_commit(self, index: int) -> bool:
        return self.state.log.term(index) == self.state.term

    def _retire(self) -> Turn:
        """Removed, and that is committed: leave the lead to whoever knows most, without waiting for a timeout."""
        voters = self.state.membership.voters
        self.flush()
        heir = max(voters, key=lambda node: self.followers[node].match)
        self.state.send.append(TimeoutNow(self.state.node_id, heir, self.state.term))
        return Turn(RoleName.FOLLOWER)

    # Reads

    def _on_read(self, message: ReadRequest) -> None:
        self._ask(Asker(message.sender, message.number))

    def _ask(self, asker: Asker) -> bool:
        if len(self._reads) >= self.state.options.max_reads:
            return False
        self._reads.add(asker)
        self._begin_reads()
        return True

    def _begin_reads(self) -> None:
        if self.has_started and self._reads.begin(self.state.log.commit):
            self._beat()
            self._confirm_reads()

    def _confirm_reads(self) -> None:
        rounds = {node: progress.round for node, progress in self.followers.items()}
        rounds[self.state.node_id] = self._reads.round
        confirmed = self._reads.finish(agreed(self.state.membership.voters, rounds))
        for asker, commit in confirmed:
            if asker.node == self.state.node_id:
                self.state.reads.append(Read(asker.number, commit))
            else:
                answer = ReadAnswer(self.state.node_id, asker.node, self.state.term, asker.number, commit)
                self.state.send.append(answer)
        if confirmed:
            self._begin_reads()

    def _on_request_vote(self, message: RequestVote) -> None:
        self.answer_vote(message)  # refused: the vote of this term is this server's own

    HANDLERS: ClassVar = {
        RequestVote: _on_request_vote,
        AppendAccepted: _on_accepted,
        AppendRejected: _on_rejected,
        HeartbeatAck: _on_heartbeat_ack,
        ReadRequest: _on_read,
    }
