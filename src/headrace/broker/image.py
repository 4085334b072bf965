"""The cluster's metadata as an immutable image, and the records that change it.

Rules:
- An image never changes; `apply` returns a new one.
- Every change is a record that was committed to the metadata log first. Replaying the log from nothing gives
  the same image.
- Records and images know no sockets, files or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from uuid import UUID

import msgspec


class BrokerRecord(msgspec.Struct, frozen=True, tag="broker", array_like=True):
    """A node and the address that clients reach it by."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class TopicRecord(msgspec.Struct, frozen=True, tag="topic", array_like=True):
    name: str
    topic_id: UUID


class PartitionRecord(msgspec.Struct, frozen=True, tag="partition", array_like=True):
    topic: str
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0


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


MetadataRecord = BrokerRecord | TopicRecord | PartitionRecord | RemoveTopicRecord | ConfigRecord | ProducerIdsRecord


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

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]


def apply(image: Image, records: Iterable[MetadataRecord]) -> Image:
    """The image after `records`. Copies each mapping at most once per call."""
    brokers: dict[int, BrokerRecord] = dict(image.brokers)
    topics: dict[str, TopicImage] = dict(image.topics)
    names: dict[UUID, str] = dict(image.topic_names)
    broker_configs: dict[str, Mapping[str, str]] = dict(image.broker_configs)
    next_producer_id = image.next_producer_id
    for record in records:
        match record:
            case BrokerRecord():
                brokers[record.node_id] = record
            case TopicRecord():
                topics[record.name] = TopicImage(record.name, record.topic_id)
                names[record.topic_id] = record.name
            case PartitionRecord():
                topic = topics[record.topic]
                kept = topic.partitions[: record.index]
                assert len(kept) == record.index, f"gap before partition {record.index} of {record.topic}"
                later = topic.partitions[record.index + 1 :]
                topics[record.topic] = replace(topic, partitions=(*kept, record, *later))
            case RemoveTopicRecord():
                gone = topics.pop(record.name, None)
                if gone is not None:
                    del names[gone.topic_id]
            case ConfigRecord(kind="topic"):
                topic = topics[record.name]
                topics[record.name] = replace(topic, configs=_with(topic.configs, record))
            case ConfigRecord():
                broker_configs[record.name] = _with(broker_configs.get(record.name, {}), record)
            case ProducerIdsRecord():
                next_producer_id = max(next_producer_id, record.next_id)
    return Image(
        MappingProxyType(brokers),
        MappingProxyType(topics),
        MappingProxyType(names),
        MappingProxyType(broker_configs),
        next_producer_id,
    )


def _with(configs: Mapping[str, str], record: ConfigRecord) -> Mapping[str, str]:
    changed = dict(configs)
    if record.value is None:
        changed.pop(record.key, None)
    else:
        changed[record.key] = record.value
    return MappingProxyType(changed)


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
