"""How one group gets from a generation to the next: states, members who wait, deadlines.

Rules:
- The states and the ways between them are the table `NEXT`; a way that is not in it is a bug and stops us.
- A generation becomes durable with its assignment: a record is written when the leader's assignment arrives, when a
  static member comes back under a new id, and when the group becomes empty. A rebalance that was cut short by a
  restart begins again; nobody held an assignment of it.
- A join or sync that must wait is kept as a token and answered later: every token is answered exactly once.
- Deadlines are monotonic milliseconds. `wake_ms` is never later than the earliest deadline.
- What members ask for, and what they may not, is in `classic`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from headrace.core.errors import ErrorCode
from headrace.group.commands import JoinAnswer, JoinedMember, Now, Outbox, SyncAnswer, Token
from headrace.group.records import GroupKey, GroupMetadata, MemberRecord, encode
from headrace.group.roster import Member, Roster
from headrace.group.subscription import CONSUMER, topics_of_all

if TYPE_CHECKING:
    from headrace.group.settings import GroupSettings


class State(StrEnum):
    """Of groups of both protocols: ASSIGNING and RECONCILING are the new one's."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    DEAD = "Dead"


NEXT: Final = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset[State](),
}

NEVER_MS: Final = 1 << 62


class Rebalance:
    """See the module."""

    def __init__(self, group: str, settings: GroupSettings, wall_ms: int) -> None:
        self.group = group
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.roster = Roster()
        self.changed_ms = wall_ms
        self.subscribed: frozenset[str] | None = None  # None: not known
        self.durable: GroupMetadata | None = None  # the last record written
        self.wake_ms = NEVER_MS
        self._settings = settings
        self._pending: dict[str, int] = {}  # ids that were given out and have not joined -> deadline
        self._joining: dict[str, Token] = {}
        self._syncing: dict[str, Token] = {}
        self._unsynced: dict[str, None] = {}  # members that owe a sync in this generation
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._initial = False  # this rebalance began in an empty group
        self._late_comers = False  # members came since the initial delay began
        self._delay_ms = 0
        self._delay_left_ms = 0

    @classmethod
    def load(cls, group: str, record: GroupMetadata, settings: GroupSettings, now: Now) -> Self:
        """The group as its record has it: sessions begin anew, members go on as if nothing had happened."""
        self = cls(group, settings, record.changed_ms)
        self.generation = record.generation
        self.protocol_type = record.protocol_type
        self.protocol = record.protocol
        self.durable = record
        for member in record.members:
            loaded = Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                ((record.protocol or "", member.subscription),),
                member.assignment,
            )
            self.roster.add(loaded)
            self._extend(loaded, now)
        if record.members:
            self.state = State.STABLE
            if record.leader is not None and record.leader in self.roster:
                self.roster.leader = record.leader
        self.subscribed = self._subscriptions()
        return self

    # -- rebalance -----------------------------------------------------------------------------------------------

    def _rebalance_or_complete_join(self, now: Now, out: Outbox) -> None:
        if State.PREPARING in NEXT[self.state]:
            self._prepare_rebalance(now, out)
        else:
            self._complete_join_if_all_came(now, out)

    def _prepare_rebalance(self, now: Now, out: Outbox) -> None:
        if self.state is State.COMPLETING:
            for member_id, token in self._syncing.items():
                out.answer(token, SyncAnswer(error=ErrorCode.rebalance_in_progress))
                self._extend(self.roster[member_id], now)
            self._syncing.clear()
            for member in self.roster:
                member.assignment = b""
        self._unsynced.clear()
        self._sync_deadline_ms = None
        self._initial = self.state is State.EMPTY
        self._move(State.PREPARING, now)
        if self._initial:
            self._delay_ms = self._settings.initial_rebalance_delay_ms
            self._delay_left_ms = max(self.roster.rebalance_timeout_ms() - self._delay_ms, 0)
            self._late_comers = False
            self._join_deadline_ms = self._at(now.ms + self._delay_ms)
        elif self._all_came():
            self._complete_join(now, out)
        else:
            self._join_deadline_ms = self._at(now.ms + self.roster.rebalance_timeout_ms())

    def _all_came(self) -> bool:
        return len(self._joining) == len(self.roster) and not self._pending

    def _complete_join_if_all_came(self, now: Now, out: Outbox) -> None:
        """An initial rebalance waits out its delay even if everybody is there."""
        if self.state is State.PREPARING and not self._initial and self._all_came():
            self._complete_join(now, out)

    def _complete_join(self, now: Now, out: Outbox) -> None:
        self._join_deadline_ms = None
        for member in [m for m in self.roster if m.member_id not in self._joining and m.instance_id is None]:
            self._drop(member.member_id, out)
        if len(self.roster) and self.roster.leader not in self._joining:
            if not self._joining:
                # Only static members are left and none came: wait until one does or their sessions end.
                self._join_deadline_ms = self._at(now.ms + self.roster.rebalance_timeout_ms())
                return
            self.roster.leader = next(m.member_id for m in self.roster if m.member_id in self._joining)
        self.generation += 1
        self._unsynced.clear()
        if not len(self.roster):
            self.protocol = None
            self.subscribed = self._subscriptions()
            self._move(State.EMPTY, now)
            self._write(out)
            return
        self.protocol = self.roster.elect()
        self.subscribed = self._subscriptions()
        self._move(State.COMPLETING, now)
        for member in self.roster:
            if (token := self._joining.pop(member.member_id, None)) is not None:
                out.answer(token, self._joined(member))
            member.is_new = False
            self._extend(member, now)
            self._unsynced[member.member_id] = None
        self._sync_deadline_ms = self._at(now.ms + self.roster.rebalance_timeout_ms())

    def _assign(self, assignments: dict[str, bytes], now: Now, out: Outbox) -> None:
        for member in self.roster:
            member.assignment = assignments.get(member.member_id, b"")
        self._move(State.STABLE, now)
        self._write(out)
        for member_id, token in self._syncing.items():
            out.answer(token, self._synced(self.roster[member_id]))
            self._extend(self.roster[member_id], now)
        self._syncing.clear()

    # -- time ----------------------------------------------------------------------------------------------------

    def expire(self, now: Now, out: Outbox) -> None:
        """Do everything whose time has come."""
        for member_id in [m for m, deadline_ms in self._pending.items() if deadline_ms <= now.ms]:
            self._pending.pop(member_id, None)
            self._complete_join_if_everybody(now, out)
        for member_id in [m.member_id for m in self.roster if m.deadline_ms <= now.ms]:
            if member_id in self.roster and self.roster[member_id].deadline_ms <= now.ms:
                self._expire_session(self.roster[member_id], now, out)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now.ms:
            self._join_time_is_up(now, out)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now.ms:
            self._sync_deadline_ms = None
            if self._unsynced:
                for member_id in list(self._unsynced):
                    self._drop(member_id, out)
                self._prepare_rebalance(now, out)
        deadlines = [m.deadline_ms for m in self.roster] + list(self._pending.values())
        deadlines += [at for at in (self._join_deadline_ms, self._sync_deadline_ms) if at is not None]
        self.wake_ms = min(deadlines, default=NEVER_MS)

    def _expire_session(self, member: Member, now: Now, out: Outbox) -> None:
        waits = member.member_id in self._joining or member.member_id in self._syncing
        if waits and not member.is_new:
            self._extend(member, now)  # who waits for us cannot send heartbeats
            return
        self._drop(member.member_id, out)
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare_rebalance(now, out)
        else:
            self._complete_join_if_everybody(now, out)

    def _complete_join_if_everybody(self, now: Now, out: Outbox) -> None:
        """Unlike a leave, an expiry ends even an initial rebalance early, as Kafka has it."""
        if self.state is State.PREPARING and self._all_came():
            self._complete_join(now, out)

    def _join_time_is_up(self, now: Now, out: Outbox) -> None:
        if self._initial and self._late_comers and self._delay_left_ms:
            self._late_comers = False
            last_ms, self._delay_ms = (
                self._delay_ms,
                min(self._settings.initial_rebalance_delay_ms, self._delay_left_ms),
            )
            self._delay_left_ms = max(self._delay_left_ms - last_ms, 0)
            self._join_deadline_ms = self._at(now.ms + self._delay_ms)
        else:
            self._complete_join(now, out)

    # -- small steps ---------------------------------------------------------------------------------------------

    def _move(self, state: State, now: Now) -> None:
        assert state in NEXT[self.state], f"{self.group}: no way from {self.state} to {state}"
        self.state = state
        self.changed_ms = now.wall_ms

    def _at(self, deadline_ms: int) -> int:
        self.wake_ms = min(self.wake_ms, deadline_ms)
        return deadline_ms

    def _extend(self, member: Member, now: Now) -> None:
        """A sign of life; but a new member that still waits for its first rebalance keeps its longer limit."""
        if not member.is_new:
            member.deadline_ms = self._at(now.ms + member.session_timeout_ms)

    def _await_join(self, member_id: str, token: Token, out: Outbox) -> None:
        if (older := self._joining.pop(member_id, None)) is not None:
            # The client gave up on that request and sent another: only the last one counts.
            out.answer(older, JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=member_id))
        self._joining[member_id] = token

    def _drop(self, member_id: str, out: Outbox) -> bool:
        """Take a member out and tell it so if it waits."""
        unknown = ErrorCode.unknown_member_id
        if (token := self._joining.pop(member_id, None)) is not None:
            out.answer(token, JoinAnswer(error=unknown, member_id=""))
        if (token := self._syncing.pop(member_id, None)) is not None:
            out.answer(token, SyncAnswer(error=unknown))
        self._unsynced.pop(member_id, None)
        known = self._pending.pop(member_id, None) is not None
        return self.roster.remove(member_id) is not None or known

    def _joined(self, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.roster.leader:
            members = tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.roster)
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.roster.leader or "",
            skip_assignment=skip_assignment,
            members=members,
        )

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        return topics_of_all(member.metadata(self.protocol) for member in self.roster)

    def _write(self, out: Outbox) -> None:
        self.durable = GroupMetadata(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.roster.leader,
            self.changed_ms,
            tuple(
                MemberRecord(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.session_timeout_ms,
                    m.rebalance_timeout_ms,
                    m.metadata(self.protocol),
                    m.assignment,
                )
                for m in self.roster
            ),
        )
        out.records.append(encode(GroupKey(self.group), self.durable))
