"""Messages as JSON, the same form in and out: `consume --json` writes what `produce --json-lines` reads.

- Text is a string, null is null, bytes that are not UTF-8 are {"base64": "..."}.
- Headers are an object; a name that repeats has an array of values.
- On the way in, a key or value that is neither string nor null is sent as JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.message import Message

HeaderList = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Outgoing:
    """A message to send."""

    key: bytes | None
    value: bytes | None
    headers: HeaderList
    partition: int = -1
    timestamp_ms: int = 0

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


def to_json(message: Message) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    repeated = {name for name, _ in message.headers if sum(name == other for other, _ in message.headers) > 1}
    for name, value in message.headers:
        if name in repeated:
            headers.setdefault(name, []).append(encode(value))
        else:
            headers[name] = encode(value)
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "key": encode(message.key),
        "value": encode(message.value),
        "headers": headers,
    }


def encode(payload: bytes | None) -> Any:
    if payload is None:
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode()}


def decode(document: Any) -> bytes | None:
    """Bytes of a key, a value or a header. Raises ValueError."""
    if document is None:
        return None
    if isinstance(document, str):
        return document.encode()
    if isinstance(document, dict) and set(document) == {"base64"} and isinstance(document["base64"], str):
        try:
            return base64.b64decode(document["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"base64: {error}") from None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def from_json(text: str | bytes) -> Outgoing:
    """One line of `--json-lines`. Raises ValueError with a sentence."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError('is not an object such as {"key": "k", "value": "v"}')
    known = {"key", "value", "headers", "partition", "timestamp", "topic", "offset"}
    if unknown := sorted(set(document) - known):
        raise ValueError(
            f"has an unknown field {unknown[0]!r}; known: {', '.join(sorted(known))} "
            "(a line that is itself the value is sent without --json-lines)"
        )
    headers = document.get("headers") or {}
    if not isinstance(headers, dict):
        raise ValueError("headers: is not an object")
    pairs: HeaderList = []
    for name, value in headers.items():
        pairs += [(name, decode(each)) for each in (value if isinstance(value, list) else [value])]
    timestamp_ms = document.get("timestamp") or 0
    if not isinstance(timestamp_ms, int):
        raise ValueError("timestamp: is not a number of milliseconds")
    return Outgoing(
        decode(document.get("key")), decode(document.get("value")), pairs, timestamp_ms=max(0, timestamp_ms)
    )
