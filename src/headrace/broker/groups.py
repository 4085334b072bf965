"""The group coordinator: finds the shard that a group lives in and puts commands to it.

Rules:
- A group lives in one partition of the offsets topic, chosen by Kafka's own formula, for ever.
- Which shards are here is the business of `shards`. The topic is made when the first member or commit needs it; reading
  never makes it.
- Every method returns when its answer may go out, and raises ApiError if there can be none. Errors that are part of an
  answer are in the answer.
- What there is to read is shown to the groups whenever the image changes.
- What groups take in all is bounded; what comes on top is told to try again (COORDINATOR_NOT_AVAILABLE).
- Ids are drawn by `new_id`, which is given in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from headrace.broker.group_shard import GroupLog, GroupShard, OffsetsLog
from headrace.broker.internal_topics import OFFSETS_TOPIC
from headrace.broker.shards import Shards, partition_for
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.logs import limited
from headrace.group.commands import (
    Answer,
    Command,
    Commit,
    ConsumerDescription,
    ConsumerHeartbeat,
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
    OffsetToCommit,
    Outcome,
    PartitionErrors,
    Sync,
    SyncAnswer,
)
from headrace.group.rebalance import State
from headrace.group.topics import Grouped, Topic

if TYPE_CHECKING:
    from headrace.broker.image import Image, TopicImage
    from headrace.broker.partition import Partition
    from headrace.broker.shards import ShardedTopic
    from headrace.core.ports import Clock, Workers
    from headrace.group.settings import GroupSettings
    from headrace.group.topics import Topics

logger = logging.getLogger(__name__)

NAME_IN_ID_LENGTH: Final = 249  # of its client's name that a member's id begins with

__all__ = ["GroupCoordinator", "GroupLog", "OffsetsLog", "partition_for"]


class ImageTopics:
    """The image's topics as groups see them. Nothing is copied."""

    __slots__ = ("_names", "_topics")

    def __init__(self, topics: Mapping[str, TopicImage]) -> None:
        self._topics = topics
        self._names: dict[UUID, str] | None = None

    def find(self, name: str) -> Topic | None:
        found = self._topics.get(name)
        return None if found is None else Topic(found.topic_id, len(found.partitions))

    def name_of(self, topic_id: UUID) -> str | None:
        if self._names is None:
            self._names = {topic.topic_id: name for name, topic in self._topics.items()}
        return self._names.get(topic_id)

    def names(self) -> Iterable[str]:
        return self._topics


class GroupCoordinator:
    """See the module."""

    def __init__(
        self,
        settings: GroupSettings,
        topic: ShardedTopic,
        *,
        clock: Clock,
        workers: Workers,
        new_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._workers = workers
        self._new_id = new_id
        self._shards: Shards[GroupShard] = Shards(OFFSETS_TOPIC, topic, self._shard)
        self._shown: Topics = ImageTopics({})
        self._known: Mapping[str, TopicImage] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._tokens = count(1)
        self._stopped = False

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, known_topics: Mapping[str, TopicImage] | None = None) -> None:
        """Load what there is; returns when it is loaded, or cannot be for now.

        Offsets of topics that are not among `known_topics` are forgotten when a shard is loaded: a crash may have come
        between the deletion of a topic and that of its offsets, and a new topic of that name must not inherit them.
        """
        if known_topics is not None:
            self._known, self._shown = known_topics, ImageTopics(known_topics)
        await self._shards.start()

    async def stop(self) -> None:
        self._stopped = True
        for task in self._forgetting:
            task.cancel()
        await self._shards.stop()

    def role_changed(self, partition: Partition) -> None:
        """Partitions tell whom this node coordinates: one of their `watchers`."""
        self._shards.changed(partition)

    def changed(self, old: Image, new: Image) -> None:
        """The image moved on: groups see it, and offsets of topics that are gone are forgotten.

        To subscribe to the controller.
        """
        self._known = new.topics
        if old.topics != new.topics:
            self._shown = ImageTopics(new.topics)
            for shard in self._shards:
                shard.show(self._shown)
        gone = frozenset(
            name
            for name, topic in old.topics.items()
            if name not in new.topics or new.topics[name].topic_id != topic.topic_id
        )
        for shard in self._shards:
            self._forget(shard, gone)

    # -- members -------------------------------------------------------------------------------------------------

    async def join(
        self,
        *,
        group: str,
        member_id: str,
        protocol_type: str,
        protocols: Iterable[tuple[str, bytes]],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        instance_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        must_know_id: bool = True,
        may_skip_assignment: bool = True,
    ) -> JoinAnswer:
        command = Join(
            token=next(self._tokens),
            group=group,
            member_id=member_id,
            new_id=f"{(client_id if instance_id is None else instance_id)[:NAME_IN_ID_LENGTH]}-{self._new_id()}",
            instance_id=instance_id,
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple(protocols),
            must_know_id=must_know_id,
            may_skip_assignment=may_skip_assignment,
        )
        return cast(JoinAnswer, await self._ask(command))

    async def sync(
        self,
        *,
        group: str,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        assignments: Iterable[tuple[str, bytes]] = (),
    ) -> SyncAnswer:
        command = Sync(
            token=next(self._tokens),
            group=group,
            member_id=member_id,
            generation=generation,
            instance_id=instance_id,
            protocol_type=protocol_type,
            protocol=protocol,
            assignments=tuple(assignments),
        )
        return cast(SyncAnswer, await self._ask(command))

    async def heartbeat(
        self, *, group: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        command = Heartbeat(
            token=next(self._tokens), group=group, member_id=member_id, generation=generation, instance_id=instance_id
        )
        return cast(Outcome, await self._ask(command)).error

    async def leave(self, group: str, members: Iterable[tuple[str, str | None]]) -> LeaveAnswer:
        """`members`: (member id, instance id)."""
        return cast(LeaveAnswer, await self._ask(Leave(token=next(self._tokens), group=group, members=tuple(members))))

    async def consumer_heartbeat(
        self,
        *,
        group: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None = None,
        rack_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        rebalance_timeout_ms: int | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        assignor: str | None = None,
        owned: Grouped | None = None,
        must_bring_id: bool = True,
    ) -> HeartbeatAnswer:
        """KIP-848. None means: as before."""
        command = ConsumerHeartbeat(
            token=next(self._tokens),
            group=group,
            member_id=member_id,
            new_id=self._new_id() if not member_id else "",
            member_epoch=member_epoch,
            instance_id=instance_id,
            rack_id=rack_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=rebalance_timeout_ms,
            topics=None if topics is None else tuple(topics),
            pattern=pattern,
            assignor=assignor,
            owned=owned,
            must_bring_id=must_bring_id,
        )
        return cast(HeartbeatAnswer, await self._ask(command))

    # -- offsets -------------------------------------------------------------------------------------------------

    async def commit(
        self,
        *,
        group: str,
        offsets: Iterable[OffsetToCommit],
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        retention_ms: int | None = None,
        unknown_group: ErrorCode = ErrorCode.group_id_not_found,
        knows_epochs: bool = True,
    ) -> PartitionErrors:
        command = Commit(
            token=next(self._tokens),
            group=group,
            offsets=tuple(offsets),
            member_id=member_id,
            generation=generation,
            instance_id=instance_id,
            retention_ms=retention_ms,
            unknown_group=unknown_group,
            knows_epochs=knows_epochs,
        )
        return cast(PartitionErrors, await self._ask(command))

    async def commit_transactional(
        self,
        group: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        producer_id: int,
        producer_epoch: int,
        offsets: Iterable[OffsetToCommit],
    ) -> tuple[ErrorCode, ...]:
        """Commit within a producer's transaction: pending until that ends. An error per offset, in order.

        That the transaction includes the group's partition is for the caller to see to, right before: the offsets are
        appended before this first waits.
        """
        if not self._shards.exist():
            await self._shards.ensure()  # and what the caller knows is not true any more
            raise ApiError(ErrorCode.coordinator_load_in_progress)
        command = Commit(
            token=next(self._tokens),
            group=group,
            offsets=tuple(offsets),
            member_id=member_id,
            generation=generation,
            instance_id=instance_id,
            unknown_group=ErrorCode.illegal_generation,
            producer=(producer_id, producer_epoch),
        )
        errors = cast(PartitionErrors, await self._ask(command)).errors
        stale, old = ErrorCode.stale_member_epoch, ErrorCode.illegal_generation  # which these clients understand
        return tuple(old if error is stale else error for error in errors)

    async def fetch(
        self,
        group: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[FetchedOffset, ...]:
        """The offsets of `partitions`, in that order; of all that were committed if that is None. Raises ApiError."""
        asked = None if partitions is None else tuple(partitions)
        if not self._shards.exist():
            return tuple(FetchedOffset(topic, partition) for topic, partition in asked or ())
        command = Fetch(
            token=next(self._tokens),
            group=group,
            partitions=asked,
            member_id=member_id,
            member_epoch=member_epoch,
        )
        answer = cast(FetchAnswer, await self._ask(command))
        if answer.error is not ErrorCode.none:
            raise ApiError(answer.error)
        return answer.offsets

    async def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> PartitionErrors:
        asked = tuple(partitions)
        if not self._shards.exist():
            error = ErrorCode.group_id_not_found if group else ErrorCode.invalid_group_id
            return PartitionErrors(error, (error,) * len(asked))
        command = DeleteOffsets(token=next(self._tokens), group=group, partitions=asked)
        return cast(PartitionErrors, await self._ask(command))

    async def forget_topics(self, names: Iterable[str]) -> None:
        """The topics are deleted: so are their offsets, in every group."""
        topics = frozenset(names)
        await asyncio.gather(
            *(shard.ask(ForgetTopics(token=next(self._tokens), topics=topics)) for shard in self._shards)
        )

    # -- groups --------------------------------------------------------------------------------------------------

    async def describe(self, group: str) -> Description:
        if not self._shards.exist():
            return Description(group=group, found=False, fault=f"Group {group} not found.", state=State.DEAD)
        return cast(Description, await self._ask(Describe(token=next(self._tokens), group=group)))

    async def describe_consumer(self, group: str) -> ConsumerDescription:
        if not self._shards.exist():
            return ConsumerDescription(group=group, fault=f"Group {group} not found.")
        return cast(ConsumerDescription, await self._ask(DescribeConsumer(token=next(self._tokens), group=group)))

    async def list(self) -> list[ListedGroup]:
        return [row async for row in self.listed()]

    async def listed(self) -> AsyncIterator[ListedGroup]:
        """All groups. It may be gone through slowly: each shard is read in one go when it is reached."""
        for shard in list(self._shards):
            for row in cast(Listing, await shard.ask(ListGroups(token=next(self._tokens)))).groups:
                yield row

    async def delete(self, group: str) -> ErrorCode:
        if not self._shards.exist():
            return ErrorCode.group_id_not_found
        return cast(Outcome, await self._ask(Delete(token=next(self._tokens), group=group))).error

    # -- to be looked at -----------------------------------------------------------------------------------------

    def group_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, partition, committed offset) of everything committed.

        It may be gone through slowly: each shard is read in one go when it is reached.
        """
        for shard in list(self._shards):
            if shard.machine is not None:
                yield from list(shard.machine.committed())

    def states(self) -> dict[str, int]:
        """How many groups are in each state."""
        counts = {str(state): 0 for state in State if state is not State.DEAD}
        for shard in self._shards:
            for state in () if shard.machine is None else shard.machine.states():
                counts[state] += 1
        return counts

    @property
    def are_open(self) -> bool:
        """Whether commands are decided at once: the topic is there, and nobody waits for it."""
        return self._shards.are_open

    # -- shards --------------------------------------------------------------------------------------------------

    async def coordinator(self, group: str) -> int | None:
        """The partition in which a group lives; None if there is none, and none is needed. Raises ApiError."""
        return await self._shards.whereabouts(group)

    async def _ask(self, command: Command) -> Answer:
        await self._shards.ensure()
        assert not isinstance(command, ListGroups | ForgetTopics)
        shard = self._shards.find(command.group)
        if shard.machine is not None and shard.machine.grows(command):
            self._check_room(is_new=command.group not in shard.machine)
        return await shard.ask(command)

    def _check_room(self, *, is_new: bool) -> None:
        """Raises ApiError if there is no room for another group, member or offset; some may be there later."""
        machines = [shard.machine for shard in self._shards if shard.machine is not None]
        if is_new and sum(map(len, machines)) >= self._settings.max_groups:
            fault = f"this node has {self._settings.max_groups} groups (group.max_groups)"
        elif sum(machine.weight_bytes for machine in machines) >= self._settings.memory_bytes:
            fault = "the memory for groups is used up (group.memory_bytes)"
        else:
            return
        logger.warning("a group, a member or an offset was refused", extra=limited("groups-full", reason=fault))
        raise ApiError(ErrorCode.coordinator_not_available, fault)

    def _shard(self, log: GroupLog) -> GroupShard:
        shard = GroupShard(log, self._settings, clock=self._clock, workers=self._workers, on_loaded=self._loaded)
        shard.show(self._shown)
        return shard

    def _loaded(self, shard: GroupShard) -> None:
        if self._known is not None and shard.machine is not None:
            known = self._known
            self._forget(shard, frozenset(topic for _, topic, _, _ in shard.machine.committed() if topic not in known))

    def _forget(self, shard: GroupShard, topics: frozenset[str]) -> None:
        if topics and not self._stopped:
            task = asyncio.get_running_loop().create_task(self._forget_quietly(shard, topics))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _forget_quietly(self, shard: GroupShard, topics: frozenset[str]) -> None:
        try:
            await shard.ask(ForgetTopics(token=next(self._tokens), topics=topics))
        except ApiError:
            pass  # the log is offline or loading; whoever loads it forgets them
