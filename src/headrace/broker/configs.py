"""Configs of topics and brokers: what they are, where they come from, and how clients change them.

Rules:
- A topic's value comes from the first that has one: the topic, this broker's dynamic config, the cluster's dynamic
  default, this broker's setting, the built-in default. DescribeConfigs lists them in that order.
- Of a broker, only what gives topics their defaults can be altered while it runs; the rest is read at start-up.
- Where a topic's logs live (`headrace.storage`) is chosen when the topic is made and stays.
- A change is refused if any topic would be left with a config that contradicts itself.
- No config names a file, a class or an address to load. Unknown names are refused with INVALID_CONFIG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker import decisions
from headrace.broker.image import ConfigRecord, Image, MetadataRecord, TopicImage, apply
from headrace.core.config import BrokerConfig, ConfigType
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import topic_name_fault
from headrace.storage.topic_config import TOPIC_CONFIGS, TopicConfig, TopicConfigKey, text_of

if TYPE_CHECKING:
    from headrace.broker.controller import Controller
    from headrace.broker.settings import BrokerSettings
    from headrace.storage.settings import StorageSettings

CLUSTER = ""  # the name under which the defaults of all brokers are kept
AT_ONCE = 100  # resources that one proposal alters; others have their turns in between
REMEMBERED_CONFIGS = 1000
STORAGE = "headrace.storage"


class ResourceType(IntEnum):
    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Op(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One config as it is in effect, with everything that could have given it."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    type: ConfigType
    doc: str
    synonyms: tuple[Synonym, ...]
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class Alteration:
    """What a client wants of one resource: (name, operation, value)."""

    resource_type: int
    resource_name: str
    changes: Sequence[tuple[str, int, str | None]]


class Chosen(Protocol):
    """What was set at start-up; `headrace.settings.Settings` is one."""

    @property
    def broker(self) -> BrokerSettings: ...

    @property
    def storage(self) -> StorageSettings: ...

    def broker_configs(self) -> tuple[BrokerConfig, ...]: ...


class Configs:
    """See the module."""

    def __init__(self, controller: Controller, settings: Chosen) -> None:
        self._controller = controller
        self._node = str(settings.broker.node_id)
        self._storage = storage = settings.storage
        self._known = {config.name: config for config in settings.broker_configs()}
        self._defaults: dict[str, TopicConfigKey] = {}  # by the name of the broker config
        for key in TOPIC_CONFIGS.values():
            for name in key.synonyms[:1]:
                self._known.setdefault(name, _undeclared(name, key, storage))
                if key.name != STORAGE:
                    self._defaults[name] = key
        self._types = {name: config.type for name, config in self._known.items()}
        self._types.update((name, key.type) for name, key in self._defaults.items())
        self._remembered: dict[frozenset[tuple[str, str]], TopicConfig] = {}
        self._remembered_for: Mapping[str, Mapping[str, str]] = {}

    def unclean(self, topic: TopicImage, image: Image) -> bool:
        """Whether a replica that is not in sync may lead when nobody else can."""
        return self.topic_config(topic.configs, image).unclean_leader_election

    def synced(self, topic: TopicImage, image: Image) -> bool:
        """Whether what was acknowledged is on the disk: a restart loses nothing."""
        config = self.topic_config(topic.configs, image)
        return config.flush == "ack" and config.storage == "disk"

    def volatile(self, topic: TopicImage, image: Image) -> bool:
        """Whether it is in memory only: every restart loses everything."""
        return self.topic_config(topic.configs, image).storage == "memory"

    def min_insync(self, topic: TopicImage, image: Image) -> int:
        """How many replicas must be in sync for a write."""
        return self.topic_config(topic.configs, image).min_insync_replicas

    def topic_config(self, overrides: Mapping[str, str], image: Image) -> TopicConfig:
        """What a topic with these configs of its own goes by, on this broker. Raises ApiError(invalid_config)."""
        if self._remembered_for != image.broker_configs or len(self._remembered) > REMEMBERED_CONFIGS:
            self._remembered = {}
            self._remembered_for = image.broker_configs
        given = frozenset(overrides.items())
        config = self._remembered.get(given)
        if config is None:
            config = TopicConfig.of(overrides, self._storage, defaults=self._topic_defaults(image))
            self._remembered[given] = config
        return config

    def topic_entries(self, overrides: Mapping[str, str], image: Image) -> list[Entry]:
        """Every config of a topic."""
        config = self.topic_config(overrides, image)
        entries = []
        for name, key in TOPIC_CONFIGS.items():
            value = config.text(name)
            synonyms = [Synonym(name, value, Source.TOPIC)] if name in overrides else []
            synonyms += [synonym for other in key.synonyms[:1] for synonym in self._synonyms(other, image)]
            source = synonyms[0].source if synonyms else Source.DEFAULT
            entries.append(
                Entry(name, value, source, read_only=False, type=key.type, doc=key.doc, synonyms=tuple(synonyms))
            )
        return entries

    def describe(self, resource_type: int, resource_name: str) -> list[Entry]:
        """Every config of a resource that a client names. Raises ApiError."""
        image = self._controller.image
        match resource_type:
            case ResourceType.TOPIC:
                return self.topic_entries(_existing_topic(image, resource_name).configs, image)
            case ResourceType.BROKER if resource_name == CLUSTER:
                return [
                    self._broker_entry(name, image, only=Source.DYNAMIC_DEFAULT_BROKER)
                    for name in image.broker_configs.get(CLUSTER, {})
                    if name in self._known
                ]
            case ResourceType.BROKER:
                self._check_node(resource_name, " or empty string")
                return [self._broker_entry(name, image) for name in self._known]
            case ResourceType.BROKER_LOGGER:
                self._check_node(resource_name)
                return []
            case _:
                raise ApiError(ErrorCode.invalid_request, f"Unsupported resource type: {resource_type}")

    async def alter(
        self, alterations: Sequence[Alteration], *, replace: bool = False, validate_only: bool = False
    ) -> list[ApiError | None]:
        """Change resources, each whole or not at all; one outcome for each, in order.

        With `replace`, whatever is not named loses its value (AlterConfigs).
        """
        times = Counter((wanted.resource_type, wanted.resource_name) for wanted in alterations)
        repeated = {named for named, number in times.items() if number > 1}
        outcomes: list[ApiError | None] = []
        for at in range(0, max(1, len(alterations)), AT_ONCE):
            decided, records = self._decide_some(alterations[at : at + AT_ONCE], repeated, replace)
            try:
                await self._controller.propose([] if validate_only else records)
            except ApiError as error:
                if at == 0:
                    raise
                return outcomes + [error] * (len(alterations) - at)
            outcomes += decided
        return outcomes

    def _decide_some(
        self, alterations: Sequence[Alteration], repeated: Collection[tuple[int, str]], replace: bool
    ) -> tuple[list[ApiError | None], list[MetadataRecord]]:
        outcomes: list[ApiError | None] = []
        records: list[ConfigRecord] = []
        image, before = self._controller.proposed, 0
        for wanted in alterations:
            if wanted.resource_type != ResourceType.TOPIC or any(record.kind != "topic" for record in records[before:]):
                image, before = apply(image, records[before:]), len(records)  # topics do not depend on each other
            try:
                if (wanted.resource_type, wanted.resource_name) in repeated:
                    raise ApiError(ErrorCode.invalid_request, "Each resource must appear at most once.")
                made = self._decide(image, wanted, replace)
            except ApiError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
                records += made
        eligible = decisions.eligible_due(apply(image, records[before:]), self) if records else []
        return outcomes, [*records, *eligible]

    def _decide(self, image: Image, wanted: Alteration, replace: bool) -> list[ConfigRecord]:
        _check_changes(wanted.changes)
        match wanted.resource_type:
            case ResourceType.TOPIC:
                return self._decide_topic(image, wanted, replace)
            case ResourceType.BROKER:
                return self._decide_broker(image, wanted, replace)
            case _:
                raise ApiError(ErrorCode.invalid_request, f"Unknown resource type {wanted.resource_type}")

    def _decide_topic(self, image: Image, wanted: Alteration, replace: bool) -> list[ConfigRecord]:
        name = wanted.resource_name
        if name == "":
            raise ApiError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        _check_name(name)
        topic = image.topics.get(name)
        old = topic.configs if topic is not None else {}
        new = _changed({} if replace else old, wanted.changes, _TOPIC_TYPES, self.topic_config(old, image).text)
        config = self.topic_config(new, image)
        _existing_topic(image, name)
        if config.storage != self.topic_config(old, image).storage:
            raise ApiError(ErrorCode.invalid_config, f"{STORAGE} is chosen when a topic is created, and stays.")
        return _records("topic", name, old, new)

    def _decide_broker(self, image: Image, wanted: Alteration, replace: bool) -> list[ConfigRecord]:
        name = wanted.resource_name
        if name != CLUSTER:
            self._check_node(name)
        old = image.broker_configs.get(name, {})
        new = _changed({} if replace else old, wanted.changes, self._types, lambda key: self._value(key, image))
        unknown = [key for key in new if key not in self._known]
        if unknown:
            raise ApiError(ErrorCode.invalid_config, f"Unknown broker config name: {', '.join(unknown)}")
        fixed = [key for key in new if key not in self._defaults]
        if fixed:
            raise ApiError(
                ErrorCode.invalid_request, f"Cannot update these configs dynamically: {', '.join(sorted(fixed))}"
            )
        records = _records("broker", name, old, new)
        try:
            for key, value in new.items():
                self._defaults[key].parse(value)
            after = apply(image, records)
            self.topic_config({}, after)
            for topic in after.topics.values():
                self.topic_config(topic.configs, after)
        except ApiError as error:
            # Kafka answers INVALID_REQUEST for a broker's bad values (KAFKA-13609).
            raise ApiError(ErrorCode.invalid_request, error.message) from error
        return records

    def _topic_defaults(self, image: Image) -> dict[str, str]:
        """What this broker gives topics without a value of their own, under the topics' names."""
        found = {}
        for name, key in self._defaults.items():
            config = self._known[name]
            dynamic = next((s.value for s in self._dynamic(name, image)), None)
            if dynamic is not None:
                found[key.name] = dynamic
            elif key.setting is None and config.value is not None and not config.is_default:
                found[key.name] = config.value
        return found

    def _dynamic(self, name: str, image: Image) -> Iterator[Synonym]:
        for owner, source in ((self._node, Source.DYNAMIC_BROKER), (CLUSTER, Source.DYNAMIC_DEFAULT_BROKER)):
            value = image.broker_configs.get(owner, {}).get(name)
            if value is not None:
                yield Synonym(name, value, source)

    def _synonyms(self, name: str, image: Image) -> Iterator[Synonym]:
        """Everything that gives a broker's config a value, the strongest first."""
        yield from self._dynamic(name, image)
        config = self._known[name]
        if not config.is_default:
            yield Synonym(name, config.value, Source.STATIC_BROKER)
        if config.default is not None:
            yield Synonym(name, config.default, Source.DEFAULT)

    def _broker_entry(self, name: str, image: Image, only: Source | None = None) -> Entry:
        config = self._known[name]
        synonyms = tuple(s for s in self._synonyms(name, image) if only is None or s.source is only)
        value, source = (synonyms[0].value, synonyms[0].source) if synonyms else (config.value, Source.DEFAULT)
        return Entry(name, value, source, name not in self._defaults, self._types[name], config.doc, synonyms)

    def _check_node(self, name: str, otherwise: str = "") -> None:
        if name == self._node:
            return
        if name == "":
            raise ApiError(ErrorCode.invalid_request, "Broker id must not be empty")
        if not (name.isascii() and name.removeprefix("-").isdigit()):
            raise ApiError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name[:100]}")
        raise ApiError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {self._node}{otherwise}, but received {name[:100]}",
        )

    def _value(self, name: str, image: Image) -> str:
        return next((s.value for s in self._synonyms(name, image) if s.value is not None), "")


def _undeclared(name: str, key: TopicConfigKey, storage: StorageSettings) -> BrokerConfig:
    """A broker config that exists only as the default of a topic config."""
    value = key.default if key.setting is None else text_of(getattr(storage, key.setting))
    return BrokerConfig(name, value, key.default, is_default=value == key.default, type=key.type, doc=key.doc)


def _check_name(name: str) -> None:
    fault = topic_name_fault(name)
    if fault is not None:
        raise ApiError(ErrorCode.invalid_topic_exception, fault)


def _existing_topic(image: Image, name: str) -> TopicImage:
    _check_name(name)
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic


def _check_changes(changes: Sequence[tuple[str, int, str | None]]) -> None:
    """Refuse what makes no sense for any resource."""
    if len({name for name, _, _ in changes}) < len(changes):
        raise ApiError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    nulls = [name for name, op, value in changes if value is None and op != Op.DELETE]
    if nulls:
        raise ApiError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")
    for _, op, _ in changes:
        if not Op.SET <= op <= Op.SUBTRACT:
            raise ApiError(ErrorCode.invalid_request, f"Unknown operations type {op}")


def _changed(
    old: Mapping[str, str],
    changes: Sequence[tuple[str, int, str | None]],
    types: Mapping[str, ConfigType],
    current: Callable[[str], str],
) -> dict[str, str]:
    """`old` after `changes`. `current` tells the value in effect, which lists are added to and taken from."""
    new = dict(old)
    for name, op, value in changes:
        if op == Op.DELETE or value is None:
            new.pop(name, None)
        elif op == Op.SET:
            new[name] = value
        elif types.get(name) is not ConfigType.LIST:
            verb = Op(op).name
            raise ApiError(ErrorCode.invalid_config, f"Can't {verb} to key {name} because its type is not LIST.")
        else:
            items = [item for item in new.get(name, current(name)).split(",") if item]
            given = value.split(",")
            if op == Op.APPEND:
                items += [item for item in dict.fromkeys(given) if item not in items]
            else:
                items = [item for item in items if item not in given]
            new[name] = ",".join(items)
    return new


def _records(kind: str, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[ConfigRecord]:
    gone = [ConfigRecord(kind, name, key, None) for key in old if key not in new]
    return gone + [ConfigRecord(kind, name, key, value) for key, value in new.items() if old.get(key) != value]


_TOPIC_TYPES: Final = {key.name: key.type for key in TOPIC_CONFIGS.values()}
