"""Where the broker is, and how to talk to it: the part that producer, consumer and admin have in common.

Rules:
- An address that refuses is found at once (`reach`), not after librdkafka's patience.
- librdkafka's own log lines stay off the terminal unless HEADRACE_DEBUG is set.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from headrace.client.errors import UnreachableError, translate
from headrace.core.errors import ConfigError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
TIMEOUT_S = 5.0
QUEUE_BACKOFF_MS = 10  # librdkafka's second of rest whenever its queue is full costs most of the throughput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """A bootstrap address, librdkafka properties on top, and how long a call may take."""

    bootstrap: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    @property
    def address(self) -> str:
        """`bootstrap`, or else HEADRACE_BOOTSTRAP, or else the default."""
        return self.bootstrap or os.environ.get("HEADRACE_BOOTSTRAP", "") or DEFAULT_BOOTSTRAP

    def config(self, **settings: Any) -> dict[str, Any]:
        """librdkafka's configuration. `settings` use underscores for dots; `properties` win."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "client.id": "headrace",
            "log.connection.close": False,
            "socket.connection.setup.timeout.ms": max(1000, int(self.timeout_s * 1000)),
        }
        if not os.environ.get("HEADRACE_DEBUG"):
            config["log_level"] = 0
        config.update({name.replace("_", "."): value for name, value in settings.items()})
        config.update(self.properties)
        return config

    def reach(self) -> None:
        """Open and close a TCP connection. Raises UnreachableError if no address of the bootstrap list takes it."""
        faults = []
        for host, port in addresses(self.address):
            try:
                socket.create_connection((host, port), timeout=self.timeout_s).close()
            except OSError as error:
                faults.append(f"{host}:{port} ({_reason(error)})")
            else:
                return
        raise UnreachableError(f"cannot reach a broker at {', '.join(faults)}", "UNREACHABLE")


def connection(bootstrap: str | Connection | None = None, properties: Mapping[str, str] | None = None) -> Connection:
    """What a constructor was given, as a Connection."""
    if isinstance(bootstrap, Connection):
        return replace(bootstrap, properties={**bootstrap.properties, **(properties or {})})
    return Connection(bootstrap or "", properties or {})


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    """`host[:port],...` as pairs. Raises ConfigError."""
    found = []
    for part in filter(None, (piece.strip() for piece in bootstrap.split(","))):
        bare = part.partition("://")[2] or part
        host, colon, port = bare.rpartition(":")
        if not colon or bare.endswith("]"):
            host, port = bare, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"bootstrap address {part!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ConfigError("the bootstrap address is empty")
    return found


def open_client(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """Make a librdkafka handle; a bad property becomes a ConfigError."""
    try:
        return kind(config)
    except KafkaException as error:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and cause.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT):
            raise ConfigError(f"client property: {cause.str()}") from None
        raise translate(error) from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    return (error.strerror or str(error)).lower()
