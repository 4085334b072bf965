"""What is kept of one group of the new protocol (KIP-848), and how a record takes effect.

Rules:
- All that lasts is in records, and a record takes effect in one place only, `replay`: a decision writes it and replays
  it at once. So the log rebuilds exactly what was decided.
- A partition is held by one member at a time; `since` which epoch is kept with it.
- Deadlines are not in the log: they begin anew when a record is replayed.
- What is decided, and why, is in `consumer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.group.commands import Now, Outbox
from headrace.group.consumer_records import (
    ConsumerGroupKey,
    ConsumerKey,
    ConsumerMemberKey,
    ConsumerValue,
    Current,
    CurrentKey,
    Epochs,
    MemberFacts,
    Progress,
    Target,
    TargetKey,
)
from headrace.group.rebalance import NEVER_MS, State
from headrace.group.reconciliation import Stand
from headrace.group.records import Record, encode
from headrace.group.subscription import CONSUMER
from headrace.group.topics import Partitions, Reading, TopicPartition, flat, grouped

if TYPE_CHECKING:
    from headrace.group.settings import GroupSettings


class Ledger:
    """See the module."""

    protocol_type: Final = CONSUMER

    def __init__(self, group: str, settings: GroupSettings, reading: Reading) -> None:
        self.group = group
        self.epochs = Epochs()
        self.members: dict[str, MemberFacts] = {}
        self.targets: dict[str, Partitions] = {}
        self.stands: dict[str, Stand] = {}
        self.wake_ms = NEVER_MS
        self._settings = settings
        self._reading = reading
        self._is_durable = False
        self._instances: dict[str, str] = {}  # instance id -> member id
        self._holders: dict[TopicPartition, str] = {}
        self._since: dict[TopicPartition, int] = {}  # the epoch in which the holder got it
        self._checked: object = None  # the topics that the group epoch was last checked against
        self._sessions: dict[str, int] = {}  # member id -> deadline
        self._revocations: dict[str, int] = {}

    # -- what others may ask -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if not self.members:
            return State.EMPTY
        if self.epochs.group_epoch > self.epochs.assignment_epoch:
            return State.ASSIGNING
        epoch = self.epochs.assignment_epoch
        settled = all(self._stand(member_id).is_at(epoch) for member_id in self.members)
        return State.STABLE if settled else State.RECONCILING

    @property
    def is_blank(self) -> bool:
        return not self._is_durable and not self.members

    @property
    def is_removable(self) -> bool:
        return not self.members

    @property
    def changed_ms(self) -> int:
        return self.epochs.changed_ms

    @property
    def subscribed(self) -> frozenset[str]:
        """The names of all topics that members read, or would read if they were there."""
        together: set[str] = set()
        for facts in self.members.values():
            together |= self._names(facts)
        return frozenset(together)

    def subscribes(self, topic: str) -> bool:
        return any(topic in self._names(facts) for facts in self.members.values())

    def holder(self, partition: TopicPartition) -> str | None:
        return self._holders.get(partition)

    # -- time ----------------------------------------------------------------------------------------------------

    def _deadlines(self) -> Iterable[dict[str, int]]:
        return self._sessions, self._revocations

    def _session_timeout_ms(self, facts: MemberFacts) -> int:
        return self._settings.consumer_session_timeout_ms

    def _at(self, deadline_ms: int) -> int:
        self.wake_ms = min(self.wake_ms, deadline_ms)
        return deadline_ms

    # -- records -------------------------------------------------------------------------------------------------

    def replay(self, key: ConsumerKey, value: ConsumerValue | None, now: Now) -> None:
        """Let a record take effect."""
        match key, value:
            case ConsumerGroupKey(), Epochs():
                self.epochs = value
                self._is_durable = True
            case ConsumerMemberKey(member_id=member_id), (MemberFacts() | None):
                self._replay_facts(member_id, value, now)
            case TargetKey(member_id=member_id), Target():
                self.targets[member_id] = flat(value.partitions)
            case TargetKey(member_id=member_id), None:
                self.targets.pop(member_id, None)
            case CurrentKey(member_id=member_id), (Current() | None):
                self._replay_stand(member_id, value, now)

    def _replay_facts(self, member_id: str, facts: MemberFacts | None, now: Now) -> None:
        old = self.members.get(member_id)
        if old is not None and old.instance_id is not None and self._instances.get(old.instance_id) == member_id:
            del self._instances[old.instance_id]
        if facts is None:
            self.members.pop(member_id, None)
            for deadlines in self._deadlines():
                deadlines.pop(member_id, None)
            return
        self.members[member_id] = facts
        if facts.instance_id is not None:
            self._instances[facts.instance_id] = member_id
        if member_id not in self._sessions:
            self._sessions[member_id] = self._at(now.ms + self._session_timeout_ms(facts))

    def _replay_stand(self, member_id: str, current: Current | None, now: Now) -> None:
        for place in self._stand(member_id).held:
            if self._holders.get(place) == member_id:
                del self._holders[place]
                self._since.pop(place, None)
        self._revocations.pop(member_id, None)
        if current is None:
            self.stands.pop(member_id, None)
            return
        stand = Stand(
            current.epoch, current.previous_epoch, current.progress, flat(current.assigned), flat(current.revoking)
        )
        self.stands[member_id] = stand
        self._holders.update(dict.fromkeys(stand.held, member_id))
        self._since.update(zip(_in_order(current), current.since, strict=False))
        facts = self.members.get(member_id, MemberFacts())
        if stand.progress is Progress.UNREVOKED and facts.classic is None:
            self._revocations[member_id] = self._at(now.ms + facts.rebalance_timeout_ms)

    def snapshot(self) -> Iterator[Record]:
        """The records that rebuild the group."""
        if self._is_durable:
            yield encode(ConsumerGroupKey(self.group), self.epochs)
        for member_id, facts in self.members.items():
            yield encode(ConsumerMemberKey(self.group, member_id), facts)
            if member_id in self.targets:
                yield encode(TargetKey(self.group, member_id), Target(grouped(self.targets[member_id])))
            if member_id in self.stands:
                yield encode(CurrentKey(self.group, member_id), self._current(member_id, self.stands[member_id]))

    def erase(self, now: Now, out: Outbox) -> None:
        """Leave no record of the group."""
        for member_id in list(self.members):
            self._erase(member_id, now, out)
        if self._is_durable:
            out.records.append(encode(ConsumerGroupKey(self.group), None))

    def _erase(self, member_id: str, now: Now, out: Outbox) -> None:
        for key in (
            CurrentKey(self.group, member_id),
            TargetKey(self.group, member_id),
            ConsumerMemberKey(self.group, member_id),
        ):
            self._write(key, None, now, out)

    def _write(self, key: ConsumerKey, value: ConsumerValue | None, now: Now, out: Outbox) -> None:
        out.records.append(encode(key, value))
        self.replay(key, value, now)

    def _write_stand(self, member_id: str, stand: Stand, now: Now, out: Outbox) -> None:
        self._write(CurrentKey(self.group, member_id), self._current(member_id, stand), now, out)

    def _current(self, member_id: str, stand: Stand) -> Current:
        """As a record. What the member holds already is its own since then, the rest from this epoch on."""
        current = Current(
            stand.epoch, stand.previous_epoch, stand.progress, grouped(stand.assigned), grouped(stand.revoking)
        )
        held = self._stand(member_id).held
        since = (
            self._since.get(place, stand.epoch) if place in held else max(stand.epoch, 0)
            for place in _in_order(current)
        )
        return msgspec.structs.replace(current, since=tuple(since))

    def _stand(self, member_id: str) -> Stand:
        return self.stands.get(member_id, _BEGINNING)

    def _names(self, facts: MemberFacts) -> frozenset[str]:
        return facts.topics | self._reading.matching(facts.pattern) if facts.pattern else facts.topics


_BEGINNING: Final = Stand()


def _in_order(current: Current) -> Iterator[TopicPartition]:
    """All that a member holds, in the order of its record."""
    return ((topic, index) for topic, indexes in (*current.assigned, *current.revoking) for index in indexes)
