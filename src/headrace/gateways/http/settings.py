"""Health, metrics and the web door: the section `http`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import between, not_empty, setting


@dataclass(frozen=True, slots=True)
class HttpSettings:
    enabled: bool = setting(True, help="Whether to serve HTTP at all.", flag="--http")
    host: str = setting("127.0.0.1", help="Address to listen on.", check=not_empty)
    port: int = setting(8080, help="Port to listen on; 0 picks a free one.", check=between(0, 65535))
