"""Topics are made, grown and deleted here: what a request wants, checked as Kafka checks it, becomes a proposal.

Rules:
- A decision is a plain function of the proposed image; deciding and proposing happen without awaiting in between.
- Each topic of a request has its own outcome; one that is refused does not hinder the others.
- A topic is one proposal, whole or absent. A request for many is several proposals, one after the other (`_in_parts`),
  so that others have their turns in between; if one of them fails, so does what would have come after it. No outcome
  is handed out before everything it rests on is durable.
- It knows neither versions of messages nor where partitions are kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID, uuid5

from headrace.broker.commands import Done, EnsureTopic
from headrace.broker.image import (
    ConfigRecord,
    Image,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicImage,
    TopicRecord,
)
from headrace.broker.manual_placement import check_count, check_replicas, manual_placement
from headrace.broker.placement import INTERNAL_REPLICATION_FACTOR, Placing
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import INTERNAL_TOPICS, PARTITIONS_PER_REQUEST, topic_name_fault

if TYPE_CHECKING:
    from headrace.broker.commands import Quorum
    from headrace.broker.configs import Configs
    from headrace.broker.controller import Controller
    from headrace.broker.settings import BrokerSettings

METADATA_TOPIC = "__cluster_metadata"
AT_ONCE = 250  # topics that one proposal makes
DELETED_AT_ONCE = 1000
CATCH_UP_S = 10.0  # that a node waits for a topic that was made elsewhere
Replicas = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that someone wants. -1 stands for the broker's default; assignments are (partition, replicas)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Replicas]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic that shall have `count` partitions; the new ones are placed by us unless `assignments` are given."""

    name: str
    count: int
    assignments: Sequence[Replicas] | None = None


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What became of one topic of a request: the topic as it is now (or was, if deleted), or an error."""

    name: str | None
    topic_id: UUID | None = None
    topic: TopicImage | None = None
    error: ApiError | None = None


Decided = tuple[list[TopicOutcome], list[MetadataRecord]]
Target = tuple[str | None, UUID | None]  # a topic's name, or its id


@dataclass(slots=True)
class Creation:
    """What one request creates, in several parts."""

    shrink: bool = False  # a replication factor that is left to us, to the cluster's size
    ticket: UUID | None = None
    room: int = PARTITIONS_PER_REQUEST  # partitions that it may still create
    names: dict[str, str] = field(default_factory=dict)  # that it has taken, by collision key


class Topics:
    """See the module."""

    def __init__(
        self,
        controller: Controller,
        configs: Configs,
        settings: BrokerSettings,
        new_id: Callable[[], UUID],
        quorum: Quorum | None = None,
    ) -> None:
        """`quorum`: whom to ask for topics where this node does not decide."""
        self._quorum = quorum
        self._controller = controller
        self._configs = configs
        self._settings = settings
        self._new_id = new_id

    def new_ticket(self) -> UUID:
        """For a request that may have to be repeated, so that it can be told from another."""
        return self._new_id()

    async def create(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False, ticket: UUID | None = None
    ) -> list[TopicOutcome]:
        """Create topics for a client. Outcomes come in the order of the request, one for each name.

        A topic that was created with the same ticket is this request's own: its answer was lost.
        """
        repeated = _repeated(topic.name for topic in wanted)
        outcomes = {name: _refused(name, ErrorCode.invalid_request, "Duplicate topic name.") for name in repeated}
        allowed = []
        for topic in wanted:
            if topic.name in repeated:
                continue
            try:
                _refuse_internal(topic.name, "created")
            except ApiError as error:
                outcomes[topic.name] = TopicOutcome(topic.name, error=error)
            else:
                allowed.append(topic)
        creation = Creation(ticket=ticket)

        def decide(some: Sequence[NewTopic]) -> Decided:
            decided, records = self._decide_creation(some, creation)
            return decided, [] if validate_only else records

        decided = await self._in_parts(allowed, decide, lambda topic: (topic.name, None))
        outcomes.update((outcome.name, outcome) for outcome in decided if outcome.name is not None)
        return [outcomes[name] for name in dict.fromkeys(topic.name for topic in wanted)]

    async def _in_parts(
        self,
        wanted: Sequence[T],
        decide: Callable[[Sequence[T]], Decided],
        name: Callable[[T], Target],
        at_once: int = AT_ONCE,
    ) -> list[TopicOutcome]:
        """Decide and propose some at a time. Raises ApiError if nothing was done."""
        outcomes: list[TopicOutcome] = []
        for at in range(0, max(1, len(wanted)), at_once):
            decided, records = decide(wanted[at : at + at_once])
            try:
                await self._controller.propose(records)
            except ApiError as error:
                if at == 0:
                    raise
                outcomes += [TopicOutcome(*name(each), error=error) for each in wanted[at:]]
                break
            outcomes += decided
        return outcomes

    async def ensure(self, wanted: Sequence[NewTopic]) -> list[TopicOutcome]:
        """Create those that do not exist yet, internal ones too; a topic that exists is as good as a new one.

        For auto-creation and for coordinators: a replication factor that is left to us shrinks to the cluster's size.
        """
        unique = list({topic.name: topic for topic in wanted}.values())
        if not self._controller.leads and self._quorum is not None:
            return [await self._ask_for(topic, self._quorum) for topic in unique]
        creation = Creation(shrink=True)

        def decide(some: Sequence[NewTopic]) -> Decided:
            known = self._controller.proposed.topics
            missing = [topic for topic in some if topic.name not in known]
            return self._decide_creation(missing, creation) if missing else ([], [])

        decided = await self._in_parts(unique, decide, lambda topic: (topic.name, None))
        outcomes = {outcome.name: outcome for outcome in decided}
        image = self._controller.image
        for topic in unique:
            found = image.topics.get(topic.name)
            if found is not None:
                outcomes[topic.name] = TopicOutcome(found.name, found.topic_id, found)
            elif topic.name not in outcomes:  # it was deleted while we waited
                outcomes[topic.name] = _refused(topic.name, ErrorCode.unknown_topic_or_partition)
        return [outcomes[topic.name] for topic in unique]

    async def _ask_for(self, topic: NewTopic, quorum: Quorum) -> TopicOutcome:
        """Have a topic made by the node that decides, and wait until it is known here."""
        configs = {key: value for key, value in topic.configs.items() if value is not None}
        command = EnsureTopic(topic.name, topic.partitions, topic.replication_factor, configs)
        try:
            if topic.name not in self._controller.image.topics:
                done = await quorum.ask(command)
                assert isinstance(done, Done)
                async with asyncio.timeout(CATCH_UP_S):
                    await self._controller.applied(done.index)
        except ApiError as error:
            return TopicOutcome(topic.name, error=error)
        except TimeoutError:
            return _refused(topic.name, ErrorCode.request_timed_out, "this node has not heard of the topic yet")
        found = self._controller.image.topics.get(topic.name)
        if found is None:
            return _refused(topic.name, ErrorCode.unknown_topic_or_partition)
        return TopicOutcome(found.name, found.topic_id, found)

    async def ensure_topic(self, command: EnsureTopic) -> None:
        """For another node that needs a topic. Raises ApiError."""
        await self.ensure_one(
            NewTopic(command.name, command.partitions, command.replication_factor, configs=command.configs)
        )

    async def ensure_one(self, topic: NewTopic) -> TopicImage:
        """`ensure` for one topic. Raises ApiError."""
        [outcome] = await self.ensure([topic])
        if outcome.topic is None:
            raise outcome.error or ApiError(ErrorCode.unknown_server_error)
        return outcome.topic

    async def delete(self, targets: Sequence[tuple[str | None, UUID | None]]) -> list[TopicOutcome]:
        """Delete topics, each given by name or by id. Raises ApiError(topic_deletion_disabled)."""
        if not self._settings.delete_topics:
            raise ApiError(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
        deletion = Deletion(targets)
        return await self._in_parts(
            list(dict.fromkeys(targets)),
            lambda some: deletion.decide(self._controller.proposed, some),
            lambda target: target,
            DELETED_AT_ONCE,
        )

    async def add_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """Give topics more partitions. Outcomes come in the order of the request, one for each name."""
        repeated = _repeated(topic.name for topic in wanted)
        outcomes = {name: _refused(name, ErrorCode.invalid_request, "Duplicate topic name.") for name in repeated}
        room = PARTITIONS_PER_REQUEST

        def decide(some: Sequence[NewPartitions]) -> Decided:
            nonlocal room
            decided: list[TopicOutcome] = []
            records: list[MetadataRecord] = []
            image = self._controller.proposed
            placing, left = Placing(image), self._partitions_left(image)
            for topic in some:
                try:
                    added = _added_partitions(image, topic, placing, room=room)
                    self._check_left(topic.name, len(records) + len(added), left)
                except ApiError as error:
                    decided.append(TopicOutcome(topic.name, error=error))
                else:
                    room -= len(added)
                    records.extend(added)
                    decided.append(TopicOutcome(topic.name, image.topics[topic.name].topic_id))
            return decided, [] if validate_only else records

        allowed = [topic for topic in wanted if topic.name not in repeated]
        decided = await self._in_parts(allowed, decide, lambda topic: (topic.name, None))
        outcomes.update((outcome.name, outcome) for outcome in decided if outcome.name is not None)
        return [outcomes[name] for name in dict.fromkeys(topic.name for topic in wanted)]

    def _decide_creation(self, wanted: Sequence[NewTopic], creation: Creation) -> Decided:
        """Outcomes and records for topics with distinct names, which are a part of what one request creates."""
        image = self._controller.proposed
        names = {_collision_key(name): name for name in image.topics} | creation.names
        outcomes: list[TopicOutcome] = []
        records: list[MetadataRecord] = []
        placing, left = Placing(image), self._partitions_left(image)
        for topic in wanted:
            topic_id = self._new_id() if creation.ticket is None else uuid5(creation.ticket, topic.name)
            known = image.topics.get(topic.name)
            if known is not None and known.topic_id == topic_id:
                outcomes.append(TopicOutcome(known.name, topic_id, known))
                continue
            try:
                made = self._decide_topic(image, topic, topic_id, names, placing, creation)
                self._check_left(topic.name, len(made.partitions), left)
            except ApiError as error:
                outcomes.append(TopicOutcome(topic.name, error=error))
                continue
            creation.room -= len(made.partitions)
            left -= len(made.partitions)
            names[_collision_key(made.name)] = creation.names[_collision_key(made.name)] = made.name
            outcomes.append(TopicOutcome(made.name, made.topic_id, made))
            records.append(TopicRecord(made.name, made.topic_id))
            records.extend(ConfigRecord("topic", made.name, key, value) for key, value in made.configs.items())
            records.extend(made.partitions)
        return outcomes, records

    def _partitions_left(self, image: Image) -> int:
        counted = (len(topic.partitions) for name, topic in image.topics.items() if name not in INTERNAL_TOPICS)
        return self._settings.max_partitions - sum(counted)

    def _check_left(self, name: str, wanted: int, left: int) -> None:
        if wanted > left and name not in INTERNAL_TOPICS:
            fault = f"A cluster has at most {self._settings.max_partitions} partitions (broker.max_partitions)."
            raise ApiError(ErrorCode.policy_violation, fault)

    def _decide_topic(
        self,
        image: Image,
        topic: NewTopic,
        topic_id: UUID,
        names: Mapping[str, str],
        placing: Placing,
        creation: Creation,
    ) -> TopicImage:
        """The topic as it would be. `names` are those taken, by collision key. Raises ApiError."""
        if topic.name in image.topics:
            raise ApiError(ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists.")
        fault = topic_name_fault(topic.name)
        if fault is not None:
            raise ApiError(ErrorCode.invalid_topic_exception, fault)
        other = names.get(_collision_key(topic.name))
        if other is not None:
            raise ApiError(
                ErrorCode.invalid_topic_exception, f"Topic '{topic.name}' collides with existing topic: {other}"
            )
        configs = _without_nulls(topic.configs)
        self._configs.topic_config(configs, image)
        if topic.assignments:
            placed = manual_placement(image, topic, creation.room)
        else:
            placed = self._automatic_placement(topic, placing, creation.room, shrink=creation.shrink)
        partitions = tuple(_partition(image, topic.name, index, replicas) for index, replicas in enumerate(placed))
        return TopicImage(topic.name, topic_id, partitions, configs)

    def _automatic_placement(self, topic: NewTopic, placing: Placing, room: int, *, shrink: bool) -> list[Replicas]:
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.partitions < -1 or topic.partitions == 0:
            raise ApiError(
                ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
            )
        count = self._settings.num_partitions if topic.partitions == -1 else topic.partitions
        check_count(count, count, room)
        factor = topic.replication_factor
        if factor == -1:
            factor = self._settings.default_replication_factor
            if topic.name in INTERNAL_TOPICS:
                factor = max(factor, INTERNAL_REPLICATION_FACTOR)
            if shrink:
                factor = max(1, min(factor, placing.size))
        return placing.place(topic.name, range(count), factor)


def _added_partitions(image: Image, wanted: NewPartitions, placing: Placing, *, room: int) -> list[PartitionRecord]:
    topic = image.topics.get(wanted.name)
    if topic is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    _refuse_internal(wanted.name, "grown")
    present = len(topic.partitions)
    if wanted.count == present:
        raise ApiError(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        raise ApiError(
            ErrorCode.invalid_partitions,
            f"The topic {wanted.name} currently has {present} partition(s); {wanted.count} would not be an increase.",
        )
    additional = wanted.count - present
    check_count(wanted.count, additional, room)
    first = topic.partitions[0].replicas
    placed: Sequence[Replicas]
    if wanted.assignments is None:
        placed = placing.place(wanted.name, range(present, wanted.count), len(first))
    else:
        if len(wanted.assignments) != additional:
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {additional} additional partition(s), but only "
                f"{len(wanted.assignments)} assignment(s) were specified.",
            )
        for replicas in wanted.assignments:
            check_replicas(image, replicas, len(first))
        placed = wanted.assignments
    return [_partition(image, wanted.name, present + offset, replicas) for offset, replicas in enumerate(placed)]


class Deletion:
    """What one request deletes, in several parts."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._repeated_names = _repeated(name for name, topic_id in targets if name is not None and topic_id is None)
        self._repeated_ids = _repeated(topic_id for name, topic_id in targets if name is None and topic_id is not None)
        self._gone: set[str | UUID | None] = set()

    def decide(self, image: Image, targets: Sequence[Target]) -> Decided:
        outcomes: list[TopicOutcome] = []
        records: list[MetadataRecord] = []
        for name, topic_id in targets:
            try:
                topic = self._topic(image, name, topic_id)
            except ApiError as error:
                outcomes.append(TopicOutcome(name, topic_id, error=error))
            else:
                self._gone |= {topic.name, topic.topic_id}
                outcomes.append(TopicOutcome(topic.name, topic.topic_id, topic))
                records.append(RemoveTopicRecord(topic.name))
        return outcomes, records

    def _topic(self, image: Image, name: str | None, topic_id: UUID | None) -> TopicImage:
        """Raises ApiError."""
        if name is not None and topic_id is not None:
            raise ApiError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
        if name in self._repeated_names:
            raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
        if topic_id in self._repeated_ids:
            raise ApiError(ErrorCode.invalid_request, "Duplicate topic id.")
        if name in self._gone or topic_id in self._gone:
            raise ApiError(
                ErrorCode.invalid_request, "The provided topic name maps to an ID that was already supplied."
            )
        topic = _find(image, name, topic_id)
        _refuse_internal(topic.name, "deleted")
        return topic


def _find(image: Image, name: str | None, topic_id: UUID | None) -> TopicImage:
    """The topic that a client means. Raises ApiError."""
    if name is not None:
        topic = image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
        return topic
    if topic_id is None:
        raise ApiError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    return topic


def _refuse_internal(name: str, verb: str) -> None:
    """Coordinators rest on the internal topics: no client may make, grow or delete one."""
    if name == METADATA_TOPIC:
        raise ApiError(ErrorCode.invalid_request, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.invalid_topic_exception, f"The internal topic {name} cannot be {verb} by clients.")


def _partition(image: Image, topic: str, index: int, replicas: Replicas) -> PartitionRecord:
    """A new partition: whoever is up is in sync, and the first of them leads."""
    isr = tuple(node for node in replicas if image.is_up(node))
    if not isr:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
    return PartitionRecord(topic, index, replicas, isr, leader=isr[0], leader_epoch=0)


def _without_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    nulls = [key for key, value in configs.items() if value is None]
    if nulls:
        raise ApiError(ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(nulls)}")
    return {key: value for key, value in configs.items() if value is not None}


def _collision_key(name: str) -> str:
    """Names that differ only in '.' and '_' become one name in metrics, so Kafka allows only one of them."""
    return name.replace(".", "_")


def _repeated(items: Iterable[T]) -> set[T]:
    return {item for item, times in Counter(items).items() if times > 1}


def _refused(name: str, code: ErrorCode, message: str = "") -> TopicOutcome:
    return TopicOutcome(name, error=ApiError(code, message))
