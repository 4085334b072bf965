"""The Kafka listener: the section `kafka`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import at_least, between, not_empty, setting
from headrace.core.limits import FRAME_BYTES
from headrace.core.units import MIB, MINUTE_MS


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    host: str = setting("127.0.0.1", help="Address to listen on.", check=not_empty, flag="--host")
    port: int = setting(9092, help="Port to listen on; 0 picks a free one.", check=between(0, 65535), flag="--port")
    advertised_host: str | None = setting(
        None, help="Host that clients are told; unset, the one that is listened on.", flag="--advertised-host"
    )
    advertised_port: int | None = setting(
        None,
        help="Port that clients are told; unset, the one that is listened on.",
        check=between(1, 65535),
        flag="--advertised-port",
    )
    max_connections: int = setting(
        10_000, help="Connections in all; more are closed at once.", check=at_least(1), kafka="max.connections"
    )
    max_connections_per_ip: int = setting(
        2000,
        help="Connections from one address; more are closed at once.",
        check=at_least(1),
        kafka="max.connections.per.ip",
    )
    idle_ms: int = setting(
        10 * MINUTE_MS,
        help="A connection that was silent for so long is closed.",
        unit="ms",
        check=at_least(1),
        kafka="connections.max.idle.ms",
    )
    max_request_bytes: int = setting(
        FRAME_BYTES,
        help="Largest request; a connection that announces a larger one is closed.",
        unit="bytes",
        check=between(1024, 2**31 - 1),
        kafka="socket.request.max.bytes",
    )
    memory_bytes: int = setting(
        256 * MIB,
        help="Memory for requests and answers of all connections that are in flight, half for each. When it is short, "
        "those who hold much wait, and those who hold it without moving are closed; small requests go on. A request "
        "larger than half of it is refused.",
        unit="bytes",
        check=between(4 * MIB, 2**40),
    )
