"""One consumer group of the classic protocol: what its members ask for, and what they are told.

Rules:
- State changes when a command is decided. What must survive a restart is written as a record in the same decision;
  the driver sends no answer before that record is committed, and rebuilds the group from the log if it cannot be.
- Generations, waiting members and deadlines are `rebalance`'s business; members and votes are `roster`'s.
- Knows nothing of committed offsets, other groups, or who carries its answers.
- Where Apache Kafka leaves a request without an answer (one that a newer one of the same member overtook, or whose
  member was removed while it waited for a sync), it is answered here. A static member that comes back with other
  topics causes a rebalance; with Kafka it would keep an assignment that does not fit. A static member that sends a
  heartbeat without its id (librdkafka does, when the broker was away for longer than its session) is unknown, so that
  it joins again; with Kafka it is fenced, which ends its client.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.core import limits
from headrace.core.errors import ErrorCode
from headrace.group.commands import (
    NONE,
    Commit,
    DescribedMember,
    Description,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Now,
    Outbox,
    Outcome,
    Sync,
    SyncAnswer,
    Token,
)
from headrace.group.rebalance import Rebalance, State
from headrace.group.roster import Member, size_of
from headrace.group.subscription import CONSUMER, topics_of

# A new member may wait this long for its first rebalance to complete, whatever its session timeout says: it may have
# gone away without knowing its own id (KAFKA-7610).
NEW_MEMBER_WAIT_MS: Final = 300_000
# All members' metadata, or all assignments, of one group together.
GROUP_BYTES: Final = 8 * limits.GROUP_METADATA_BYTES


class ClassicGroup(Rebalance):
    """See the module."""

    # -- what others may ask -------------------------------------------------------------------------------------

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost if it were forgotten, but for its offsets."""
        return self.state is State.EMPTY and self.durable is None and not self._pending

    @property
    def promised(self) -> int:
        """Ids that were given away and have not come back."""
        return len(self._pending)

    @property
    def is_removable(self) -> bool:
        return self.state is State.EMPTY and not self._pending

    @property
    def waiting(self) -> tuple[Token, ...]:
        return (*self._joining.values(), *self._syncing.values())

    def subscribes(self, topic: str) -> bool:
        """Whether it is subscribed to `topic`; a consumer group whose subscriptions cannot be read might be."""
        return self.protocol_type == CONSUMER if self.subscribed is None else topic in self.subscribed

    def dismiss(self, out: Outbox) -> None:
        """Tell everyone who waits to join again: the group is about to become another."""
        for member_id, token in self._joining.items():
            out.answer(token, JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=member_id))
        for token in self._syncing.values():
            out.answer(token, SyncAnswer(error=ErrorCode.rebalance_in_progress))
        self._joining.clear()
        self._syncing.clear()

    def rebalance(self, now: Now, out: Outbox) -> None:
        """Begin a rebalance for a reason from outside."""
        self._prepare_rebalance(now, out)

    def describe(self) -> Description:
        stable = self.state is State.STABLE
        return Description(
            group=self.group,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=(self.protocol or "") if stable else "",
            members=tuple(
                DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(self.protocol) if stable else b"",
                    member.assignment,
                )
                for member in self.roster
            ),
        )

    # -- join ----------------------------------------------------------------------------------------------------

    def join(self, command: Join, now: Now, out: Outbox) -> None:
        member_id = command.member_id
        error = self._join_fault(command)
        if error is ErrorCode.group_max_size_reached:
            if self.state is State.PREPARING and self._drop(member_id, out):
                self._complete_join_if_all_came(now, out)
            member_id = ""
        if error is not NONE:
            out.answer(command.token, JoinAnswer(error=error, member_id=member_id))
        elif not member_id:
            self._join_newcomer(command, now, out)
        elif member_id in self._pending and command.instance_id is None:
            self._add(command, member_id, now, out)
        else:
            self._rejoin(command, now, out)

    def _join_fault(self, command: Join) -> ErrorCode:
        if not self._has_room(command):
            return ErrorCode.group_max_size_reached
        names = [name for name, _ in command.protocols]
        if self.state is State.EMPTY:
            fits = bool(command.protocol_type) and bool(names)
        else:
            fits = command.protocol_type == self.protocol_type and self.roster.common(names)
        return NONE if fits else ErrorCode.inconsistent_group_protocol

    def _has_room(self, command: Join) -> bool:
        member_id = command.member_id
        size = size_of(command.protocols)
        others = self.roster.metadata_bytes - (
            size_of(self.roster[member_id].protocols) if member_id in self.roster else 0
        )
        if size > limits.GROUP_METADATA_BYTES or others + size > GROUP_BYTES:
            return False
        most = min(self._settings.max_size, limits.MEMBERS_PER_GROUP)
        if not member_id and len(self._pending) >= limits.MEMBERS_PER_GROUP:
            return False
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING:
            return member_id in self._joining or len(self._joining) < most
        return member_id in self.roster or len(self.roster) < most

    def _join_newcomer(self, command: Join, now: Now, out: Outbox) -> None:
        if command.instance_id is not None:
            known = self.roster.by_instance(command.instance_id)
            if known is not None:
                self._replace(command, known, now, out)
            else:
                self._add(command, command.new_id, now, out)
        elif command.must_know_id:
            self._pending[command.new_id] = self._at(now.ms + command.session_timeout_ms)
            out.answer(command.token, JoinAnswer(error=ErrorCode.member_id_required, member_id=command.new_id))
        else:
            self._add(command, command.new_id, now, out)

    def _add(self, command: Join, member_id: str, now: Now, out: Outbox) -> None:
        self._pending.pop(member_id, None)
        if not len(self.roster):
            self.protocol_type = command.protocol_type
        member = Member(
            member_id,
            command.instance_id,
            command.client_id,
            command.client_host,
            command.session_timeout_ms,
            command.rebalance_timeout_ms,
            command.protocols,
            deadline_ms=self._at(now.ms + NEW_MEMBER_WAIT_MS),
            is_new=True,
        )
        self.roster.add(member)
        self._joining[member_id] = command.token
        if self.state is State.PREPARING and self._initial:
            self._late_comers = True
        self._rebalance_or_complete_join(now, out)

    def _rejoin(self, command: Join, now: Now, out: Outbox) -> None:
        member_id = command.member_id
        fault = self.roster.fault(member_id, command.instance_id)
        if fault is not NONE or self.state is State.EMPTY:
            error = fault if fault is not NONE else ErrorCode.unknown_member_id
            out.answer(command.token, JoinAnswer(error=error, member_id=member_id))
            return
        member = self.roster[member_id]
        unchanged = member.protocols == command.protocols
        leads = self.roster.leader == member_id
        if unchanged and (self.state is State.COMPLETING or (self.state is State.STABLE and not leads)):
            # Its answer was lost, or nothing is new: it may go on to sync.
            self._extend(member, now)
            out.answer(command.token, self._joined(member))
            return
        self.roster.revise(member, command.protocols, command.session_timeout_ms, command.rebalance_timeout_ms)
        self._await_join(member_id, command.token, out)
        self._rebalance_or_complete_join(now, out)

    def _replace(self, command: Join, member: Member, now: Now, out: Outbox) -> None:
        """A static member came back without its id: the old id is fenced, the place is kept."""
        old_id, leader, old_metadata = member.member_id, self.roster.leader, member.metadata(self.protocol)
        fenced = ErrorCode.fenced_instance_id
        if (token := self._joining.pop(old_id, None)) is not None:
            out.answer(token, JoinAnswer(error=fenced, member_id=old_id))
        if (token := self._syncing.pop(old_id, None)) is not None:
            out.answer(token, SyncAnswer(error=fenced))
        if old_id in self._unsynced:
            del self._unsynced[old_id]
            self._unsynced[command.new_id] = None
        self.roster.rename(member, command.new_id)
        self.roster.revise(member, command.protocols, command.session_timeout_ms, command.rebalance_timeout_ms)
        member.client_id, member.client_host, member.is_new = command.client_id, command.client_host, False
        self._extend(member, now)
        if self.state is State.STABLE and self._fits_generation(member, old_metadata):
            self._write(out)
            leads = self.roster.leader == command.new_id
            if command.may_skip_assignment:
                out.answer(command.token, self._joined(member, skip_assignment=leads))
            else:
                # The old leader's id, and no members, keep older clients from assigning again (KIP-345).
                answer = msgspec.structs.replace(self._joined(member), leader=leader or "", members=())
                out.answer(command.token, answer)
            return
        self._joining[command.new_id] = command.token
        self._rebalance_or_complete_join(now, out)

    def _fits_generation(self, member: Member, old_metadata: bytes) -> bool:
        """Whether a static member that came back may go on with its old assignment."""
        if self.roster.elect() != self.protocol:
            return False
        # Bytes may differ for no reason that matters (owned partitions, generation): the topics count.
        metadata = member.metadata(self.protocol)
        if metadata == old_metadata:
            return True
        topics = topics_of(metadata) if self.protocol_type == CONSUMER else None
        return self.protocol_type != CONSUMER or (topics is not None and topics == topics_of(old_metadata))

    # -- sync, heartbeat, leave, commit --------------------------------------------------------------------------

    def sync(self, command: Sync, now: Now, out: Outbox) -> None:
        error = self._sync_fault(command)
        if error is not NONE:
            out.answer(command.token, SyncAnswer(error=error))
            return
        member = self.roster[command.member_id]
        self._unsynced.pop(command.member_id, None)
        if not self._unsynced:
            self._sync_deadline_ms = None
        self._extend(member, now)
        if self.state is State.STABLE:
            out.answer(command.token, self._synced(member))
            return
        if (older := self._syncing.pop(command.member_id, None)) is not None:
            out.answer(older, SyncAnswer(error=ErrorCode.rebalance_in_progress))
        self._syncing[command.member_id] = command.token
        if self.roster.leader == command.member_id:
            self._assign(dict(command.assignments), now, out)

    def _sync_fault(self, command: Sync) -> ErrorCode:
        if self.state is State.EMPTY:
            return ErrorCode.unknown_member_id
        fault = self.roster.fault(command.member_id, command.instance_id)
        if fault is not NONE:
            return fault
        if command.generation != self.generation:
            return ErrorCode.illegal_generation
        for said, agreed in ((command.protocol_type, self.protocol_type), (command.protocol, self.protocol)):
            if said is not None and agreed is not None and said != agreed:
                return ErrorCode.inconsistent_group_protocol
        if self.state is State.PREPARING:
            return ErrorCode.rebalance_in_progress
        if sum(len(assignment) for _, assignment in command.assignments) > GROUP_BYTES:
            return ErrorCode.invalid_request
        return NONE

    def heartbeat(self, command: Heartbeat, now: Now, out: Outbox) -> None:
        error = self.roster.fault(command.member_id, command.instance_id)
        if error is NONE:
            if command.generation != self.generation:
                error = ErrorCode.illegal_generation
            else:
                self._extend(self.roster[command.member_id], now)
                if self.state is State.PREPARING:
                    error = ErrorCode.rebalance_in_progress
        out.answer(command.token, Outcome(error))

    def leave(self, command: Leave, now: Now, out: Outbox) -> None:
        before = len(self.roster)
        results = tuple(
            (member_id, instance_id, self._leave_one(member_id, instance_id, out))
            for member_id, instance_id in command.members
        )
        if len(self.roster) < before and self.state in (State.STABLE, State.COMPLETING):
            self._prepare_rebalance(now, out)
        else:
            self._complete_join_if_all_came(now, out)
        out.answer(command.token, LeaveAnswer(results))

    def _leave_one(self, member_id: str, instance_id: str | None, out: Outbox) -> ErrorCode:
        if not member_id:
            known = None if instance_id is None else self.roster.by_instance(instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            member_id = known.member_id
        elif member_id in self._pending:
            del self._pending[member_id]
            return NONE
        elif (fault := self.roster.fault(member_id, instance_id)) is not NONE:
            return fault
        self._drop(member_id, out)
        return NONE

    def commit_fault(self, command: Commit, now: Now) -> ErrorCode:
        """Why this member may not commit now. A commit is also a sign of life."""
        if command.generation < 0 and self.state is State.EMPTY:
            return NONE  # a simple consumer or an administrator
        if command.generation < 0 and not command.member_id and command.instance_id is None:
            # Older transactional producers do not say for whom they commit.
            return ErrorCode.unknown_member_id if command.producer is None else NONE
        fault = self.roster.fault(command.member_id, command.instance_id)
        if fault is not NONE:
            return fault
        if command.generation != self.generation:
            return ErrorCode.illegal_generation
        if self.state is State.COMPLETING and command.producer is None:
            return ErrorCode.rebalance_in_progress
        self._extend(self.roster[command.member_id], now)
        return NONE
