"""Between the protocols: classic members in a group of the new one, and a group's way from one to the other and back.

Rules:
- A group of classic members that speak the consumer protocol becomes a new one when the first new member joins; it
  becomes a classic one again when the last new member goes and classic ones stay. Offsets are not touched.
- Its epoch goes on where the generation was, and the other way round: neither ever goes back.
- To a classic member the group looks classic: a join is answered at once with its epoch as generation and no leader;
  the sync brings the assignment that the broker made; a heartbeat says when to join again. What it owns is in its
  subscription; a member that says nothing about it (eager) has given up everything when it joins.
- A classic member must join in time once it was told to, and sync in time once it has joined.
- Those who wait in a classic group when it becomes a new one are told to join again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Self

from headrace.core.errors import ApiError, ErrorCode
from headrace.group.classic import ClassicGroup
from headrace.group.commands import (
    NONE,
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
)
from headrace.group.consumer import ConsumerGroup
from headrace.group.consumer_records import (
    ClassicFacts,
    ConsumerGroupKey,
    ConsumerMemberKey,
    Epochs,
    MemberFacts,
    Progress,
    Target,
    TargetKey,
)
from headrace.group.embedded import Named, Subscription, assignment_bytes, assignment_of, subscription_of
from headrace.group.reconciliation import Stand
from headrace.group.records import GroupKey, GroupMetadata, MemberRecord, encode
from headrace.group.roster import Member, Roster
from headrace.group.subscription import CONSUMER
from headrace.group.topics import NOTHING, Partitions, Reading, TopicPartition, Topics, digest, grouped

if TYPE_CHECKING:
    from headrace.group.settings import GroupSettings

UPGRADES: Final = frozenset({"bidirectional", "upgrade"})
DOWNGRADES: Final = frozenset({"bidirectional", "downgrade"})


class MixedGroup(ConsumerGroup):
    """See the module."""

    def __init__(self, group: str, settings: GroupSettings, reading: Reading) -> None:
        super().__init__(group, settings, reading)
        self.successor: ClassicGroup | None = None  # what the group has become
        self._joins: dict[str, int] = {}  # members that were told to join -> deadline
        self._syncs: dict[str, int] = {}  # members that owe a sync -> deadline

    # -- from classic to new -------------------------------------------------------------------------------------

    @classmethod
    def upgrade(cls, old: ClassicGroup, settings: GroupSettings, reading: Reading, now: Now, out: Outbox) -> Self:
        """The same group under the new protocol. Raises ApiError if it cannot be."""
        members = _readable(old)
        if members is None or (members and settings.consumer_migration not in UPGRADES):
            raise ApiError(ErrorCode.group_id_not_found, f"Group {old.group} is not a consumer group.")
        if len(members) >= settings.consumer_max_size:
            raise ApiError(ErrorCode.group_max_size_reached, "The group is full.")
        old.dismiss(out)
        if old.durable is not None:
            out.records.append(encode(GroupKey(old.group), None))
        self = cls(old.group, settings, reading)
        taken: set[TopicPartition] = set()
        assigned = {m.member_id: self._claim(assignment, taken) for m, _, assignment in members}
        for member, said, _ in members:
            # One that waits for its next assignment may still hold what it says that it owns.
            held = assigned[member.member_id] | self._claim(said.owned, taken)
            facts = MemberFacts(
                member.instance_id,
                said.rack_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                said.topics,
                classic=ClassicFacts(member.session_timeout_ms, member.protocols),
            )
            self._write(ConsumerMemberKey(old.group, member.member_id), facts, now, out)
            self._write(TargetKey(old.group, member.member_id), Target(grouped(held)), now, out)
            stand = Stand(old.generation, old.generation, assigned=held)
            self._write_stand(member.member_id, stand, now, out)
        topics = digest(self.subscribed, reading.topics)
        epochs = Epochs(old.generation, old.generation, topics, now.wall_ms)
        self._write(ConsumerGroupKey(old.group), epochs, now, out)
        return self

    def _claim(self, partitions: Named, taken: set[TopicPartition]) -> Partitions:
        claimed = _known(partitions, self._reading.topics) - taken
        taken |= claimed
        return claimed

    # -- from new to classic -------------------------------------------------------------------------------------

    def downgrade(self, gone: Iterable[str], now: Now, out: Outbox) -> ClassicGroup:
        """The same group under the classic protocol, without the members `gone`; those who stay must join again."""
        without = frozenset(gone)
        roster = Roster()
        for member_id, facts in self.members.items():
            if member_id not in without and facts.classic is not None:
                roster.add(self._as_classic(member_id, facts, facts.classic))
        protocol = roster.elect() if len(roster) else None
        record = GroupMetadata(
            CONSUMER,
            self.epochs.group_epoch,
            protocol,
            roster.leader,
            now.wall_ms,
            tuple(
                MemberRecord(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.session_timeout_ms,
                    m.rebalance_timeout_ms,
                    m.metadata(protocol),
                    m.assignment,
                )
                for m in roster
            ),
        )
        self.erase(now, out)
        out.records.append(encode(GroupKey(self.group), record))
        self.successor = ClassicGroup.load(self.group, record, self._settings, now)
        if len(roster):
            self.successor.rebalance(now, out)
        return self.successor

    def _as_classic(self, member_id: str, facts: MemberFacts, classic: ClassicFacts) -> Member:
        return Member(
            member_id,
            facts.instance_id,
            facts.client_id,
            facts.client_host,
            classic.session_timeout_ms,
            facts.rebalance_timeout_ms,
            classic.protocols,
            self._assignment(member_id, classic),
        )

    def _may_downgrade(self, gone: Iterable[str]) -> bool:
        staying = [facts for member_id, facts in self.members.items() if member_id not in gone]
        return (
            self._settings.consumer_migration in DOWNGRADES
            and all(facts.classic is not None for facts in staying)
            and len(staying) <= self._settings.max_size
        )

    def _remove(self, gone: list[str], now: Now, out: Outbox) -> None:
        if len(gone) < len(self.members) and self._may_downgrade(gone):
            self.downgrade(gone, now, out)
        else:
            super()._remove(gone, now, out)

    # -- classic members: join -----------------------------------------------------------------------------------

    def join(self, command: Join, now: Now, out: Outbox) -> None:
        try:
            answer = self._join(command, now, out)
        except ApiError as refused:
            full = refused.code is ErrorCode.group_max_size_reached
            answer = JoinAnswer(error=refused.code, member_id="" if full else command.member_id)
        if answer is not None:
            out.answer(command.token, answer)

    def _join(self, command: Join, now: Now, out: Outbox) -> JoinAnswer | None:
        """Raises ApiError. No answer: the group that it has become will answer."""
        subscription = self._check_protocols(command)
        member_id = command.member_id or command.new_id
        if not command.member_id and command.instance_id is None and command.must_know_id:
            self._refuse_if_full()
            return JoinAnswer(error=ErrorCode.member_id_required, member_id=member_id)
        holder = None if command.instance_id is None else self._instances.get(command.instance_id)
        if command.member_id and command.instance_id is not None:
            self._check_instance(command.instance_id, member_id)
        elif holder is not None:
            if self.members[holder].classic is None and self._may_downgrade([holder]):
                self.downgrade([holder], now, out).join(command, now, out)
                return None
            self._replace(holder, member_id, now, out)
        elif member_id not in self.members:
            self._refuse_if_full()
        facts = MemberFacts(
            command.instance_id,
            subscription.rack_id,
            command.client_id,
            command.client_host,
            command.rebalance_timeout_ms,
            subscription.topics,
            classic=ClassicFacts(command.session_timeout_ms, command.protocols),
        )
        owned = _known(subscription.owned, self._reading.topics)
        self._follow(member_id, facts, owned, now, out, is_final=True)
        self._joins.pop(member_id, None)
        self._sessions[member_id] = self._at(now.ms + command.session_timeout_ms)
        self._syncs[member_id] = self._at(now.ms + command.rebalance_timeout_ms)
        return JoinAnswer(
            member_id=member_id,
            generation=self._stand(member_id).epoch,
            protocol_type=CONSUMER,
            protocol=command.protocols[0][0],
        )

    def _check_protocols(self, command: Join) -> Subscription:
        inconsistent = ApiError(ErrorCode.inconsistent_group_protocol, "The member's protocols are not supported.")
        if command.protocol_type != CONSUMER or not command.protocols:
            raise inconsistent
        names = {name for name, _ in command.protocols}
        for member_id, facts in self.members.items():
            if facts.classic is not None and member_id != command.member_id:
                names &= {name for name, _ in facts.classic.protocols}
        subscription = subscription_of(command.protocols[0][1])
        if not names or subscription is None:
            raise inconsistent
        return subscription

    # -- classic members: sync, heartbeat, leave -----------------------------------------------------------------

    def sync(self, command: Sync, now: Now, out: Outbox) -> None:
        try:
            classic = self._check_guest(command.member_id, command.instance_id, command.generation)
            protocol = classic.protocols[0][0]
            if command.protocol_type not in (None, CONSUMER) or command.protocol not in (None, protocol):
                raise ApiError(ErrorCode.inconsistent_group_protocol)
            stand = self._stand(command.member_id)
            if self.epochs.group_epoch > stand.epoch and stand.progress is not Progress.UNREVOKED:
                self._expect_join(command.member_id, now)
                raise ApiError(ErrorCode.rebalance_in_progress)
        except ApiError as refused:
            out.answer(command.token, SyncAnswer(error=refused.code))
            return
        self._syncs.pop(command.member_id, None)
        self._sessions[command.member_id] = self._at(now.ms + classic.session_timeout_ms)
        assignment = self._assignment(command.member_id, classic)
        answer = SyncAnswer(protocol_type=CONSUMER, protocol=protocol, assignment=assignment)
        out.answer(command.token, answer)

    def heartbeat(self, command: Heartbeat, now: Now, out: Outbox) -> None:
        error = NONE
        try:
            classic = self._check_guest(command.member_id, command.instance_id, command.generation)
        except ApiError as refused:
            error = refused.code
        else:
            self._sessions[command.member_id] = self._at(now.ms + classic.session_timeout_ms)
            if self._should_join(command.member_id):
                error = ErrorCode.rebalance_in_progress
                self._expect_join(command.member_id, now)
        out.answer(command.token, Outcome(error))

    def _should_join(self, member_id: str) -> bool:
        stand = self._stand(member_id)
        if stand.epoch < self.epochs.group_epoch or stand.progress is Progress.UNREVOKED:
            return True
        missing = self.targets.get(member_id, NOTHING) - stand.assigned
        return stand.progress is Progress.UNRELEASED and not any(place in self._holders for place in missing)

    def leave(self, command: Leave, now: Now, out: Outbox) -> None:
        results: list[tuple[str, str | None, ErrorCode]] = []
        gone: dict[str, None] = {}
        for member_id, instance_id in command.members:
            error = NONE
            try:
                leaver = member_id
                if instance_id is not None:
                    leaver = member_id or self._instances.get(instance_id, "")
                    self._check_instance(instance_id, leaver)
                self._check_known(leaver)
                if self.members[leaver].classic is None or leaver in gone:
                    raise ApiError(ErrorCode.unknown_member_id)
                gone[leaver] = None
            except ApiError as refused:
                error = refused.code
            results.append((member_id, instance_id, error))
        if gone:
            self._remove(list(gone), now, out)
        out.answer(command.token, LeaveAnswer(tuple(results)))

    def _check_guest(self, member_id: str, instance_id: str | None, generation: int) -> ClassicFacts:
        """Raises ApiError unless this is a classic member in its epoch."""
        if instance_id is not None:
            self._check_instance(instance_id, member_id)
        self._check_known(member_id)
        classic = self.members[member_id].classic
        if classic is None:
            raise ApiError(ErrorCode.unknown_member_id, "The member does not use the classic protocol.")
        if generation != self._stand(member_id).epoch:
            raise ApiError(ErrorCode.illegal_generation)
        return classic

    # -- small steps ---------------------------------------------------------------------------------------------

    def _expect_join(self, member_id: str, now: Now) -> None:
        if member_id not in self._joins:
            self._joins[member_id] = self._at(now.ms + self.members[member_id].rebalance_timeout_ms)

    def _assignment(self, member_id: str, classic: ClassicFacts) -> bytes:
        subscription = subscription_of(classic.protocols[0][1])
        topics: dict[str, list[int]] = {}
        for topic_id, index in sorted(self._stand(member_id).assigned):
            if (name := self._reading.topics.name_of(topic_id)) is not None:
                topics.setdefault(name, []).append(index)
        return assignment_bytes(subscription.version if subscription is not None else 0, topics)

    def _deadlines(self) -> Iterable[dict[str, int]]:
        return self._sessions, self._revocations, self._joins, self._syncs

    def _session_timeout_ms(self, facts: MemberFacts) -> int:
        return super()._session_timeout_ms(facts) if facts.classic is None else facts.classic.session_timeout_ms


def _readable(old: ClassicGroup) -> list[tuple[Member, Subscription, Named]] | None:
    """Each member with its subscription and assignment; None if the group does not speak the consumer protocol."""
    if not len(old.roster):
        return []
    members = []
    for member in old.roster:
        metadata = member.protocols[0][1] if old.protocol is None else member.metadata(old.protocol)
        subscription, assignment = subscription_of(metadata), assignment_of(member.assignment)
        if old.protocol_type != CONSUMER or subscription is None or assignment is None:
            return None
        members.append((member, subscription, assignment))
    return members


def _known(partitions: Named, topics: Topics) -> Partitions:
    """By id; topics that are gone are left out."""
    return frozenset(
        (topic.topic_id, index)
        for name, indexes in partitions
        if (topic := topics.find(name)) is not None
        for index in indexes
    )
