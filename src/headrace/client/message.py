"""A message as an application sees it, and what may be given as key, value or headers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import confluent_kafka

Payload = str | bytes | bytearray | memoryview | dict[str, Any] | list[Any] | int | float | bool | None
Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


@dataclass(slots=True)
class Message:
    """One message that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # -1 if the message carries none
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def text(self) -> str:
        """The value as text; empty for a null value. Bytes that are not UTF-8 are replaced."""
        return "" if self.value is None else self.value.decode("utf-8", "replace")

    @property
    def key_text(self) -> str | None:
        return None if self.key is None else self.key.decode("utf-8", "replace")

    @property
    def time(self) -> datetime | None:
        return None if self.timestamp_ms < 0 else datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def json(self) -> Any:
        """The value, parsed as JSON; None for a null value. Raises ValueError."""
        return None if self.value is None else json.loads(self.value)

    def header(self, name: str) -> bytes | None:
        """The last header of that name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


def serialise(payload: Payload) -> bytes | None:
    """Bytes as they are, text as UTF-8, None as null, anything else as compact JSON."""
    if payload is None or isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def header_list(headers: Headers | None) -> list[tuple[str, str | bytes | None]]:
    if not headers:
        return []
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


def from_kafka(raw: confluent_kafka.Message) -> Message:
    """librdkafka's message as ours. It must not be an error event."""
    kind, timestamp_ms = raw.timestamp()
    headers: Any = raw.headers() or ()
    return Message(
        raw.topic() or "",
        -1 if (partition := raw.partition()) is None else partition,
        -1 if (offset := raw.offset()) is None else offset,
        -1 if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        raw.key(),
        raw.value(),
        tuple(headers),
    )
