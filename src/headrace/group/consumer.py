"""One group of the new protocol (KIP-848): the broker decides who reads what, and each member follows in its own time.

Rules:
- Three epochs. The group epoch grows when members, subscriptions or topics change. The assignment epoch is the group
  epoch for which the target was made. A member's epoch is the target that it has reached.
- What is decided takes effect through records only; see `ledger`.
- A partition belongs to one member at a time, from the moment it is assigned until that member gave it up, left, or
  was too late; see `reconciliation`.
- Checks come before changes: a request that is refused has changed nothing.
- A commit may be one epoch or more behind, as long as its partition has been the member's since then (KIP-1251): the
  answer with the newer epoch may be on its way.
- A member that comes with epoch 0 begins again, whatever it was before: it has given up everything.
- Members of the classic protocol, and the ways between the protocols, are `migration`'s business.

Differs from Kafka: a static member that repeats its first request under its own id is let in (its answer was lost),
where Kafka says UNRELEASED_INSTANCE_ID; and it is let in again when the group is full. A member must confirm that it
gives up even what it had not begun to read.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import msgspec

from headrace.core import limits
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.assignors import ASSIGNORS, DEFAULT, Reader
from headrace.group.commands import (
    NONE,
    Commit,
    ConsumerDescription,
    ConsumerHeartbeat,
    DescribedConsumer,
    HeartbeatAnswer,
    Now,
    OffsetToCommit,
    Outbox,
)
from headrace.group.consumer_records import (
    ConsumerGroupKey,
    ConsumerMemberKey,
    Epochs,
    MemberFacts,
    Progress,
    Target,
    TargetKey,
)
from headrace.group.heartbeats import JOINS, LEAVES_FOR_NOW
from headrace.group.ledger import Ledger
from headrace.group.rebalance import NEVER_MS
from headrace.group.reconciliation import Stand, advance
from headrace.group.topics import NOTHING, Partitions, digest, flat, grouped


class ConsumerGroup(Ledger):
    """See the module."""

    # -- what others may ask -------------------------------------------------------------------------------------

    def describe(self) -> ConsumerDescription:
        return ConsumerDescription(
            group=self.group,
            state=self.state,
            group_epoch=self.epochs.group_epoch,
            assignment_epoch=self.epochs.assignment_epoch,
            assignor=self._assignor(),
            members=tuple(
                DescribedConsumer(
                    member_id=member_id,
                    facts=facts,
                    epoch=self._stand(member_id).epoch,
                    assigned=grouped(self._stand(member_id).assigned),
                    target=grouped(self.targets.get(member_id, NOTHING)),
                )
                for member_id, facts in self.members.items()
            ),
        )

    def commit_fault(self, command: Commit, now: Now) -> ErrorCode:
        """Why this member may not commit now."""
        if command.generation < 0 and not self.members:
            return NONE
        if command.producer is not None and command.generation < 0 and not command.member_id:
            return NONE  # older transactional producers do not say for whom they commit
        facts = self.members.get(command.member_id)
        if facts is not None and facts.classic is None and not command.knows_epochs:
            return ErrorCode.unsupported_version
        if facts is not None and 0 <= command.generation < self._stand(command.member_id).epoch:
            return NONE  # it depends on the partition
        return self.epoch_fault(command.member_id, command.generation)

    def offset_fault(self, command: Commit, item: OffsetToCommit) -> ErrorCode:
        """Why this member may not commit this partition; to be asked if `commit_fault` has nothing against it."""
        facts, epoch = self.members.get(command.member_id), command.generation
        if facts is None or epoch == self._stand(command.member_id).epoch:
            return NONE
        topic = self._reading.topics.find(item.topic)
        place = None if topic is None else (topic.topic_id, item.partition)
        if (
            place is not None
            and self._holders.get(place) == command.member_id
            and self._since.get(place, epoch + 1) <= epoch
        ):
            return NONE
        return self.epoch_fault(command.member_id, epoch)

    def fetch_fault(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Why this member may not see the offsets now; whoever does not pose as a member may."""
        return NONE if member_id is None and epoch < 0 else self.epoch_fault(member_id or "", epoch)

    def epoch_fault(self, member_id: str, epoch: int) -> ErrorCode:
        facts = self.members.get(member_id)
        if facts is None:
            return ErrorCode.unknown_member_id
        if epoch == self._stand(member_id).epoch:
            return NONE
        return ErrorCode.stale_member_epoch if facts.classic is None else ErrorCode.illegal_generation

    # -- heartbeats ----------------------------------------------------------------------------------------------

    def beat(self, command: ConsumerHeartbeat, now: Now, out: Outbox) -> HeartbeatAnswer:
        """Raises ApiError."""
        if command.member_epoch < JOINS:
            return self._depart(command, now, out)
        member_id = command.member_id or command.new_id
        predecessor = self._admit(command, member_id)
        if predecessor is not None:
            self._replace(predecessor, member_id, now, out)
        before = self._stand(member_id)
        facts = self._facts(command, self.members.get(member_id, MemberFacts()))
        owned = None if command.owned is None else flat(command.owned)
        self._follow(member_id, facts, owned, now, out, is_final=command.member_epoch == JOINS)
        self._sessions[member_id] = self._at(now.ms + self._settings.consumer_session_timeout_ms)
        stand = self._stand(member_id)
        everything = command.rebalance_timeout_ms is not None and owned is not None
        is_full = command.member_epoch == JOINS or (
            everything and (command.topics is not None or command.pattern is not None)
        )
        return HeartbeatAnswer(
            member_id=member_id,
            member_epoch=stand.epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms,
            assignment=grouped(stand.assigned) if is_full or stand.assigned != before.assigned else None,
        )

    def _admit(self, command: ConsumerHeartbeat, member_id: str) -> str | None:
        """Let the member in, or raise ApiError. Returns whose place it takes, if it takes one."""
        joins = command.member_epoch == JOINS
        instance_id = command.instance_id
        holder = None if instance_id is None else self._instances.get(instance_id)
        if joins:
            if holder is None and member_id not in self.members:
                self._refuse_if_full()
            elif holder is not None and self._stand(holder).epoch == LEAVES_FOR_NOW:
                return holder
            elif holder is not None and holder != member_id:
                if self.members[holder].classic is not None:
                    return holder
                raise ApiError(
                    ErrorCode.unreleased_instance_id,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {holder} member.",
                )
            return None
        if instance_id is not None:
            self._check_instance(instance_id, member_id)
        self._check_known(member_id)
        self._check_epoch(command, self._stand(member_id))
        return None

    def _check_instance(self, instance_id: str, member_id: str) -> None:
        holder = self._instances.get(instance_id)
        if holder is None:
            raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if not member_id:  # who has lost its id is to join again, not to end
            raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} needs its member id.")
        if holder != member_id:
            raise ApiError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
            )

    def _check_known(self, member_id: str) -> None:
        if member_id not in self.members:
            raise ApiError(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group}.")

    def _check_epoch(self, command: ConsumerHeartbeat, stand: Stand) -> None:
        epoch = command.member_epoch
        if epoch == stand.epoch:
            return
        lost = epoch < stand.epoch and epoch == stand.previous_epoch  # the answer with the new epoch
        if lost and command.owned is not None and flat(command.owned) <= stand.assigned:
            return
        kind = "greater" if epoch > stand.epoch else "smaller"
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a {kind} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({stand.epoch}). The member must abandon all its partitions and rejoin.",
        )

    def _refuse_if_full(self) -> None:
        most = min(self._settings.consumer_max_size, limits.MEMBERS_PER_GROUP)
        if len(self.members) >= most:
            raise ApiError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {most} members.",
            )

    def _facts(self, command: ConsumerHeartbeat, old: MemberFacts) -> MemberFacts:
        """What is not said stays as it was."""
        return MemberFacts(
            instance_id=old.instance_id if command.instance_id is None else command.instance_id,
            rack_id=old.rack_id if command.rack_id is None else command.rack_id,
            client_id=command.client_id,
            client_host=command.client_host,
            rebalance_timeout_ms=(
                old.rebalance_timeout_ms if command.rebalance_timeout_ms is None else command.rebalance_timeout_ms
            ),
            topics=old.topics if command.topics is None else frozenset(command.topics),
            pattern=old.pattern if command.pattern is None else command.pattern,
            assignor=old.assignor if command.assignor is None else command.assignor,
        )

    def _follow(
        self,
        member_id: str,
        facts: MemberFacts,
        owned: Partitions | None,
        now: Now,
        out: Outbox,
        *,
        is_final: bool,
    ) -> None:
        """Take in what a member says, make a new target if one is due, and lead the member towards it."""
        old = self.members.get(member_id)
        if facts != old:
            self._write(ConsumerMemberKey(self.group, member_id), facts, now, out)
        changed = old is None or (facts.topics, facts.pattern) != (old.topics, old.pattern)
        epochs = self.epochs
        if changed or self._checked is not self._reading.topics:
            topics = digest(self.subscribed, self._reading.topics)
            self._checked = self._reading.topics
            if changed or topics != epochs.topics:
                epochs = Epochs(epochs.group_epoch + 1, epochs.assignment_epoch, topics, now.wall_ms)
        if epochs.group_epoch > epochs.assignment_epoch:
            self._assign(now, out)
            epochs = msgspec.structs.replace(epochs, assignment_epoch=epochs.group_epoch)
        if epochs != self.epochs:
            self._write(ConsumerGroupKey(self.group), epochs, now, out)
        stand = self._stand(member_id)
        target = self.targets.get(member_id, NOTHING)
        following = advance(
            stand, target, epochs.assignment_epoch, owned, self._holders.__contains__, is_final=is_final
        )
        if following != stand:
            self._write_stand(member_id, following, now, out)

    def _assign(self, now: Now, out: Outbox) -> None:
        topics = self._reading.topics
        counts: dict[UUID, int] = {}
        resolved: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
        readers = {}
        for member_id, facts in self.members.items():
            subscription = (facts.topics, facts.pattern)
            if subscription not in resolved:
                found = [topic for name in self._names(facts) if (topic := topics.find(name)) is not None]
                counts.update((topic.topic_id, topic.partitions) for topic in found)
                resolved[subscription] = frozenset(topic.topic_id for topic in found)
            before = self.targets.get(member_id, NOTHING)
            readers[member_id] = Reader(resolved[subscription], before, facts.instance_id)
        for member_id, partitions in ASSIGNORS[self._assignor()](readers, counts).items():
            if member_id not in self.targets or partitions != self.targets[member_id]:
                self._write(TargetKey(self.group, member_id), Target(grouped(partitions)), now, out)

    def _assignor(self) -> str:
        """The one that most members ask for."""
        votes = Counter(facts.assignor for facts in self.members.values() if facts.assignor is not None)
        return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT)

    # -- leaving -------------------------------------------------------------------------------------------------

    def _depart(self, command: ConsumerHeartbeat, now: Now, out: Outbox) -> HeartbeatAnswer:
        member_id = command.member_id
        if command.instance_id is not None:
            self._check_instance(command.instance_id, member_id)
        self._check_known(member_id)
        if command.member_epoch == LEAVES_FOR_NOW:
            stand = self._stand(member_id)
            self._write_stand(
                member_id,
                stand._replace(epoch=LEAVES_FOR_NOW, progress=Progress.STABLE, revoking=NOTHING),
                now,
                out,
            )
        else:
            self._remove([member_id], now, out)
        return HeartbeatAnswer(member_id=member_id, member_epoch=command.member_epoch)

    def _remove(self, gone: list[str], now: Now, out: Outbox) -> None:
        for member_id in gone:
            self._erase(member_id, now, out)
        self._bump(now, out)

    def _bump(self, now: Now, out: Outbox) -> None:
        topics = digest(self.subscribed, self._reading.topics)
        epochs = Epochs(self.epochs.group_epoch + 1, self.epochs.assignment_epoch, topics, now.wall_ms)
        self._write(ConsumerGroupKey(self.group), epochs, now, out)

    def _replace(self, old_id: str, new_id: str, now: Now, out: Outbox) -> None:
        """A static member came back, maybe under a new id: it begins again with what it had."""
        facts, target, stand = self.members[old_id], self.targets.get(old_id, NOTHING), self._stand(old_id)
        if old_id != new_id:
            self._erase(old_id, now, out)
            self._write(ConsumerMemberKey(self.group, new_id), facts, now, out)
            self._write(TargetKey(self.group, new_id), Target(grouped(target)), now, out)
        stand = Stand(assigned=stand.assigned)  # it owns nothing, so nothing is left to give up
        self._write_stand(new_id, stand, now, out)

    # -- time ----------------------------------------------------------------------------------------------------

    def expire(self, now: Now, out: Outbox) -> None:
        """Do everything whose time has come."""
        late = dict.fromkeys(
            member_id
            for deadlines in self._deadlines()
            for member_id, deadline_ms in deadlines.items()
            if deadline_ms <= now.ms
        )
        if late:
            self._remove(list(late), now, out)
        self.wake_ms = min((at for deadlines in self._deadlines() for at in deadlines.values()), default=NEVER_MS)
