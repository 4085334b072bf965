"""A topic's configs under Kafka's own names: each is declared once, as a field of `TopicConfig`.

Rules:
- Types, limits and defaults are Apache Kafka 4's. Ours begin with `headrace.`.
- What comes from the wire goes through `TopicConfig.of`, which refuses with INVALID_CONFIG. No value names a file,
  a class or a URL.
- A topic's own value beats the broker's dynamic default, which beats the storage settings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

from headrace.core.config import Check, ConfigType, at_least, between, suggestion
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.units import DAY_MS, GIB, HOUR_MS, MIB, MINUTE_MS
from headrace.storage.settings import Flush, Kind, RecordValidation, StorageSettings, TimestampType

_METADATA: Final = "headrace.topic"
_LONG_MAX: Final = 2**63 - 1
_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


@dataclass(frozen=True, slots=True)
class TopicConfigKey:
    """One topic config, as DescribeConfigs shows it."""

    name: str
    attribute: str
    type: ConfigType
    default: str
    synonyms: tuple[str, ...]  # names of the broker configs that give the default, the strongest first
    doc: str
    check: Check | None = None
    choices: tuple[str, ...] = ()
    setting: str | None = None  # the field of StorageSettings that gives the default
    sensitive: bool = False

    def parse(self, text: str) -> Any:
        """The typed value. Raises ApiError(invalid_config)."""
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise self._refusal(text, f"it is not of type {self.type.name}") from None
        if self.choices:
            given = value if isinstance(value, tuple) else (value,)
            if not set(given) <= set(self.choices) or len(set(given)) < len(given):
                raise self._refusal(text, f"choose from {', '.join(self.choices)}")
        fault = self.check(value) if self.check is not None else None
        if fault is not None:
            raise self._refusal(text, f"it {fault}")
        return value

    def _refusal(self, text: str, why: str) -> ApiError:
        return ApiError(ErrorCode.invalid_config, f"Invalid value {text!r} for {self.name}: {why}")


def _key(
    default: Any,
    name: str,
    type: ConfigType,
    *synonyms: str,
    doc: str,
    check: Check | None = None,
    choices: tuple[str, ...] = (),
    setting: str | None = None,
) -> Any:
    details = {
        "name": name,
        "type": type,
        "default": text_of(default),
        "synonyms": synonyms,
        "doc": doc,
        "check": check,
        "choices": choices,
        "setting": setting,
    }
    return dataclasses.field(default=default, metadata={_METADATA: details})


def text_of(value: Any) -> str:
    """A typed value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.lstrip("+-").isascii() or not text.lstrip("+-").isdigit():
            raise ValueError
        value = int(text[:32])
        if len(text) > 32 or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError
        return value

    return parse


def _double(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: Final[Mapping[ConfigType, Callable[[str], Any]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer(32),
    ConfigType.LONG: _integer(64),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What one topic's partitions go by."""

    cleanup_policy: tuple[str, ...] = _key(
        ("delete",),
        "cleanup.policy",
        ConfigType.LIST,
        "log.cleanup.policy",
        choices=("compact", "delete"),
        doc="What becomes of old records: delete them by time and size, keep the newest of each key, or both.",
    )
    retention_ms: int = _key(
        7 * DAY_MS,
        "retention.ms",
        ConfigType.LONG,
        "log.retention.ms",
        check=at_least(-1),
        setting="retention_ms",
        doc="Segments whose newest record is older are deleted; -1 keeps them for ever.",
    )
    retention_bytes: int = _key(
        -1,
        "retention.bytes",
        ConfigType.LONG,
        "log.retention.bytes",
        setting="retention_bytes",
        doc="The oldest segments of a partition are deleted while it is larger; -1 sets no limit.",
    )
    segment_bytes: int = _key(
        GIB,
        "segment.bytes",
        ConfigType.INT,
        "log.segment.bytes",
        check=at_least(MIB),
        setting="segment_bytes",
        doc="A segment of this size is sealed and a new one begun.",
    )
    segment_ms: int = _key(
        7 * DAY_MS,
        "segment.ms",
        ConfigType.LONG,
        "log.roll.ms",
        check=at_least(1),
        setting="segment_ms",
        doc="A segment of this age is sealed and a new one begun.",
    )
    segment_jitter_ms: int = _key(
        0,
        "segment.jitter.ms",
        ConfigType.LONG,
        "log.roll.jitter.ms",
        check=at_least(0),
        doc="Most time by which a roll is brought forward. Kept, without effect.",
    )
    segment_index_bytes: int = _key(
        10 * MIB,
        "segment.index.bytes",
        ConfigType.INT,
        "log.index.size.max.bytes",
        check=at_least(4),
        doc="Largest index of a segment. Kept, without effect: indexes grow with their segment.",
    )
    index_interval_bytes: int = _key(
        4096,
        "index.interval.bytes",
        ConfigType.INT,
        "log.index.interval.bytes",
        check=at_least(0),
        setting="index_interval_bytes",
        doc="Bytes of log for each entry of the offset and time index.",
    )
    max_message_bytes: int = _key(
        MIB + 12,
        "max.message.bytes",
        ConfigType.INT,
        "message.max.bytes",
        check=at_least(0),
        setting="max_message_bytes",
        doc="Largest record batch that is accepted.",
    )
    min_insync_replicas: int = _key(
        1,
        "min.insync.replicas",
        ConfigType.INT,
        "min.insync.replicas",
        check=at_least(1),
        doc="Replicas that must have a record before it is acknowledged to a producer with acks=all.",
    )
    compression_type: str = _key(
        "producer",
        "compression.type",
        ConfigType.STRING,
        "compression.type",
        choices=_CODECS,
        doc="The codec that batches are stored in; `producer` leaves each as its producer compressed it. A batch that "
        "opens to more than 8 MiB stays as it came.",
    )
    compression_gzip_level: int = _key(
        -1,
        "compression.gzip.level",
        ConfigType.INT,
        "compression.gzip.level",
        check=lambda level: None if level == -1 or 1 <= level <= 9 else "must be -1 or between 1 and 9",
        doc="How hard to try with compression.type=gzip; -1 is the codec's own choice.",
    )
    compression_lz4_level: int = _key(
        9,
        "compression.lz4.level",
        ConfigType.INT,
        "compression.lz4.level",
        check=between(1, 17),
        doc="How hard to try with compression.type=lz4.",
    )
    compression_zstd_level: int = _key(
        3,
        "compression.zstd.level",
        ConfigType.INT,
        "compression.zstd.level",
        check=between(-131072, 22),
        doc="How hard to try with compression.type=zstd.",
    )
    timestamp_type: TimestampType = _key(
        "CreateTime",
        "message.timestamp.type",
        ConfigType.STRING,
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
        setting="timestamp_type",
        doc="Whose time a record carries: the producer's, or the broker's at the append.",
    )
    timestamp_before_max_ms: int = _key(
        _LONG_MAX,
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        "log.message.timestamp.before.max.ms",
        check=at_least(0),
        doc="How far a producer's time may lie behind the broker's. Applies to CreateTime.",
    )
    timestamp_after_max_ms: int = _key(
        HOUR_MS,
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "log.message.timestamp.after.max.ms",
        check=at_least(0),
        doc="How far a producer's time may lie ahead of the broker's. Applies to CreateTime.",
    )
    delete_retention_ms: int = _key(
        DAY_MS,
        "delete.retention.ms",
        ConfigType.LONG,
        "log.cleaner.delete.retention.ms",
        check=at_least(0),
        doc="How long a compacted topic keeps the markers of deleted keys.",
    )
    min_compaction_lag_ms: int = _key(
        0,
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "log.cleaner.min.compaction.lag.ms",
        check=at_least(0),
        doc="Age below which a record is never compacted away.",
    )
    max_compaction_lag_ms: int = _key(
        _LONG_MAX,
        "max.compaction.lag.ms",
        ConfigType.LONG,
        "log.cleaner.max.compaction.lag.ms",
        check=at_least(1),
        doc="Age at which a record becomes due for compaction.",
    )
    min_cleanable_dirty_ratio: float = _key(
        0.5,
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "log.cleaner.min.cleanable.ratio",
        check=between(0, 1),
        doc="Share of a log that must be new since the last compaction for the next one to start.",
    )
    flush_messages: int = _key(
        _LONG_MAX,
        "flush.messages",
        ConfigType.LONG,
        "log.flush.interval.messages",
        check=at_least(1),
        doc="Records after which a sync is forced. With headrace.flush=ack every acknowledgement is synced anyhow.",
    )
    flush_ms: int = _key(
        _LONG_MAX,
        "flush.ms",
        ConfigType.LONG,
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        check=at_least(0),
        doc="Time after which a sync is forced. With headrace.flush=ack every acknowledgement is synced anyhow.",
    )
    file_delete_delay_ms: int = _key(
        MINUTE_MS,
        "file.delete.delay.ms",
        ConfigType.LONG,
        "log.segment.delete.delay.ms",
        check=at_least(0),
        doc="How long readers may go on with a segment that compaction has replaced, before its files are removed. "
        "Retention removes files at once: who reads them is told that the records are gone.",
    )
    preallocate: bool = _key(
        False,
        "preallocate",
        ConfigType.BOOLEAN,
        "log.preallocate",
        doc="Kept, without effect: segments grow as they are written.",
    )
    unclean_leader_election: bool = _key(
        False,
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "unclean.leader.election.enable",
        doc="Whether a replica that is not in sync may lead when no other is left. Records can be lost.",
    )
    storage: Kind = _key(
        "disk",
        "headrace.storage",
        ConfigType.STRING,
        "storage.kind",
        choices=("disk", "memory"),
        setting="kind",
        doc="Where the topic's logs live. Memory is lost at the end of the process.",
    )
    flush: Flush = _key(
        "ack",
        "headrace.flush",
        ConfigType.STRING,
        "storage.flush",
        choices=("ack", "interval", "os"),
        setting="flush",
        doc="When bytes are forced to the disk: before the acknowledgement, at intervals, or by the system.",
    )

    record_validation: RecordValidation = _key(
        "ends",
        "headrace.record.validation",
        ConfigType.STRING,
        "storage.record_validation",
        choices=("full", "ends", "header"),
        setting="record_validation",
        doc="What is looked at in a producer's batch besides its header and checksum: every record (`full`, as in "
        "Kafka); the first and the last one, after opening what is compressed (`ends`); or nothing (`header`). "
        "Compacted topics look at every record.",
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def longest_segment_ms(self) -> int:
        """Age at which a segment is sealed though nothing is written: a record must not wait in it too long."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def stamps_append_time(self) -> bool:
        return self.timestamp_type == "LogAppendTime"

    @classmethod
    def of(
        cls, overrides: Mapping[str, str], storage: StorageSettings, *, defaults: Mapping[str, str] | None = None
    ) -> TopicConfig:
        """The config of a topic whose own values are `overrides`.

        `defaults` are the broker's dynamic ones, under topic names. Raises ApiError(invalid_config).
        """
        values: dict[str, Any] = {
            key.attribute: getattr(storage, key.setting) for key in TOPIC_CONFIGS.values() if key.setting is not None
        }
        for name, text in (*(defaults or {}).items(), *overrides.items()):
            key = TOPIC_CONFIGS.get(name)
            if key is None:
                hint = suggestion(name, TOPIC_CONFIGS)
                raise ApiError(ErrorCode.invalid_config, f"Unknown topic config name: {name}{hint}")
            values[key.attribute] = key.parse(text)
        config = cls(**values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ApiError(
                ErrorCode.invalid_config,
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is above "
                f"max.compaction.lag.ms ({config.max_compaction_lag_ms})",
            )
        return config

    def text(self, name: str) -> str:
        """The value of the config called `name`, as Kafka writes it."""
        return text_of(getattr(self, TOPIC_CONFIGS[name].attribute))


TOPIC_CONFIGS: Final[Mapping[str, TopicConfigKey]] = MappingProxyType(
    {
        key.name: key
        for key in (
            TopicConfigKey(attribute=field.name, **cast("dict[str, Any]", field.metadata[_METADATA]))
            for field in dataclasses.fields(TopicConfig)
        )
    }
)
