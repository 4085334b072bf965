"""The options of the sink: those of Spark's own Kafka connector, and how rows are delivered.

Rules are those of the source's options. `kafka.*` goes to librdkafka: Java's names are translated where the two differ,
accepted without effect where only a Java client has use for them, and refused where they would change what the sink
promises. What librdkafka does not know is an error that names the option.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from headrace.core.errors import ConfigError
from headrace.spark.option import OF_SPARK, Mode, Option, flag, one_of, read, text, whole
from headrace.spark.options import BOOTSTRAP
from headrace.spark.options import BY_NAME as OF_READS

Delivery = Literal["exactly_once", "exactly_once_partitioned", "at_least_once"]
DELIVERIES: Final = ("exactly_once", "exactly_once_partitioned", "at_least_once")
PREFIX: Final = "headrace-spark-"  # the broker never forgets the offsets of groups that are called so
STAGE_ABOVE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All that a writer has to know, checked."""

    bootstrap: str
    topic: str = ""  # beats the column
    delivery: Delivery = "exactly_once"
    prefix: str = PREFIX
    staging: str = ""  # where large messages to the driver wait; empty: they travel
    stage_above_bytes: int = STAGE_ABOVE_BYTES
    patience_ms: int = 120_000
    app_id: str = ""  # of a batch write that may be repeated
    version: int = 0
    client: Mapping[str, str] = field(default_factory=dict)  # for librdkafka

    @property
    def marker_prefix(self) -> str:
        """How marker groups begin, so that the broker never forgets them whatever the transactional ids are called."""
        return self.prefix if self.prefix.startswith(PREFIX) else PREFIX + self.prefix


OPTIONS: Final = (
    Option(BOOTSTRAP, text, "where the brokers are: host:port,..."),
    Option("topic", text, "where all rows go; without it the column topic says so"),
    Option("includeHeaders", flag, "accepted: headers are written whenever there is a column headers"),
    Option("delivery", one_of(*DELIVERIES), "how often a row is written (default exactly_once)"),
    Option("transactionalIdPrefix", text, f"start of transactional ids (default {PREFIX})"),
    Option("stagingLocation", text, "where large parts of a batch wait for the driver (default: in the checkpoint)"),
    Option("stageAboveBytes", whole(0), "parts above this size wait there (default 1 MiB)"),
    Option("txnAppId", text, "name of a batch write that may be repeated: a version is written once", "batch"),
    Option("txnVersion", whole(0), "and its version, such as the batch id in foreachBatch", "batch"),
    Option("publishTimeoutMs", whole(1000), "how long a broker may be away while a batch is written (default 120000)"),
)
_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}

# Java's name, librdkafka's, and what to do with the value.
_RENAMED: Final = {
    "max.request.size": ("message.max.bytes", 1),
    "buffer.memory": ("queue.buffering.max.kbytes", 1024),
    "send.buffer.bytes": ("socket.send.buffer.bytes", 1),
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", 1),
}
_JAVA_ONLY: Final = """
    auto.include.jmx.reporter enable.metrics.push max.block.ms metadata.max.idle.ms metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.ignore.keys
"""
_WITHOUT_EFFECT: Final = frozenset(_JAVA_ONLY.split())
_REFUSED: Final = {
    "key.serializer": "keys are binary; encode them with DataFrame operations",
    "value.serializer": "values are binary; encode them with DataFrame operations",
    "key.deserializer": "this is a writer",
    "value.deserializer": "this is a writer",
    "interceptor.classes": "there are no interceptors here",
    "partitioner.class": "use the column partition, or kafka.partitioner with a name of librdkafka",
    "transactional.id": "use transactionalIdPrefix",
    "sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "use kafka.ssl.ca.location with a PEM file",
    "ssl.keystore.location": "use kafka.ssl.certificate.location and kafka.ssl.key.location with PEM files",
    "delivery.report.only.error": "the sink sets it",
}
# What exactly-once rests on.
_FIXED: Final = {"enable.idempotence": ("true",), "acks": ("all", "-1"), "request.required.acks": ("all", "-1")}


def parse(given: Mapping[str, str], mode: Mode) -> SinkOptions:
    """Check all options of a write. Raises ConfigError."""
    values: dict[str, Any] = {}
    client: dict[str, str] = {}
    checkpoint = ""
    for name, value in given.items():
        lower = name.lower()
        option = _BY_NAME.get(lower)
        if option is not None:
            if option.only not in (None, mode):
                raise ConfigError(f"option {option.name!r} has no meaning in a streaming write")
            values[option.name] = read(option, value)
        elif lower == "checkpointlocation":
            checkpoint = value
        elif lower in OF_SPARK:
            continue
        elif lower.startswith("kafka."):
            _pass_on(name, lower.removeprefix("kafka."), value, client)
        else:
            raise ConfigError(_unknown(name, lower))
    return _gather(values, client, checkpoint)


def _pass_on(name: str, theirs: str, value: str, client: dict[str, str]) -> None:
    if theirs in _REFUSED:
        raise ConfigError(f"option {name!r} is not supported: {_REFUSED[theirs]}")
    if theirs in _WITHOUT_EFFECT:
        return
    if theirs in _RENAMED:
        theirs, divisor = _RENAMED[theirs]
        value = str(max(1, int(read(Option(name, whole(1), ""), value)) // divisor))
    client[theirs] = value


def _unknown(name: str, lower: str) -> str:
    if lower == "path":
        return "this sink has no path; name a topic with the option 'topic'"
    if lower in OF_READS:
        return f"option {OF_READS[lower].name!r} has no meaning in a write"
    near = difflib.get_close_matches(lower, _BY_NAME, 1, 0.6)
    return f"option {name!r} is not known" + (f"; did you mean {_BY_NAME[near[0]].name!r}?" if near else "")


def _gather(values: Mapping[str, Any], client: dict[str, str], checkpoint: str) -> SinkOptions:
    if BOOTSTRAP not in values:
        raise ConfigError(f"option {BOOTSTRAP!r} is missing")
    delivery: Delivery = values.get("delivery", "exactly_once")
    if delivery == "at_least_once":
        for name in ("transactionalIdPrefix", "stagingLocation", "stageAboveBytes", "txnAppId"):
            if name in values:
                raise ConfigError(f"options {name!r} and 'delivery' (at_least_once) contradict each other")
    else:
        for name, allowed in _FIXED.items():
            if client.get(name, allowed[0]).lower() not in allowed:
                raise ConfigError(f"options 'kafka.{name}' ({client[name]}) and 'delivery' ({delivery}) contradict")
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise ConfigError("options 'txnAppId' and 'txnVersion' need each other")
    for name in ("stagingLocation", "stageAboveBytes"):
        if delivery == "exactly_once_partitioned" and name in values:
            raise ConfigError(f"option {name!r} has no meaning with 'delivery' ({delivery}): nothing waits")
    staging = values.get("stagingLocation") or (f"{checkpoint.rstrip('/')}/headrace-staging" if checkpoint else "")
    return SinkOptions(
        bootstrap=values[BOOTSTRAP],
        topic=values.get("topic", ""),
        delivery=delivery,
        prefix=values.get("transactionalIdPrefix", PREFIX),
        staging=staging,
        stage_above_bytes=values.get("stageAboveBytes", STAGE_ABOVE_BYTES),
        patience_ms=values.get("publishTimeoutMs", 120_000),
        app_id=values.get("txnAppId", ""),
        version=values.get("txnVersion", 0),
        client=client,
    )
