"""Groups: what consumer groups do, how far behind they are, and where they go on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition

from headrace.client.admin import Admin, Place
from headrace.client.connection import Connection
from headrace.client.errors import ClientError, translate

PAUSE_S = 0.05
KINDS = ("classic", "consumer")
STATES = ("stable", "empty", "preparing-rebalance", "completing-rebalance", "assigning", "reconciling", "dead")


@dataclass(frozen=True, slots=True)
class GroupRow:
    name: str
    state: str
    kind: str
    is_simple: bool


@dataclass(frozen=True, slots=True)
class MemberView:
    """`epoch`, `target` (what it is to own) and `protocol` are known in groups of the new protocol (KIP-848) only."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[Place, ...]
    epoch: int | None = None
    target: tuple[Place, ...] | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """One partition of a group: committed and end offset. `committed` is None if nothing was committed."""

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    member_id: str | None = None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The epochs are those of a group of the new protocol."""

    name: str
    state: str
    kind: str
    assignor: str
    coordinator: str
    members: tuple[MemberView, ...]
    partitions: tuple[Progress, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def lag(self) -> int:
        return sum(each.lag or 0 for each in self.partitions)


class Groups:
    """See the module. Raises ClientError."""

    def __init__(self, bootstrap: str | Connection | Admin | None = None) -> None:
        self.admin = bootstrap if isinstance(bootstrap, Admin) else Admin(bootstrap)

    def all(self, states: Iterable[str] = (), kinds: Iterable[str] = ()) -> list[GroupRow]:
        """All groups, or those in one of `states` and of one of `kinds`, by name."""
        wanted = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        listing = self.admin.wait(
            self.admin.client.list_consumer_groups(request_timeout=self._timeout_s), "list groups"
        )
        if listing.errors and not listing.valid:
            raise ClientError(f"cannot list groups: {listing.errors[0]}")
        rows = [
            GroupRow(group.group_id, _word(group, "state"), _word(group, "type"), bool(group.is_simple_consumer_group))
            for group in listing.valid
        ]
        chosen = (
            row
            for row in rows
            if (not wanted or row.state in wanted) and (not wanted_kinds or row.kind in wanted_kinds)
        )
        return sorted(chosen, key=lambda row: row.name)

    def describe(self, name: str) -> GroupView:
        """A group with its members and the progress of every partition that it committed or owns."""
        futures = self.admin.client.describe_consumer_groups([name], request_timeout=self._timeout_s)
        found = self.admin.wait(futures[name], f"describe group {name}")
        state = _word(found, "state")
        commits = self.commits(name)
        if state == "dead" and not commits:
            raise ClientError(f"group {name} does not exist", "GROUP_ID_NOT_FOUND")
        kind = _word(found, "type")
        epochs = self._epochs(name) if kind == "consumer" else None
        members = tuple(_member(member, epochs) for member in found.members)
        owners = {place: member.member_id for member in members for place in member.assignment}
        node = found.coordinator
        return GroupView(
            name,
            state,
            kind,
            str(found.partition_assignor or ""),
            f"{node.host}:{node.port}" if node is not None else "",
            members,
            self._progress(commits, owners),
            None if epochs is None else int(epochs.group_epoch),
            None if epochs is None else int(epochs.assignment_epoch),
        )

    def _epochs(self, name: str) -> Any:
        """The group as only the raw protocol shows it; None where that cannot be spoken."""
        from headrace.client import raw

        try:
            return raw.consumer_group(self.admin.connection, name)
        except ClientError:
            return None

    def commits(self, name: str, *, stable: bool = False) -> dict[Place, tuple[int, str]]:
        """Committed offset and metadata by partition.

        `stable`: if a transaction is about to change them, see first what becomes of it, if it does not take too long.
        A commit is answered before its offsets can be read.
        """
        deadline = time.monotonic() + self._timeout_s
        while stable:
            try:
                return self._commits(name, stable=True)
            except ClientError as error:
                if error.code != "UNSTABLE_OFFSET_COMMIT":
                    raise
            stable = time.monotonic() < deadline
            time.sleep(PAUSE_S)
        return self._commits(name, stable=False)

    def _commits(self, name: str, *, stable: bool) -> dict[Place, tuple[int, str]]:
        doing = f"fetch offsets of group {name}"
        futures = self.admin.client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name)], require_stable=stable, request_timeout=self._timeout_s
        )
        answer = self.admin.wait(futures[name], doing)
        for each in answer.topic_partitions:
            if stable and each.error is not None:
                raise translate(each.error, doing)
        return {
            (each.topic, each.partition): (each.offset, each.metadata or "")
            for each in answer.topic_partitions
            if each.offset >= 0
        }

    def set_offsets(self, name: str, offsets: Mapping[Place, int]) -> None:
        """Commit on behalf of a group that has no members."""
        request = ConsumerGroupTopicPartitions(
            name, [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        )
        futures = self.admin.client.alter_consumer_group_offsets([request], request_timeout=self._timeout_s)
        answer = self.admin.wait(futures[name], f"set offsets of group {name}")
        for each in answer.topic_partitions:
            if each.error is not None:
                raise ClientError(
                    f"cannot set the offset of {each.topic}-{each.partition}: {each.error.str()}", each.error.name()
                )

    def delete(self, name: str) -> None:
        futures = self.admin.client.delete_consumer_groups([name], request_timeout=self._timeout_s)
        self.admin.wait(futures[name], f"delete group {name}")

    def delete_offsets(self, name: str, places: list[Place]) -> None:
        """Forget what the group committed for `places`."""
        from headrace.client import raw

        for (topic, partition), fault in raw.delete_offsets(self.admin.connection, name, places).items():
            if fault:
                raise ClientError(f"cannot delete the offset of {topic}-{partition}: {fault}", fault)

    @property
    def _timeout_s(self) -> float:
        return self.admin.connection.timeout_s

    def _progress(self, commits: dict[Place, tuple[int, str]], owners: dict[Place, str]) -> tuple[Progress, ...]:
        places = sorted({*commits, *owners})
        existing = set(self.admin.topic_names(internal=True)) if places else set()
        ends = self.admin.offsets([place for place in places if place[0] in existing], "latest", gone_ok=True)
        return tuple(
            Progress(
                *place,
                commits[place][0] if place in commits else None,
                ends.get(place),
                owners.get(place),
                commits[place][1] if place in commits else "",
            )
            for place in places
        )


def _member(member: Any, epochs: Any = None) -> MemberView:
    known = [each for each in epochs.members if each.member_id == member.member_id] if epochs is not None else []
    target = getattr(member, "target_assignment", None)
    return MemberView(
        member.member_id,
        member.client_id,
        member.host,
        member.group_instance_id,
        _places(member.assignment),
        int(known[0].member_epoch) if known else None,
        None if target is None else _places(target),
        KINDS[known[0].member_type] if known and known[0].member_type in (0, 1) else None,
    )


def _places(assignment: Any) -> tuple[Place, ...]:
    found = assignment.topic_partitions if assignment is not None else ()
    return tuple(sorted((each.topic, each.partition) for each in found or ()))


def _word(found: Any, field: str) -> str:
    value = getattr(found, field, None)
    if value is None or value is ConsumerGroupState.UNKNOWN:
        return "unknown"
    return str(value.name).lower().replace("_", "-").replace("rebalancing", "rebalance")
