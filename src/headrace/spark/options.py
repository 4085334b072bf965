"""The options of the source: one table, with the names and meanings of Spark's own Kafka connector.

Rules:
- Names are case-insensitive, as everywhere in Spark. An unknown name is an error that suggests the nearest one.
- Everything is checked before anything is asked of a broker. Errors name the option and what it was.
- `kafka.*`: what this reader honours is in the table; what only a Java client has use for is accepted without
  effect; what would change the meaning of the source, or needs TLS or SASL, is refused.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.core.errors import ConfigError
from headrace.spark.option import OF_SPARK, Mode, Option, duration_ms, flag, names, one_of, read, text, whole
from headrace.spark.schema import COLUMNS

Place = tuple[str, int]  # topic and partition

EARLIEST: Final = -2
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: topics by name, by pattern, or partitions one by one."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to start or to end: one of `offset` (for all: earliest, latest), `offsets`, `time_ms`, `times_ms`."""

    offset: int | None = None
    offsets: Mapping[Place, int] | None = None
    time_ms: int | None = None
    times_ms: Mapping[Place, int] | None = None
    option: str = ""  # that said so, for messages
    latest_if_none: bool = False  # a time after the last record means "latest", not an error


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All that a reader has to know, checked."""

    bootstrap: str
    subscription: Subscription
    start: Bound
    end: Bound
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] = ()
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 900_000
    min_partitions: int | None = None
    max_records: int | None = None
    group: str = ""
    commit: bool = True
    pushdown: bool = False
    timestamp_disorder_ms: int | None = None
    metadata_ttl_ms: int = -1
    poll_timeout_ms: int = 120_000
    retries: int = 3
    retry_interval_ms: int = 10
    read_committed: bool = True
    check_crcs: bool = True
    fetch_bytes: int = 1 << 20
    fetch_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    client_id: str = "headrace-spark"
    extra: Mapping[str, str] = field(default_factory=dict)  # accepted, without effect


def _columns(value: str) -> tuple[str, ...]:
    by_lower = {name.lower(): name for name in COLUMNS}
    found = names(value)
    for name in found:
        if name.lower() not in by_lower:
            raise ValueError(f"has no column {name!r}; there are {', '.join(COLUMNS)}")
    return tuple(by_lower[name.lower()] for name in found)


def _pattern(value: str) -> str:
    try:
        re.compile(text(value))
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error})") from None
    return value.strip()


def _json(value: str) -> Any:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise ValueError("must be JSON such as " + '{"topic":{"0":23}}')
    return found


def _assigned(value: str) -> tuple[Place, ...]:
    places = []
    for topic, partitions in _json(value).items():
        if not isinstance(partitions, list) or not all(type(each) is int and each >= 0 for each in partitions):
            raise ValueError("must be JSON such as " + '{"topic":[0,1]}')
        places += [(topic, each) for each in partitions]
    if not places:
        raise ValueError("must name at least one partition")
    return tuple(dict.fromkeys(places))


def places_of(found: Any) -> dict[Place, int]:
    """`{"topic":{"0":n}}`, as offsets are written in checkpoints and options. Raises ValueError."""
    places: dict[Place, int] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            raise ValueError("must be JSON such as " + '{"topic":{"0":23}}')
        for partition, number in partitions.items():
            if not str(partition).isdigit() or type(number) is not int:
                raise ValueError(f"has no whole number for {topic}-{partition}")
            places[topic, int(partition)] = number
    return places


def _offsets(value: str) -> int | dict[Place, int]:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    try:
        places = places_of(_json(value))
    except ValueError as error:
        raise ValueError(f'must be "earliest", "latest" or JSON with offsets: it {error}') from None
    low = min(places.values(), default=0)
    if low < EARLIEST:
        raise ValueError(f"has offset {low}; -2 is earliest, -1 latest")
    return places


def _times(value: str) -> dict[Place, int]:
    places = places_of(_json(value))
    if min(places.values(), default=0) < 0:
        raise ValueError("must have times in milliseconds, from 0 on")
    return places


def _plaintext(value: str) -> str:
    if value.strip().upper() != "PLAINTEXT":
        raise ValueError("is not supported yet: this source speaks PLAINTEXT only")
    return "PLAINTEXT"


BOOTSTRAP: Final = "kafka.bootstrap.servers"
GROUP: Final = "kafka.group.id"
SECURITY: Final = "kafka.security.protocol"

OPTIONS: Final = (
    Option(BOOTSTRAP, text, "where the brokers are: host:port,..."),
    Option("subscribe", names, "topics, separated by commas"),
    Option("subscribePattern", _pattern, "a regular expression (Python's) that is found in topic names"),
    Option("assign", _assigned, 'partitions: {"topic":[0,1]}'),
    Option("startingOffsets", _offsets, "earliest, latest or JSON; default latest in streams, earliest in batches"),
    Option("startingTimestamp", whole(0), "start at this time (ms) in all partitions"),
    Option("startingOffsetsByTimestamp", _times, "start at a time (ms) per partition, as JSON"),
    Option("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "if no record is that young"),
    Option("endingOffsets", _offsets, "latest (default) or JSON", "batch"),
    Option("endingTimestamp", whole(0), "end before this time (ms) in all partitions", "batch"),
    Option("endingOffsetsByTimestamp", _times, "end before a time (ms) per partition, as JSON", "batch"),
    Option("failOnDataLoss", flag, "fail (default) or go on when wanted records are gone"),
    Option("includeHeaders", flag, "add the column headers"),
    Option("columns", _columns, "only these columns, separated by commas"),
    Option("maxOffsetsPerTrigger", whole(1), "records per micro-batch, split over partitions", "stream"),
    Option("minOffsetsPerTrigger", whole(1), "wait until so many records are there", "stream"),
    Option("maxTriggerDelay", duration_ms, "but no longer than this (default 15m)", "stream"),
    Option("minPartitions", whole(1), "split large partitions until there are about so many tasks"),
    Option("maxRecordsPerPartition", whole(1), "split partitions into tasks of at most so many records"),
    Option("groupIdPrefix", text, "start of the group's name (default spark-kafka-source)"),
    Option("commitOffsets", flag, "commit progress to the group (default true)", "stream"),
    Option("pushdown", flag, "prune by filters on partition, offset, timestamp", "batch"),
    Option("timestampDisorder", duration_ms, "promise: no record is later than this; bounds reads above", "batch"),
    Option("partition.metadata.cache.ttl.ms", whole(-1), "keep the list of partitions this long"),
    Option("kafkaConsumer.pollTimeoutMs", whole(1), "how long a task waits for data (default 120000)"),
    Option("fetchOffset.numRetries", whole(0), "how often offsets are asked for again (default 3)"),
    Option("fetchOffset.retryIntervalMs", whole(0), "and how long between (default 10)"),
    Option(GROUP, text, "the group that progress is committed to"),
    Option(SECURITY, _plaintext, "PLAINTEXT"),
    Option("kafka.isolation.level", one_of("read_committed", "read_uncommitted"), "default read_committed"),
    Option("kafka.check.crcs", flag, "check every batch (default true)"),
    Option("kafka.max.partition.fetch.bytes", whole(1), "bytes per fetch (default 1 MiB)"),
    Option("kafka.fetch.max.wait.ms", whole(0), "how long a broker may wait for data (default 500)"),
    Option("kafka.request.timeout.ms", whole(1), "how long a broker may take to answer (default 30000)"),
    Option("kafka.client.id", text, "how this reader calls itself (default headrace-spark)"),
)
BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}

# Of the Java consumer: harmless here, as there is no such consumer.
_JAVA_ONLY: Final = """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter client.dns.lookup client.rack
    connections.max.idle.ms default.api.timeout.ms enable.metrics.push exclude.internal.topics fetch.max.bytes
    fetch.min.bytes group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms
    retry.backoff.ms send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms
"""
_WITHOUT_EFFECT: Final = frozenset(f"kafka.{name}" for name in _JAVA_ONLY.split())
_REFUSED: Final = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are binary; decode them with DataFrame operations",
    "kafka.value.deserializer": "values are binary; decode them with DataFrame operations",
    "kafka.key.serializer": "this is a reader",
    "kafka.value.serializer": "this is a reader",
    "kafka.enable.auto.commit": "use commitOffsets",
    "kafka.interceptor.classes": "there are no interceptors here",
}
_SECURITY_PREFIXES: Final = ("kafka.ssl.", "kafka.sasl.", "kafka.security.")
_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")


def parse(given: Mapping[str, str], mode: Mode) -> SourceOptions:
    """Check all options of a read. Raises ConfigError."""
    values: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for name, value in given.items():
        option = _option(name)
        if option is None:
            extra[name] = value
            continue
        if option.only not in (None, mode):
            kind = "streaming" if mode == "stream" else "batch"
            raise ConfigError(f"option {option.name!r} has no meaning in a {kind} read")
        values[option.name] = read(option, value)
    _contradictions(values)
    return _gather(values, extra, mode)


def read_columns(given: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """The options `columns` and `includeHeaders` alone. Raises ConfigError."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        option = BY_NAME.get(name.lower())
        if option is not None and option.name in ("columns", "includeHeaders"):
            values[option.name] = read(option, value)
    return values.get("columns", ()), values.get("includeHeaders", False)


def _option(name: str) -> Option | None:
    """The row for a name; None if it has no effect here. Raises ConfigError."""
    lower = name.lower()
    option = BY_NAME.get(lower)
    if option is not None or lower in _WITHOUT_EFFECT or lower in OF_SPARK:
        return option
    if lower in _REFUSED:
        raise ConfigError(f"option {name!r} is not supported: {_REFUSED[lower]}")
    if lower.startswith(_SECURITY_PREFIXES):
        raise ConfigError(f"option {name!r} is not supported yet: this source speaks PLAINTEXT only")
    if lower == "path":
        raise ConfigError("this source has no path; name topics with the option 'subscribe'")
    near = difflib.get_close_matches(lower, [*BY_NAME, *_WITHOUT_EFFECT], 1, 0.6)
    hint = f"; did you mean {BY_NAME[near[0]].name if near[0] in BY_NAME else near[0]!r}?" if near else ""
    raise ConfigError(f"option {name!r} is not known{hint}")


def _contradictions(values: Mapping[str, Any]) -> None:
    if BOOTSTRAP not in values:
        raise ConfigError(f"option {BOOTSTRAP!r} is missing")
    chosen = [name for name in _STRATEGIES if name in values]
    if not chosen:
        raise ConfigError("one of the options 'subscribe', 'subscribePattern' and 'assign' is needed")
    if len(chosen) > 1:
        raise ConfigError(f"options {chosen[0]!r} and {chosen[1]!r} contradict each other; give one of them")
    low, high = values.get("minOffsetsPerTrigger"), values.get("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"option 'minOffsetsPerTrigger' ({low}) is above 'maxOffsetsPerTrigger' ({high})")
    if "maxTriggerDelay" in values and low is None:
        raise ConfigError("option 'maxTriggerDelay' needs 'minOffsetsPerTrigger'")
    if "timestampDisorder" in values and not values.get("pushdown"):
        raise ConfigError("option 'timestampDisorder' needs 'pushdown'")
    columns = values.get("columns")
    if columns and values.get("includeHeaders") and "headers" not in columns:
        raise ConfigError("options 'includeHeaders' and 'columns' contradict each other: 'columns' lacks headers")


def _gather(values: Mapping[str, Any], extra: Mapping[str, str], mode: Mode) -> SourceOptions:
    subscription = Subscription(
        values.get("subscribe", ()), values.get("subscribePattern", ""), values.get("assign", ())
    )
    fields: dict[str, Any] = {
        "fail_on_data_loss": values.get("failOnDataLoss"),
        "include_headers": values.get("includeHeaders"),
        "columns": values.get("columns"),
        "max_offsets": values.get("maxOffsetsPerTrigger"),
        "min_offsets": values.get("minOffsetsPerTrigger"),
        "max_delay_ms": values.get("maxTriggerDelay"),
        "min_partitions": values.get("minPartitions"),
        "max_records": values.get("maxRecordsPerPartition"),
        "commit": values.get("commitOffsets"),
        "pushdown": values.get("pushdown"),
        "timestamp_disorder_ms": values.get("timestampDisorder"),
        "metadata_ttl_ms": values.get("partition.metadata.cache.ttl.ms"),
        "poll_timeout_ms": values.get("kafkaConsumer.pollTimeoutMs"),
        "retries": values.get("fetchOffset.numRetries"),
        "retry_interval_ms": values.get("fetchOffset.retryIntervalMs"),
        "check_crcs": values.get("kafka.check.crcs"),
        "fetch_bytes": values.get("kafka.max.partition.fetch.bytes"),
        "fetch_wait_ms": values.get("kafka.fetch.max.wait.ms"),
        "request_timeout_ms": values.get("kafka.request.timeout.ms"),
        "client_id": values.get("kafka.client.id"),
    }
    start = _bound(values, "starting", EARLIEST if mode == "batch" else LATEST)
    end = _bound(values, "ending", LATEST)
    if mode == "batch" and start.offset == LATEST:
        raise ConfigError("option 'startingOffsets' cannot be latest in a batch read")
    if end.offset == EARLIEST or (end.offsets and EARLIEST in end.offsets.values()):
        raise ConfigError("option 'endingOffsets' cannot be earliest")
    if mode == "batch" and start.offsets and LATEST in start.offsets.values():
        raise ConfigError("option 'startingOffsets' cannot be latest (-1) in a batch read")
    _no_end_before_start(start, end)
    return SourceOptions(
        bootstrap=values[BOOTSTRAP],
        subscription=subscription,
        start=start,
        end=end,
        group=_group(values, subscription, start),
        read_committed=values.get("kafka.isolation.level", "read_committed") == "read_committed",
        extra=dict(extra),
        **{name: value for name, value in fields.items() if value is not None},
    )


def _no_end_before_start(start: Bound, end: Bound) -> None:
    pairs: dict[str, tuple[int, int]] = {}
    if start.time_ms is not None and end.time_ms is not None:
        pairs[""] = (start.time_ms, end.time_ms)
    for low, high in ((start.times_ms, end.times_ms), (start.offsets, end.offsets)):
        if low is not None and high is not None:
            pairs |= {
                f" of {topic}-{number}": (low[topic, number], high[topic, number])
                for topic, number in low.keys() & high
            }
    for place, (first, last) in sorted(pairs.items()):
        if first > last >= 0:
            raise ConfigError(
                f"options {start.option!r} ({first}) and {end.option!r} ({last}){place} contradict each other"
            )


def _bound(values: Mapping[str, Any], side: str, default: int) -> Bound:
    """Time for all > time per partition > offsets, as in Spark's own connector."""
    lenient = side == "ending" or values.get("startingOffsetsByTimestampStrategy") == "latest"
    for option, name in ((f"{side}Timestamp", "time_ms"), (f"{side}OffsetsByTimestamp", "times_ms")):
        if option in values:
            return Bound(option=option, latest_if_none=lenient, **{name: values[option]})
    option = f"{side}Offsets"
    found = values.get(option, default)
    return Bound(offset=found, option=option) if isinstance(found, int) else Bound(offsets=found, option=option)


def _group(values: Mapping[str, Any], subscription: Subscription, start: Bound) -> str:
    """The same query gets the same group at every start, so that its first offsets are found again."""
    if GROUP in values:
        return str(values[GROUP])
    return f"{values.get('groupIdPrefix', 'spark-kafka-source')}-{digest(subscription, start)}"


def digest(*parts: object) -> str:
    import hashlib

    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
