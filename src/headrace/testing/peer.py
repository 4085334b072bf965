"""A peer on the Kafka port that sends exactly the bytes it is told to: for tests of the wire and of bad manners.

Rules:
- Requests are plain mappings, as answers are inside the broker; nothing is retried and nothing is negotiated.
- An answer must decode completely: bytes left over are an AssertionError.
- A connection that the broker closed is a ClosedError, a broker that stays silent a TimeoutError.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from headrace.core.errors import ErrorCode, HeadraceError
from headrace.wire.headers import FIRST_FLEXIBLE, response_header
from headrace.wire.messages import encode_request
from headrace.wire.schema import message_class

from kio.serial import entity_reader  # isort: skip

_LENGTH = struct.Struct(">i")
_NEVER = 1 << 16


class ClosedError(HeadraceError):
    """The broker closed the connection."""


def frame(payload: bytes) -> bytes:
    """`payload` behind its length."""
    return _LENGTH.pack(len(payload)) + payload


def header(api_key: int, version: int, correlation_id: int = 1, client_id: str | None = "peer") -> bytes:
    """A request header of the form that this API and version take."""
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    tags = b"\x00" if version >= FIRST_FLEXIBLE.get(api_key, _NEVER) else b""
    return struct.pack(">hhi", api_key, version, correlation_id) + name + tags


def payload(api_key: int, version: int, request: Mapping[str, Any], correlation_id: int = 1) -> bytes:
    """A request with its header, without its length."""
    return header(api_key, version, correlation_id) + encode_request(api_key, version, request)


class Peer:
    """One connection."""

    def __init__(self, bootstrap_servers: str, *, timeout_s: float = 60.0, receive_buffer_bytes: int = 0) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect((host, int(port)))
        self._correlation_id = 0

    # -- bytes

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise ClosedError("the broker closed the connection") from None

    def receive_frame(self) -> bytes:
        """The next frame, without its length."""
        (size,) = _LENGTH.unpack(self._exactly(4))
        assert size >= 4, f"a frame of {size} bytes has no room for a correlation id"
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                piece = self.socket.recv(min(1 << 20, size - len(found)))
            except ConnectionResetError:
                raise ClosedError("the broker reset the connection") from None
            if not piece:
                raise ClosedError("the broker closed the connection")
            found += piece
        return bytes(found)

    def is_closed(self, within_s: float = 60.0) -> bool:
        """Whether the broker closes the connection in time, without another byte."""
        before = self.socket.gettimeout()
        self.socket.settimeout(within_s)
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(before)

    # -- requests

    def send(self, api_key: int, version: int, request: Mapping[str, Any] | None = None) -> int:
        """Send a request; returns its correlation id."""
        self._correlation_id += 1
        self.send_bytes(frame(payload(api_key, version, request or {}, self._correlation_id)))
        return self._correlation_id

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        """The next answer, which must be the one to this request, as kio's class."""
        body = self.receive_frame()
        expected = response_header(api_key, version, correlation_id)
        assert body.startswith(expected), f"answer {body[:8].hex()} does not belong to request {correlation_id}"
        answer, size = entity_reader(message_class(api_key, version, "response"))(body, len(expected))
        left = len(body) - len(expected) - size
        assert left == 0, f"{left} bytes are left over after {type(answer).__name__}"
        return answer

    def call(self, api_key: int, version: int, request: Mapping[str, Any] | None = None) -> Any:
        """Send a request and take its answer."""
        return self.receive(api_key, version, self.send(api_key, version, request))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_serving(bootstrap_servers: str) -> bool:
    """Whether a newcomer is answered."""
    with Peer(bootstrap_servers, timeout_s=30.0) as peer:
        return bool(peer.call(18, 0).error_code == ErrorCode.none)
