"""Small things of a connection: places of answers, answers to a hello, what a log line says of a request."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headrace.apis.api import Api
from headrace.core.ports import Buffer
from headrace.wire.headers import RequestHeader

_LENGTH = struct.Struct(">i")


class Slot:
    """The place of one answer in the queue. `parts` is None until it is there; an empty list sends nothing."""

    __slots__ = ("parts", "request_bytes")

    def __init__(self, request_bytes: int = 0, parts: Sequence[Buffer] | None = None) -> None:
        self.parts = parts
        self.request_bytes = request_bytes


def hello_answer(header: RequestHeader, body: bytes) -> bytes:
    return _LENGTH.pack(4 + len(body)) + _LENGTH.pack(header.correlation_id) + body


def about(api: Api, header: RequestHeader, host: str) -> dict[str, object]:
    return {
        "api": api.name,
        "api_version": header.api_version,
        "correlation_id": header.correlation_id,
        "client_id": header.client_id,
        "client_host": host,
    }
