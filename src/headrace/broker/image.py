"""The cluster's metadata as an immutable image, and the records that change it.

Rules:
- An image never changes; `apply` returns a new one.
- Every change is a record that was committed to the metadata log first. Replaying the log from nothing gives
  the same image.
- `apply` costs what the records and the touched topics cost, plus one copy of each mapping that changes: a topic of ten
  thousand partitions is built in one pass. What does not change is shared: the same topics are the same object.
- Records and images know no sockets, files or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

import msgspec

from headrace.broker.levels import ELIGIBLE_LEADERS, FIRST, LEVEL_OF, level_of
from headrace.isr.state import NEVER


class BrokerRecord(msgspec.Struct, frozen=True, tag="broker", array_like=True):
    """A node and the address that clients and other nodes reach it by.

    `epoch` counts its registrations: one per start. A fenced node leads nothing and is in no in-sync set that could do
    without it; clients do not see it. A draining node gets no new replicas and gives its leaderships away.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0
    directory_id: str = ""
    fenced: bool = False
    draining: bool = False
    start: int = 0  # of the node, as it counts them itself
    level: int = FIRST  # that its release can read


class RemoveBrokerRecord(msgspec.Struct, frozen=True, tag="remove-broker", array_like=True):
    """The node has left for good."""

    node_id: int


class TopicRecord(msgspec.Struct, frozen=True, tag="topic", array_like=True):
    name: str
    topic_id: UUID


class PartitionRecord(msgspec.Struct, frozen=True, tag="partition", array_like=True):
    """`leader` is -1 if there is none. Each new leader has a higher `leader_epoch`, each change a `partition_epoch`.

    `adding` and `removing` are replicas of a reassignment under way; those that are added are in `replicas` already.
    The last three are set in an `EligiblePartitionRecord` only.
    """

    topic: str
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def has_few_in_sync(self, least: int) -> bool:
        """Whether writes must not be acknowledged. A topic cannot want more replicas in sync than it has.

        While others are eligible the controller wants more in sync than there are, whatever a node's settings say.
        """
        return bool(self.elr) or len(self.isr) < min(least, len(self.replicas))

    @property
    def elr(self) -> tuple[int, ...]:
        return ()

    @property
    def last_known_elr(self) -> tuple[int, ...]:
        return ()

    @property
    def unclean_epoch(self) -> int:
        return NEVER


class EligiblePartitionRecord(PartitionRecord, frozen=True, tag="eligible-partition", array_like=True):
    """A partition with eligible leader replicas, an empty in-sync set, or an unclean election (see `isr/state.py`).

    A kind of its own, since an older release must not drop these: it would elect a replica that lacks records, or none.
    """

    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    unclean_epoch: int = NEVER


LEVEL_OF[EligiblePartitionRecord] = ELIGIBLE_LEADERS


class RemoveTopicRecord(msgspec.Struct, frozen=True, tag="remove-topic", array_like=True):
    name: str


class ConfigRecord(msgspec.Struct, frozen=True, tag="config", array_like=True):
    """One dynamic config; `value` None removes it. `kind`: "topic" or "broker"; the cluster default is name ""."""

    kind: str
    name: str
    key: str
    value: str | None


class ProducerIdsRecord(msgspec.Struct, frozen=True, tag="producer-ids", array_like=True):
    """Producer ids below `next_id` are handed out."""

    next_id: int


MetadataRecord = (
    BrokerRecord
    | RemoveBrokerRecord
    | TopicRecord
    | PartitionRecord
    | EligiblePartitionRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
)


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: tuple[PartitionRecord, ...] = ()
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Image:
    brokers: Mapping[int, BrokerRecord] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: MappingProxyType({}))
    topic_names: Mapping[UUID, str] = field(default_factory=lambda: MappingProxyType({}))
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    next_producer_id: int = 0
    level: int = FIRST  # that a release needs to read what this was made of

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def is_up(self, node_id: int) -> bool:
        """Whether a node is registered and heard of."""
        node = self.brokers.get(node_id)
        return node is not None and not node.fenced

    def partition(self, topic: str, index: int) -> PartitionRecord | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]


class _Draft:
    """A topic while records change it: lists and dicts now, a `TopicImage` when all records are in."""

    __slots__ = ("configs", "name", "partitions", "topic_id")

    def __init__(self, topic: TopicImage) -> None:
        self.name = topic.name
        self.topic_id = topic.topic_id
        self.partitions = list(topic.partitions)
        self.configs = dict(topic.configs)

    def put(self, record: PartitionRecord) -> None:
        count = len(self.partitions)
        assert 0 <= record.index <= count, f"gap before partition {record.index} of {record.topic}"
        if record.index == count:
            self.partitions.append(record)
        else:
            self.partitions[record.index] = record

    def finish(self) -> TopicImage:
        return TopicImage(self.name, self.topic_id, tuple(self.partitions), MappingProxyType(self.configs))


def apply(image: Image, records: Iterable[MetadataRecord]) -> Image:
    """The image after `records`. Copies each mapping, and each topic that is touched, at most once per call."""
    records = list(records)
    of_topics = any(map(_is_of_a_topic, records))
    brokers: dict[int, BrokerRecord] = dict(image.brokers)
    topics: dict[str, TopicImage] = dict(image.topics) if of_topics else {}
    names: dict[UUID, str] = dict(image.topic_names) if of_topics else {}
    broker_configs: dict[str, dict[str, str]] = {name: dict(configs) for name, configs in image.broker_configs.items()}
    next_producer_id = image.next_producer_id
    drafts: dict[str, _Draft] = {}

    def draft(name: str) -> _Draft:
        found = drafts.get(name)
        if found is None:
            found = drafts[name] = _Draft(topics[name])
        return found

    for record in records:
        match record:
            case PartitionRecord():
                draft(record.topic).put(record)
            case BrokerRecord():
                brokers[record.node_id] = record
            case RemoveBrokerRecord():
                brokers.pop(record.node_id, None)
            case TopicRecord():
                assert record.name not in topics, f"topic {record.name} is created twice"
                topics[record.name] = TopicImage(record.name, record.topic_id)
                names[record.topic_id] = record.name
            case RemoveTopicRecord():
                drafts.pop(record.name, None)
                gone = topics.pop(record.name, None)
                if gone is not None:
                    del names[gone.topic_id]
            case ConfigRecord(kind="topic"):
                _set(draft(record.name).configs, record)
            case ConfigRecord():
                _set(broker_configs.setdefault(record.name, {}), record)
            case ProducerIdsRecord():
                next_producer_id = max(next_producer_id, record.next_id)
    for name, changed in drafts.items():
        topics[name] = changed.finish()
    return Image(
        MappingProxyType(brokers),
        MappingProxyType(topics) if of_topics else image.topics,
        MappingProxyType(names) if of_topics else image.topic_names,
        MappingProxyType({name: MappingProxyType(configs) for name, configs in broker_configs.items() if configs}),
        next_producer_id,
        max(image.level, level_of(records)),
    )


def _is_of_a_topic(record: MetadataRecord) -> bool:
    if isinstance(record, ConfigRecord):
        return record.kind == "topic"
    return isinstance(record, TopicRecord | PartitionRecord | RemoveTopicRecord)


def _set(configs: dict[str, str], record: ConfigRecord) -> None:
    if record.value is None:
        configs.pop(record.key, None)
    else:
        configs[record.key] = record.value


def records_of(image: Image) -> list[MetadataRecord]:
    """The records that rebuild `image` from nothing: a snapshot."""
    records: list[MetadataRecord] = list(image.brokers.values())
    for topic in image.topics.values():
        records.append(TopicRecord(topic.name, topic.topic_id))
        records.extend(topic.partitions)
        records.extend(ConfigRecord("topic", topic.name, key, value) for key, value in topic.configs.items())
    for name, configs in image.broker_configs.items():
        records.extend(ConfigRecord("broker", name, key, value) for key, value in configs.items())
    if image.next_producer_id:
        records.append(ProducerIdsRecord(image.next_producer_id))
    return records
