"""Admin: topics, configs and offsets, with plain answers in place of maps of futures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from headrace.client.connection import Connection, connection, open_client
from headrace.client.errors import ClientError, translate

Kind = Literal["topic", "broker"]
Place = tuple[str, int]  # topic and partition

_Spec: Any = OffsetSpec  # its class methods are untyped
_SPECS: Final = {"earliest": _Spec.earliest(), "latest": _Spec.latest()}
_EITHER_END: Final[tuple[Literal["earliest", "latest"], ...]] = ("earliest", "latest")


@dataclass(frozen=True, slots=True)
class Config:
    """One config of a topic or a broker. `source` in Kafka's words, lower case with dashes."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool = False
    is_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class PartitionView:
    index: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start_offset: int = -1
    end_offset: int = -1

    @property
    def offsets(self) -> int:
        """From start to end: messages, and also transaction markers and what compaction has removed."""
        return max(0, self.end_offset - self.start_offset)


@dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    partitions: tuple[PartitionView, ...]
    is_internal: bool = False
    topic_id: str = ""
    configs: tuple[Config, ...] = field(default=())

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.partitions)


class Admin:
    """See the module. Every method raises ClientError (or UnreachableError) and takes at most `timeout_s`."""

    def __init__(self, bootstrap: str | Connection | None = None) -> None:
        self.connection = connection(bootstrap)
        self.connection.reach()
        self.client = open_client(AdminClient, self.connection.config())

    # topics

    def create_topic(
        self, name: str, *, partitions: int = -1, replication_factor: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """-1 leaves a number to the broker."""
        new = NewTopic(name, partitions, replication_factor, config=dict(configs or {}))
        self.wait(self.client.create_topics([new], request_timeout=self._timeout_s)[name], f"create topic {name}")

    def delete_topic(self, name: str) -> None:
        self.wait(self.client.delete_topics([name], request_timeout=self._timeout_s)[name], f"delete topic {name}")

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        futures = self.client.create_partitions([NewPartitions(name, total)], request_timeout=self._timeout_s)
        self.wait(futures[name], f"give topic {name} {total} partitions")

    def topic_names(self, *, internal: bool = False) -> list[str]:
        return [view.name for view in self._metadata() if internal or not view.is_internal]

    def topics(self, *, internal: bool = False) -> list[TopicView]:
        """All topics with their offsets, by name; without ids and configs."""
        views = [view for view in self._metadata() if internal or not view.is_internal]
        return self._with_offsets(views)

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Partition numbers by topic. Asks for all topics, because asking for one by name could create it."""
        known = self._cluster().topics
        found = {}
        for topic in topics:
            if topic not in known:
                raise ClientError(f"topic {topic} does not exist", "UNKNOWN_TOPIC_OR_PART")
            found[topic] = sorted(known[topic].partitions)
        return found

    def describe_topics(self, names: Sequence[str], *, configs: bool = True) -> list[TopicView]:
        """Topics with everything that is known of them, in the order of `names`."""
        futures = self.client.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout_s)
        views = []
        for name in names:
            found = self.wait(futures[name], f"describe topic {name}")
            parts = tuple(
                PartitionView(
                    part.id,
                    None if part.leader is None or part.leader.id < 0 else part.leader.id,
                    tuple(node.id for node in part.replicas),
                    tuple(node.id for node in part.isr),
                )
                for part in sorted(found.partitions, key=lambda part: int(part.id))
            )
            own = tuple(self.configs("topic", name)) if configs else ()
            views.append(TopicView(name, parts, bool(found.is_internal), str(found.topic_id), own))
        return self._with_offsets(views)

    # offsets

    def offsets(
        self, places: Iterable[Place], when: Literal["earliest", "latest"] | int, *, gone_ok: bool = False
    ) -> dict[Place, int]:
        """Offsets at the start, the end, or of the first message at or after a time in ms (-1 if there is none).

        `gone_ok`: leave out partitions that do not exist (any more).
        """
        spec = OffsetSpec.for_timestamp(when) if isinstance(when, int) else _SPECS[when]
        wanted = {TopicPartition(*place): spec for place in places}
        if not wanted:
            return {}
        futures = self.client.list_offsets(wanted, request_timeout=self._timeout_s)
        found = {}
        for place, future in futures.items():
            try:
                offset = self.wait(future, f"list offsets of {place.topic}").offset
            except ClientError as error:
                if not gone_ok or error.code != "UNKNOWN_TOPIC_OR_PART":
                    raise
            else:
                found[place.topic, place.partition] = int(offset)
        return found

    # configs

    def configs(self, kind: Kind, name: str) -> list[Config]:
        """All configs of a topic or a broker (by node id), by name."""
        resource = _resource(kind, name)
        futures = self.client.describe_configs([resource], request_timeout=self._timeout_s)
        entries = self.wait(futures[resource], f"describe configs of {kind} {name}")
        return sorted((_config(entry) for entry in entries.values()), key=lambda config: config.name)

    def alter_configs(
        self, kind: Kind, name: str, *, set_to: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Change some configs and leave the others alone."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in (set_to or {}).items()
        ]
        entries += [ConfigEntry(key, "", incremental_operation=AlterConfigOpType.DELETE) for key in delete]
        resource = _resource(kind, name, entries)
        futures = self.client.incremental_alter_configs([resource], request_timeout=self._timeout_s)
        self.wait(futures[resource], f"alter configs of {kind} {name}")

    def broker_ids(self) -> list[int]:
        return sorted(self._cluster().brokers)

    # common

    def wait(self, future: Future[Any], doing: str) -> Any:
        """A future's result, with its error made ours."""
        try:
            return future.result(self._timeout_s + 1)
        except KafkaException as error:
            raise translate(error, doing) from None
        except FutureTimeoutError:
            raise ClientError(f"cannot {doing}: no answer in {self._timeout_s:g} s", "TIMED_OUT") from None

    @property
    def _timeout_s(self) -> float:
        return self.connection.timeout_s

    def _cluster(self) -> Any:
        try:
            return self.client.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            raise translate(error, f"get metadata from {self.connection.address}") from None

    def _metadata(self) -> list[TopicView]:
        return [
            TopicView(
                name,
                tuple(
                    PartitionView(
                        part.id, part.leader if part.leader >= 0 else None, tuple(part.replicas), tuple(part.isrs)
                    )
                    for _, part in sorted(topic.partitions.items())
                ),
                name.startswith("__"),
            )
            for name, topic in sorted(self._cluster().topics.items())
        ]

    def _with_offsets(self, views: list[TopicView]) -> list[TopicView]:
        places = [
            (view.name, part.index) for view in views for part in view.partitions if part.leader is not None
        ]  # a partition without a leader has no one to ask
        starts, ends = (self.offsets(places, when, gone_ok=True) for when in _EITHER_END)
        return [
            TopicView(
                view.name,
                tuple(
                    PartitionView(
                        part.index,
                        part.leader,
                        part.replicas,
                        part.isr,
                        starts.get((view.name, part.index), -1),
                        ends.get((view.name, part.index), -1),
                    )
                    for part in view.partitions
                ),
                view.is_internal,
                view.topic_id,
                view.configs,
            )
            for view in views
        ]


def _resource(kind: Kind, name: str, entries: list[ConfigEntry] | None = None) -> ConfigResource:
    restype = ConfigResource.Type.TOPIC if kind == "topic" else ConfigResource.Type.BROKER
    return ConfigResource(restype, name, incremental_configs=entries)


def _config(entry: Any) -> Config:
    try:
        source = ConfigSource(entry.source).name.lower().replace("_", "-").removesuffix("-config")
    except ValueError:
        source = "unknown"
    return Config(entry.name, entry.value, source, entry.is_default, entry.is_read_only, entry.is_sensitive)
