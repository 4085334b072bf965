"""Where the doors of a broker are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a broker can be reached."""

    kafka_host: str
    kafka_port: int
    http_host: str | None = None
    http_port: int | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.kafka_host}:{self.kafka_port}"

    @property
    def http_url(self) -> str | None:
        return None if self.http_port is None else f"http://{self.http_host}:{self.http_port}"
