"""All groups of one partition of the offsets topic, as a replicated machine.

Rules:
- `decide` and `tick` change the state at once and return a Decision: records to append and answers that may go out
  only when these records, and all records decided before, are committed. If they cannot be appended or committed,
  the driver throws the machine away and builds a new one from the log.
- `replay` of every record of the log, in order, rebuilds the durable state; so does `replay` of `snapshot`, and so does
  the log followed by any part of a snapshot. Decisions apply their offsets through the same code.
- Groups that hold nothing durable, no member and nobody's promised id are forgotten.
- `due` tells when to call `tick` next. It may be early, never late.
- Pure: time and ids come in with the calls; nothing here waits, logs, or knows a file or a socket.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.core import limits
from headrace.core.errors import ErrorCode
from headrace.group.classic import ClassicGroup
from headrace.group.commands import (
    NONE,
    Command,
    Commit,
    Decision,
    Delete,
    DeleteOffsets,
    Describe,
    Description,
    Fetch,
    FetchAnswer,
    FetchedOffset,
    ForgetTopics,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    ListGroups,
    Listing,
    Now,
    Outbox,
    Outcome,
    PartitionErrors,
    Sync,
    SyncAnswer,
)
from headrace.group.offsets import OffsetTable, TopicPartition, expired
from headrace.group.rebalance import NEVER_MS, State
from headrace.group.records import GroupKey, GroupMetadata, OffsetCommit, OffsetKey, Record, decode, encode
from headrace.group.subscription import CONSUMER

if TYPE_CHECKING:
    from headrace.group.settings import GroupSettings


class Groups:
    """See the module."""

    def __init__(self, settings: GroupSettings, now: Now) -> None:
        self._settings = settings
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = OffsetTable()
        self._wakes: list[tuple[int, str]] = []  # a heap; entries that `_wake_of` does not confirm are stale
        self._wake_of: dict[str, int] = {}
        self._next_check_ms = now.ms + settings.offsets_check_interval_ms

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
            case Commit():
                out.answer(command.token, self._commit(command, now, out))
            case Fetch():
                out.answer(command.token, self._fetch(command))
            case Describe():
                group = self._groups.get(command.group)
                unknown = Description(group=command.group, found=False, state=State.DEAD)
                out.answer(command.token, unknown if group is None else group.describe())
            case ListGroups():
                listed = tuple((g.group, g.protocol_type or "", str(g.state)) for g in self._groups.values())
                out.answer(command.token, Listing(listed))
            case Delete():
                out.answer(command.token, Outcome(self._delete(command.group, out)))
            case DeleteOffsets():
                out.answer(command.token, self._delete_offsets(command, out))
            case ForgetTopics():
                self._forget_topics(command.topics, out)
                out.answer(command.token, Outcome())
        if not isinstance(command, ListGroups | ForgetTopics):
            self._settle(command.group)
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
        record = decode(key, value)
        match record:
            case (OffsetKey() as name, commit):
                assert commit is None or isinstance(commit, OffsetCommit)
                self._apply_offset(name, commit, now)
            case (GroupKey(group=group), None):
                self._remove(group)
                if group in self._offsets:
                    self._groups[group] = ClassicGroup(group, self._settings, now.wall_ms)
            case (GroupKey(group=group), GroupMetadata() as metadata):
                self._remove(group)
                self._groups[group] = ClassicGroup.load(group, metadata, self._settings, now)
                self._settle(group)

    def snapshot(self, groups: Iterable[str] | None = None) -> Iterator[Record]:
        """The records that rebuild the durable state (of some groups, or of all)."""
        for name in list(self._groups) if groups is None else groups:
            group = self._groups.get(name)
            if group is not None and group.durable is not None:
                yield encode(GroupKey(name), group.durable)
            for (topic, partition), commit in self._offsets.of(name).items():
                yield encode(OffsetKey(name, topic, partition), commit)

    # -- to be looked at -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self._groups)

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
        self._open(command.group, now).join(command, now, out)

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
            key = OffsetKey(command.group, item.topic, item.partition)
            commit = OffsetCommit(item.offset, item.leader_epoch, item.metadata, now.wall_ms, expires_ms)
            out.records.append(encode(key, commit))
            self._apply_offset(key, commit, now)
            errors.append(NONE)
        return PartitionErrors(NONE, tuple(errors))

    def _fetch(self, command: Fetch) -> FetchAnswer:
        offsets = self._offsets.of(command.group)
        asked: Iterable[TopicPartition] = offsets if command.partitions is None else command.partitions
        fetched = []
        for topic, partition in asked:
            commit = offsets.get((topic, partition))
            if commit is None:
                fetched.append(FetchedOffset(topic, partition))
            else:
                fetched.append(FetchedOffset(topic, partition, commit.offset, commit.leader_epoch, commit.metadata))
        return FetchAnswer(tuple(fetched))

    def _delete(self, name: str, out: Outbox) -> ErrorCode:
        group = self._groups.get(name)
        if group is None:
            return ErrorCode.group_id_not_found
        if group.state is not State.EMPTY:
            return ErrorCode.non_empty_group
        for topic, partition in list(self._offsets.of(name)):
            self._tombstone(OffsetKey(name, topic, partition), out)
        self._delete_group(group, out)
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
            if (topic, partition) in self._offsets.of(command.group):
                self._tombstone(OffsetKey(command.group, topic, partition), out)
        return PartitionErrors(NONE, tuple(errors))

    def _forget_topics(self, topics: frozenset[str], out: Outbox) -> None:
        for name in list(self._offsets):
            for topic, partition in list(self._offsets.of(name)):
                if topic in topics:
                    self._tombstone(OffsetKey(name, topic, partition), out)
            self._settle(name)

    def _expire_offsets(self, now: Now, out: Outbox) -> None:
        for name, group in list(self._groups.items()):
            offsets = self._offsets.of(name)
            for topic, partition in expired(group, offsets, self._settings.offsets_retention_ms, now.wall_ms):
                self._tombstone(OffsetKey(name, topic, partition), out)
            if group.is_removable and name not in self._offsets:
                self._delete_group(group, out)

    # -- small steps ---------------------------------------------------------------------------------------------

    def _apply_offset(self, key: OffsetKey, commit: OffsetCommit | None, now: Now) -> None:
        partition = (key.topic, key.partition)
        if commit is None:
            self._offsets.remove(key.group, partition)
            self._settle(key.group)
        else:
            self._offsets.put(key.group, partition, commit)
            self._open(key.group, now)

    def _tombstone(self, key: OffsetKey, out: Outbox) -> None:
        out.records.append(encode(key, None))
        self._offsets.remove(key.group, (key.topic, key.partition))

    def _delete_group(self, group: ClassicGroup, out: Outbox) -> None:
        if group.durable is not None:
            out.records.append(encode(GroupKey(group.group), None))
        self._remove(group.group)

    def _open(self, name: str, now: Now) -> ClassicGroup:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ClassicGroup(name, self._settings, now.wall_ms)
        return group

    def _remove(self, name: str) -> None:
        self._groups.pop(name, None)
        self._wake_of.pop(name, None)

    def _settle(self, name: str) -> None:
        """After a group was touched: forget it if nothing is left of it, else see to it that it is woken in time."""
        group = self._groups.get(name)
        if group is None:
            return
        if group.is_blank and name not in self._offsets:
            self._remove(name)
        elif group.wake_ms < self._wake_of.get(name, NEVER_MS):
            self._wake_of[name] = group.wake_ms
            heapq.heappush(self._wakes, (group.wake_ms, name))
