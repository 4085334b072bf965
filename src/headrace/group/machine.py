"""All groups of one partition of the offsets topic, as a replicated machine.

Rules:
- `decide` and `tick` change the state at once and return a Decision: records to append and answers that may go out
  only when these records, and all records decided before, are committed. If they cannot be appended or committed,
  the driver throws the machine away and builds a new one from the log.
- `replay` of every record of the log, in order, rebuilds the durable state; so does `replay` of `snapshot`, and so does
  the log followed by any part of a snapshot. Decisions apply their offsets through the same code.
- Groups that hold nothing durable, no member and nobody's promised id are forgotten.
- A group is of the classic protocol or of the new one (KIP-848), and may change from one to the other; its offsets do
  not notice. What there is to read is in `reading`, which the driver keeps up to date.
- `due` tells when to call `tick` next. It may be early, never late.
- Pure: time and ids come in with the calls; nothing here waits, logs, or knows a file or a socket.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.core import limits
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.classic import ClassicGroup
from headrace.group.commands import (
    NONE,
    Command,
    Commit,
    ConsumerDescription,
    ConsumerHeartbeat,
    Decision,
    Delete,
    DeleteOffsets,
    Describe,
    DescribeConsumer,
    Description,
    Fetch,
    FetchAnswer,
    FetchedOffset,
    ForgetTopics,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    ListedGroup,
    ListGroups,
    Listing,
    Now,
    Outbox,
    Outcome,
    PartitionErrors,
    Sync,
    SyncAnswer,
)
from headrace.group.consumer_records import ConsumerGroupKey, ConsumerKey, ConsumerMemberKey, ConsumerValue
from headrace.group.heartbeats import JOINS, heartbeat_fault
from headrace.group.migration import MixedGroup
from headrace.group.offsets import OffsetTable, TopicPartition, expired
from headrace.group.pending import PendingOffsets, Producer
from headrace.group.rebalance import NEVER_MS, State
from headrace.group.records import GroupKey, GroupMetadata, OffsetCommit, OffsetKey, Record, decode, encode
from headrace.group.subscription import CONSUMER
from headrace.group.topics import Reading
from headrace.group.weights import RESIZING, Weights, grows

if TYPE_CHECKING:
    from headrace.group.settings import GroupSettings


class Groups:
    """See the module."""

    def __init__(self, settings: GroupSettings, now: Now) -> None:
        self.reading = Reading()
        self._settings = settings
        self._groups: dict[str, ClassicGroup | MixedGroup] = {}
        self._offsets = OffsetTable()
        self._pending = PendingOffsets()
        self._kept = tuple(prefix for prefix in settings.keep_prefixes.split(",") if prefix)
        self._wakes: list[tuple[int, str]] = []  # a heap; entries that `_wake_of` does not confirm are stale
        self._wake_of: dict[str, int] = {}
        self._next_check_ms = now.ms + settings.offsets_check_interval_ms
        self._weights = Weights()

    # -- the machine ---------------------------------------------------------------------------------------------

    def decide(self, command: Command, now: Now) -> Decision:
        out = Outbox()
        match command:
            case Join():
                self._join(command, now, out)
            case Sync():
                self._sync(command, now, out)
            case Heartbeat():
                self._heartbeat(command, now, out)
            case Leave():
                self._leave(command, now, out)
            case ConsumerHeartbeat():
                out.answer(command.token, self._beat(command, now, out))
            case Commit():
                out.answer(command.token, self._commit(command, now, out))
            case Fetch():
                out.answer(command.token, self._fetch(command))
            case Describe():
                out.answer(command.token, self._describe(command.group))
            case DescribeConsumer():
                out.answer(command.token, self._describe_consumer(command.group))
            case ListGroups():
                out.answer(command.token, Listing(tuple(map(_listed, self._groups.values()))))
            case Delete():
                out.answer(command.token, Outcome(self._delete(command.group, now, out)))
            case DeleteOffsets():
                out.answer(command.token, self._delete_offsets(command, out))
            case ForgetTopics():
                self._forget_topics(command.topics, out)
                out.answer(command.token, Outcome())
        if not isinstance(command, ListGroups | ForgetTopics):
            self._settle(command.group)
            if isinstance(command, RESIZING):
                self._weigh(command.group)
        return out.decision()

    def tick(self, now: Now) -> Decision:
        """Do everything whose time has come."""
        out = Outbox()
        while self._wakes and self._wakes[0][0] <= now.ms:
            wake_ms, name = heapq.heappop(self._wakes)
            if self._wake_of.get(name) != wake_ms:
                continue
            del self._wake_of[name]
            self._groups[name].expire(now, out)
            self._settle(name)
            self._weigh(name)
        if self._next_check_ms <= now.ms:
            self._next_check_ms = now.ms + self._settings.offsets_check_interval_ms
            self._expire_offsets(now, out)
        return out.decision()

    def due(self) -> int | None:
        """The monotonic time of the next `tick`, or None if nothing is to happen."""
        while self._wakes and self._wake_of.get(self._wakes[0][1]) != self._wakes[0][0]:
            heapq.heappop(self._wakes)
        if not self._groups:
            return None
        return min(self._wakes[0][0], self._next_check_ms) if self._wakes else self._next_check_ms

    def replay(self, key: bytes, value: bytes | None, now: Now) -> None:
        """Take in one record of the log."""
        self._weights.is_stale = True
        record = decode(key, value)
        match record:
            case (OffsetKey() as name, commit):
                assert commit is None or isinstance(commit, OffsetCommit)
                self._apply_offset(name, commit, now)
            case (GroupKey(group=group), None):
                self._remove(group)
                if self._has_offsets(group):
                    self._groups[group] = ClassicGroup(group, self._settings, now.wall_ms)
            case (GroupKey(group=group), GroupMetadata() as metadata):
                self._remove(group)
                self._groups[group] = ClassicGroup.load(group, metadata, self._settings, now)
                self._settle(group)
            case (key_, value_) if not isinstance(key_, GroupKey | OffsetKey):
                assert not isinstance(value_, GroupMetadata | OffsetCommit)
                self._replay_consumer(key_, value_, now)

    def replay_pending(self, producer: Producer, key: bytes, value: bytes | None, now: Now) -> None:
        """Take in one record that belongs to a transaction: it counts when that is committed."""
        match decode(key, value):
            case (OffsetKey() as name, OffsetCommit() as commit):
                self._pending.put(name, producer, commit)
                self._open(name.group, now)

    def end_transaction(self, producer_id: int, *, commit: bool, now: Now) -> None:
        """A marker was written: what was pending takes effect, or never will."""
        for key, offset in self._pending.end(producer_id, commit=commit):
            if commit:
                self._offsets.put(key.group, (key.topic, key.partition), offset)
                self._open(key.group, now)
            self._settle(key.group)

    def pending(self, group: str) -> Iterator[tuple[Producer, list[Record]]]:
        """With `snapshot`, and after it: batches within transactions that rebuild what is pending in a group."""
        return self._pending.snapshot(group)

    def snapshot(self, groups: Iterable[str] | None = None) -> Iterator[Record]:
        """The records that rebuild the durable state (of some groups, or of all)."""
        for name in list(self._groups) if groups is None else groups:
            group = self._groups.get(name)
            if isinstance(group, MixedGroup):
                yield from group.snapshot()
            elif group is not None and group.durable is not None:
                yield encode(GroupKey(name), group.durable)
            for (topic, partition), commit in self._offsets.of(name).items():
                yield encode(OffsetKey(name, topic, partition), commit)

    # -- to be looked at -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    @property
    def weight_bytes(self) -> int:
        """About how much memory all groups take."""
        return self._weights.total(self._groups.values(), self._offsets)

    def grows(self, command: Command) -> bool:
        """Whether a command brings something new: a group, a member, an offset."""
        return grows(command, self._offsets)

    def states(self) -> Iterator[State]:
        return (group.state for group in self._groups.values())

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, partition, offset) of everything committed."""
        for name in self._offsets:
            for (topic, partition), commit in self._offsets.of(name).items():
                yield name, topic, partition, commit.offset

    # -- members -------------------------------------------------------------------------------------------------

    def _join(self, command: Join, now: Now, out: Outbox) -> None:
        settings = self._settings
        error = NONE
        if not 0 < len(command.group) <= limits.GROUP_ID_LENGTH:
            error = ErrorCode.invalid_group_id
        elif not settings.min_session_timeout_ms <= command.session_timeout_ms <= settings.max_session_timeout_ms:
            error = ErrorCode.invalid_session_timeout
        elif command.group not in self._groups and command.member_id:
            error = ErrorCode.unknown_member_id
        if error is not NONE:
            out.answer(command.token, JoinAnswer(error=error, member_id=command.member_id))
            return
        group = self._open(command.group, now)
        if isinstance(group, MixedGroup) and group.is_removable:
            group = self._groups[command.group] = group.downgrade((), now, out)
        group.join(command, now, out)

    def _sync(self, command: Sync, now: Now, out: Outbox) -> None:
        group = self._groups.get(command.group)
        if group is None:
            error = ErrorCode.unknown_member_id if command.group else ErrorCode.invalid_group_id
            out.answer(command.token, SyncAnswer(error=error))
        else:
            group.sync(command, now, out)

    def _heartbeat(self, command: Heartbeat, now: Now, out: Outbox) -> None:
        group = self._groups.get(command.group)
        if group is None:
            out.answer(
                command.token, Outcome(ErrorCode.unknown_member_id if command.group else ErrorCode.invalid_group_id)
            )
        else:
            group.heartbeat(command, now, out)

    def _leave(self, command: Leave, now: Now, out: Outbox) -> None:
        group = self._groups.get(command.group)
        if group is None:
            error = ErrorCode.unknown_member_id if command.group else ErrorCode.invalid_group_id
            out.answer(command.token, LeaveAnswer(tuple((*member, error) for member in command.members)))
        else:
            group.leave(command, now, out)

    def _beat(self, command: ConsumerHeartbeat, now: Now, out: Outbox) -> HeartbeatAnswer:
        try:
            heartbeat_fault(command, self.reading)
            return self._consumer(command, now, out).beat(command, now, out)
        except ApiError as refused:
            return HeartbeatAnswer(error=refused.code, message=str(refused))

    def _consumer(self, command: ConsumerHeartbeat, now: Now, out: Outbox) -> MixedGroup:
        """The group of the new protocol that a member means; one who joins may make it, or make it out of another."""
        name = command.group
        group = self._groups.get(name)
        if isinstance(group, MixedGroup):
            return group
        if command.member_epoch != JOINS:
            fault = f"Consumer group {name} not found." if group is None else f"Group {name} is not a consumer group."
            raise ApiError(ErrorCode.group_id_not_found, fault)
        if group is None:
            made = MixedGroup(name, self._settings, self.reading)
        else:
            made = MixedGroup.upgrade(group, self._settings, self.reading, now, out)
            self._remove(name)
        self._groups[name] = made
        return made

    def _describe(self, name: str) -> Description:
        group = self._groups.get(name)
        if isinstance(group, ClassicGroup):
            return group.describe()
        fault = f"Group {name} not found." if group is None else f"Group {name} is not a classic group."
        return Description(group=name, found=False, fault=fault, state=State.DEAD)

    def _describe_consumer(self, name: str) -> ConsumerDescription:
        group = self._groups.get(name)
        if isinstance(group, MixedGroup):
            return group.describe()
        fault = f"Group {name} not found." if group is None else f"Group {name} is not a consumer group."
        return ConsumerDescription(group=name, fault=fault)

    # -- offsets -------------------------------------------------------------------------------------------------

    def _commit(self, command: Commit, now: Now, out: Outbox) -> PartitionErrors:
        group = self._groups.get(command.group)
        if len(command.group) > limits.GROUP_ID_LENGTH:
            error = ErrorCode.invalid_group_id
        elif group is None:
            error = command.unknown_group if command.generation >= 0 else NONE
        else:
            error = group.commit_fault(command, now)
        if error is not NONE:
            return PartitionErrors(error, (error,) * len(command.offsets))
        expires_ms = None if command.retention_ms is None else now.wall_ms + command.retention_ms
        errors = []
        for item in command.offsets:
            if len(item.metadata.encode()) > self._settings.offset_metadata_bytes:
                errors.append(ErrorCode.offset_metadata_too_large)
                continue
            if isinstance(group, MixedGroup) and (error := group.offset_fault(command, item)) is not NONE:
                errors.append(error)
                continue
            key = OffsetKey(command.group, item.topic, item.partition)
            commit = OffsetCommit(item.offset, item.leader_epoch, item.metadata, now.wall_ms, expires_ms)
            out.records.append(encode(key, commit))
            if command.producer is None:
                self._apply_offset(key, commit, now)
            else:
                self._pending.put(key, command.producer, commit)
                self._open(key.group, now)
            errors.append(NONE)
        out.producer = command.producer
        return PartitionErrors(NONE, tuple(errors))

    def _fetch(self, command: Fetch) -> FetchAnswer:
        group = self._groups.get(command.group)
        if isinstance(group, MixedGroup):
            error = group.fetch_fault(command.member_id, command.member_epoch)
            if error is not NONE:
                return FetchAnswer((), error)
        offsets = self._offsets.of(command.group)
        asked: Iterable[TopicPartition] = offsets if command.partitions is None else command.partitions
        fetched = []
        for topic, partition in asked:
            commit = offsets.get((topic, partition))
            unstable = self._pending.has(OffsetKey(command.group, topic, partition))
            if commit is None:
                fetched.append(FetchedOffset(topic, partition, unstable=unstable))
            else:
                fetched.append(
                    FetchedOffset(
                        topic, partition, commit.offset, commit.leader_epoch, commit.metadata, unstable=unstable
                    )
                )
        return FetchAnswer(tuple(fetched))

    def _delete(self, name: str, now: Now, out: Outbox) -> ErrorCode:
        group = self._groups.get(name)
        if group is None:
            return ErrorCode.group_id_not_found
        if group.state is not State.EMPTY:
            return ErrorCode.non_empty_group
        for key in self._keys(name):
            self._tombstone(key, out)
        self._delete_group(group, now, out)
        return NONE

    def _delete_offsets(self, command: DeleteOffsets, out: Outbox) -> PartitionErrors:
        group = self._groups.get(command.group)
        error = NONE
        if not command.group:
            error = ErrorCode.invalid_group_id
        elif group is None:
            error = ErrorCode.group_id_not_found
        elif group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            error = ErrorCode.non_empty_group
        if error is not NONE or group is None:
            return PartitionErrors(error, (error,) * len(command.partitions))
        errors = []
        for topic, partition in command.partitions:
            if group.subscribes(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
                continue
            errors.append(NONE)
            key = OffsetKey(command.group, topic, partition)
            if (topic, partition) in self._offsets.of(command.group) or self._pending.has(key):
                self._tombstone(key, out)
        return PartitionErrors(NONE, tuple(errors))

    def _forget_topics(self, topics: frozenset[str], out: Outbox) -> None:
        for name in dict.fromkeys([*self._offsets, *self._pending.groups()]):
            for key in self._keys(name):
                if key.topic in topics:
                    self._tombstone(key, out)
            self._settle(name)

    def _expire_offsets(self, now: Now, out: Outbox) -> None:
        for name, group in list(self._groups.items()):
            if name.startswith(self._kept):
                continue
            offsets = self._offsets.of(name)
            for topic, partition in expired(group, offsets, self._settings.offsets_retention_ms, now.wall_ms):
                key = OffsetKey(name, topic, partition)
                if not self._pending.has(key):
                    self._tombstone(key, out)
            if group.is_removable and not self._has_offsets(name):
                self._delete_group(group, now, out)

    # -- small steps ---------------------------------------------------------------------------------------------

    def _apply_offset(self, key: OffsetKey, commit: OffsetCommit | None, now: Now) -> None:
        partition = (key.topic, key.partition)
        if commit is None or commit != self._offsets.of(key.group).get(partition):
            self._pending.drop(key)
        if commit is None:
            self._offsets.remove(key.group, partition)
            self._settle(key.group)
        else:
            self._offsets.put(key.group, partition, commit)
            self._open(key.group, now)

    def _tombstone(self, key: OffsetKey, out: Outbox) -> None:
        out.records.append(encode(key, None))
        self._offsets.remove(key.group, (key.topic, key.partition))
        self._pending.drop(key)

    def _keys(self, group: str) -> list[OffsetKey]:
        """Everything that is committed in a group, or pending."""
        committed = [OffsetKey(group, topic, partition) for topic, partition in self._offsets.of(group)]
        return list(dict.fromkeys([*committed, *self._pending.of(group)]))

    def _has_offsets(self, group: str) -> bool:
        return group in self._offsets or group in self._pending

    def _replay_consumer(self, key: ConsumerKey, value: ConsumerValue | None, now: Now) -> None:
        name = key.group
        group = self._groups.get(name)
        if isinstance(key, ConsumerGroupKey) and value is None:
            if isinstance(group, MixedGroup):
                self._remove(name)
                if self._has_offsets(name):
                    self._groups[name] = ClassicGroup(name, self._settings, now.wall_ms)
            return
        if not isinstance(group, MixedGroup):
            if value is None:
                return
            self._remove(name)
            group = self._groups[name] = MixedGroup(name, self._settings, self.reading)
        group.replay(key, value, now)
        if isinstance(key, ConsumerMemberKey):
            self._settle(name)

    def _delete_group(self, group: ClassicGroup | MixedGroup, now: Now, out: Outbox) -> None:
        if isinstance(group, MixedGroup):
            group.erase(now, out)
        elif group.durable is not None:
            out.records.append(encode(GroupKey(group.group), None))
        self._remove(group.group)

    def _open(self, name: str, now: Now) -> ClassicGroup | MixedGroup:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ClassicGroup(name, self._settings, now.wall_ms)
        return group

    def _remove(self, name: str) -> None:
        self._groups.pop(name, None)
        self._wake_of.pop(name, None)
        self._weights.forget(name)

    def _weigh(self, name: str) -> None:
        if (group := self._groups.get(name)) is not None:
            self._weights.weigh(group, self._offsets)

    def _settle(self, name: str) -> None:
        """After a group was touched: forget it if nothing is left of it, else see to it that it is woken in time."""
        group = self._groups.get(name)
        if group is None:
            return
        if isinstance(group, MixedGroup) and group.successor is not None:
            self._remove(name)
            group = self._groups[name] = group.successor
        if group.is_blank and not self._has_offsets(name):
            self._remove(name)
        elif group.wake_ms < self._wake_of.get(name, NEVER_MS):
            self._wake_of[name] = group.wake_ms
            heapq.heappush(self._wakes, (group.wake_ms, name))


def _listed(group: ClassicGroup | MixedGroup) -> ListedGroup:
    kind = "consumer" if isinstance(group, MixedGroup) else "classic"
    return ListedGroup(group.group, group.protocol_type or "", str(group.state), kind)
