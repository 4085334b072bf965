"""What a supervisor runs: services with their commands and ports, from options and a YAML file.

Rules:
- Pure: text in, a plan out. Ports that collide are moved, and `notes` says so.
- The file is ours or that of the Kafka-analog document: sections coordinator, broker, topics, consumer, producer. Keys
  that mean nothing here are named in `notes`; keys that nobody knows are refused. A file never names a program to run.
- Broker numbers, which are node ids, count from 0; broker N listens on the base port plus N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from headrace.core.config import yaml_fault
from headrace.core.errors import ConfigError

Kind = Literal["broker", "producer", "consumer"]

HOST: Final = "127.0.0.1"
BROKERS: Final = 5
MOST_BROKERS: Final = 100
HTTP_BASE_PORT: Final = 18080  # broker N answers health checks on this port plus N
KNOWN: Final[Mapping[str, Mapping[str, type]]] = {
    "coordinator": {"port": int, "console_port": int, "broker_count": int, "broker_executable": str},
    "broker": {"base_port": int, "http_base_port": int, "data_dir": str, "storage": str, "flush": str, "host": str},
    "topics": {"default_partitions": int, "replication_factor": int, "min_insync_replicas": int},
    "consumer": {"port": int, "session_timeout_ms": int, "heartbeat_interval_ms": int},
    "producer": {"port": int, "batch_size": int, "linger_ms": int},
    "nodejs_writer": {"port": int, "producer_url": str},
    "nodejs_reader": {"port": int, "consumer_url": str},
}


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything that can be chosen."""

    brokers: int = BROKERS
    host: str = HOST
    base_port: int = 9092
    http_base_port: int = HTTP_BASE_PORT
    status_port: int = 8080
    console_port: int = 8081
    data_dir: str = "./headrace-data"
    storage: str = "disk"
    flush: str = "ack"
    partitions: int = 1
    replication_factor: int = 3
    min_insync_replicas: int = 1
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    batch_size: int = 16_384
    linger_ms: int = 100
    producer_port: int = 9093
    consumer_port: int = 9094


@dataclass(frozen=True, slots=True)
class Service:
    """One process. `words` follow the name of our own program; `health_port` has a page /readyz, if it is given."""

    name: str
    kind: Kind
    number: int
    words: tuple[str, ...]
    host: str
    port: int
    health_port: int | None = None
    data_dir: str = ""
    seeds: str = ""  # the other brokers


@dataclass(frozen=True, slots=True)
class Plan:
    services: tuple[Service, ...]
    host: str
    status_port: int
    console_port: int
    temporary: bool  # the data directory is deleted when everything has stopped
    notes: tuple[str, ...]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{one.host}:{one.port}" for one in self.services if one.kind == "broker")


def read(text: str, source: str) -> tuple[Choices, list[str]]:
    """The choices of a YAML file, and what there is to say about them. Raises ConfigError."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {yaml_fault(error)}") from error
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise ConfigError(f"{source} must hold sections: {', '.join(KNOWN)}")
    values: dict[str, dict[str, Any]] = {}
    for section, keys in found.items():
        if section not in KNOWN:
            raise ConfigError(f"{source}: no section {section!r}; there are {', '.join(KNOWN)}")
        values[section] = _section(section, keys, source)
    return _choices(values, source)


def _section(section: str, keys: Any, source: str) -> dict[str, Any]:
    if not isinstance(keys, dict):
        raise ConfigError(f"{source}: {section} must hold keys: {', '.join(KNOWN[section])}")
    for key, value in keys.items():
        wanted = KNOWN[section].get(key)
        if wanted is None:
            raise ConfigError(f"{source}: no key {section}.{key}; there are {', '.join(KNOWN[section])}")
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ConfigError(f"{source}: {section}.{key} is {value!r}; it must be {_article(wanted)}")
        if isinstance(value, int) and not 0 < value < (65_536 if key.endswith("port") else 2**31):
            raise ConfigError(f"{source}: {section}.{key} is {value}; it is too small or too large")
    return dict(keys)


def _article(kind: type) -> str:
    return "a whole number" if kind is int else "a text"


def _choices(values: Mapping[str, Mapping[str, Any]], source: str) -> tuple[Choices, list[str]]:
    notes = []
    coordinator, broker, topics = values.get("coordinator", {}), values.get("broker", {}), values.get("topics", {})
    consumer, producer = values.get("consumer", {}), values.get("producer", {})
    if "broker_executable" in coordinator:
        notes.append("coordinator.broker_executable is not used: brokers are this program's own")
    notes += [f"{name} is not started here: run the client by itself" for name in values if name.startswith("nodejs")]
    usual = Choices()
    choices = Choices(
        brokers=coordinator.get("broker_count", usual.brokers),
        host=broker.get("host", usual.host),
        base_port=broker.get("base_port", usual.base_port),
        http_base_port=broker.get("http_base_port", usual.http_base_port),
        status_port=coordinator.get("port", usual.status_port),
        console_port=coordinator.get("console_port", usual.console_port),
        data_dir=broker.get("data_dir", usual.data_dir),
        storage=broker.get("storage", usual.storage),
        flush=broker.get("flush", usual.flush),
        partitions=topics.get("default_partitions", usual.partitions),
        replication_factor=topics.get("replication_factor", usual.replication_factor),
        min_insync_replicas=topics.get("min_insync_replicas", usual.min_insync_replicas),
        session_timeout_ms=consumer.get("session_timeout_ms", usual.session_timeout_ms),
        heartbeat_interval_ms=consumer.get("heartbeat_interval_ms", usual.heartbeat_interval_ms),
        batch_size=producer.get("batch_size", usual.batch_size),
        linger_ms=producer.get("linger_ms", usual.linger_ms),
        producer_port=producer.get("port", usual.producer_port),
        consumer_port=consumer.get("port", usual.consumer_port),
    )
    for name, value, allowed in (
        ("broker.storage", choices.storage, ("disk", "memory")),
        ("broker.flush", choices.flush, ("ack", "interval", "os")),
    ):
        if value not in allowed:
            raise ConfigError(f"{source}: {name} is {value!r}; it must be one of {', '.join(allowed)}")
    return choices, notes


def plan(choices: Choices, *, doors: frozenset[str] = frozenset(), notes: tuple[str, ...] = ()) -> Plan:
    """What to run. `doors`: the services besides brokers that this release has. Raises ConfigError."""
    if not 1 <= choices.brokers <= MOST_BROKERS:
        raise ConfigError(f"{choices.brokers} brokers: there may be 1 to {MOST_BROKERS}")
    said = list(notes)
    factor = min(choices.replication_factor, choices.brokers)
    if factor < choices.replication_factor:
        said.append(f"replication factor {choices.replication_factor} needs as many brokers; it is {factor}")
    ports = _Ports(said)
    for number in range(choices.brokers):
        ports.claim(f"broker {number}", choices.base_port + number)
    status_port = ports.free("the coordinator", choices.status_port)
    console_port = ports.free("the console", choices.console_port)
    services = [
        _broker(choices, number, factor, ports.free(f"health of broker {number}", choices.http_base_port + number))
        for number in range(choices.brokers)
    ]
    bootstrap = ",".join(f"{one.host}:{one.port}" for one in services)
    wanted: tuple[tuple[Kind, int], ...] = (("producer", choices.producer_port), ("consumer", choices.consumer_port))
    for kind, port in wanted:
        if kind in doors:
            services.append(_door(choices, kind, ports.free(f"the {kind}", port), bootstrap))
    temporary = choices.storage == "memory"
    if temporary:
        said.append("storage memory: a temporary directory, deleted when everything has stopped")
    return Plan(tuple(services), choices.host, status_port, console_port, temporary, tuple(said))


class _Ports:
    """Ports that are taken, and by whom."""

    def __init__(self, notes: list[str]) -> None:
        self._owners: dict[int, str] = {}
        self._notes = notes

    def claim(self, owner: str, port: int) -> None:
        if port > 65_535:
            raise ConfigError(f"{owner} would need port {port}; ports end at 65535")
        self._owners[port] = owner

    def free(self, owner: str, wanted: int) -> int:
        """`wanted`, or else the next port that nobody has."""
        port = wanted
        while port in self._owners:
            port += 1
        if port != wanted:
            self._notes.append(f"port {wanted} belongs to {self._owners[wanted]}; {owner} is on {port}")
        self.claim(owner, port)
        return port


def _broker(choices: Choices, number: int, factor: int, health_port: int) -> Service:
    port = choices.base_port + number
    data_dir = f"{choices.data_dir}/broker-{number}"
    words = [
        "serve",
        *("--broker-node-id", str(number)),
        *("--host", choices.host, "--port", str(port)),
        *("--http-host", choices.host, "--http-port", str(health_port)),
        *("--data-dir", data_dir),
        *("--flush", "os" if choices.storage == "memory" else choices.flush),
        *("--broker-num-partitions", str(choices.partitions)),
        *("--broker-default-replication-factor", str(factor)),
        *("--broker-min-insync-replicas", str(min(choices.min_insync_replicas, factor))),
    ]
    others = [f"{choices.host}:{choices.base_port + other}" for other in range(choices.brokers) if other != number]
    return Service(
        f"broker-{number}", "broker", number, tuple(words), choices.host, port, health_port, data_dir, ",".join(others)
    )


def _door(choices: Choices, kind: Kind, port: int, bootstrap: str) -> Service:
    words = [kind, "--host", choices.host, "--port", str(port), "--bootstrap", bootstrap]
    if kind == "producer":
        words += ["--batch-size", str(choices.batch_size), "--linger-ms", str(choices.linger_ms)]
    else:
        words += ["--session-timeout-ms", str(choices.session_timeout_ms)]
        words += ["--heartbeat-interval-ms", str(choices.heartbeat_interval_ms)]
    return Service(kind, kind, 0, tuple(words), choices.host, port)
