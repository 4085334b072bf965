"""Connections to brokers: frames out, frames in, kept for the next task of the process.

Rules:
- Plaintext only. One request may be under way while the answer before it is worked on; answers come in order.
- A link that broke, or that still owes an answer, is closed and never lent again.
- Bytes are received into one buffer per link, which the next answer overwrites.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.client.connection import addresses
from headrace.client.errors import ClientError, UnreachableError
from headrace.core.errors import ProtocolError
from headrace.wire.headers import FIRST_FLEXIBLE, response_header

Address = tuple[str, int]

FRAME_BYTES: Final = 1 << 30  # a record batch may be large; memory follows the bytes that arrive
CONNECT_SECONDS: Final = 5.0
IDLE_LINKS: Final = 4  # per broker
_HEAD: Final = struct.Struct(">ihhih")
_LENGTH: Final = struct.Struct(">i")
_FIRST_BUFFER_BYTES: Final = 64 * 1024
_STEP_BYTES: Final = 4 << 20  # how far ahead of its bytes a frame's buffer grows
API_VERSIONS: Final = 18


class Link:
    """A socket to one broker."""

    def __init__(self, address: Address, client_id: str, timeout_s: float) -> None:
        self.address = address
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._owed = 0
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        self._prefix = bytearray(_LENGTH.size)
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection(address, timeout=min(CONNECT_SECONDS, timeout_s))
        except OSError as error:
            raise UnreachableError(f"cannot reach a broker at {address[0]}:{address[1]} ({error})") from None
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_clean(self) -> bool:
        return self._owed == 0

    def send(self, api_key: int, version: int, body: bytes) -> None:
        self._correlation_id += 1
        tags = b"\x00" if version >= FIRST_FLEXIBLE[api_key] else b""
        size = _HEAD.size - _LENGTH.size + len(self._client_id) + len(tags) + len(body)
        head = _HEAD.pack(size, api_key, version, self._correlation_id, len(self._client_id))
        self._owed += 1
        try:
            self._socket.sendall(b"".join((head, self._client_id, tags, body)))
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, api_key: int, version: int) -> memoryview:
        """The body of the next answer. It is overwritten by the one after it."""
        try:
            self._fill(memoryview(self._prefix))
            (size,) = _LENGTH.unpack(self._prefix)
            if not 4 <= size <= FRAME_BYTES:
                raise ProtocolError(f"the broker sent a frame of {size} bytes")
            frame = self._frame(size)
        except OSError as error:
            raise self._broken(error) from None
        self._owed -= 1
        correlation_id = self._correlation_id - self._owed
        head = response_header(api_key, version, correlation_id)
        if frame[: len(head)] != head:
            raise ProtocolError("the broker's answer does not belong to the request")
        return frame[len(head) :]

    def call(self, api_key: int, version: int, request: Mapping[str, Any]) -> Any:
        """One request and its answer, as kio's class."""
        from headrace.wire.messages import decode_response, encode_request

        self.send(api_key, version, encode_request(api_key, version, request))
        return decode_response(api_key, version, bytes(self.receive(api_key, version)))

    def version(self, api_key: int, newest: int) -> int:
        """The newest version of an API that both sides know, at most `newest`."""
        if not self._versions:
            answer = self.call(API_VERSIONS, 0, {})
            self._versions = {int(each.api_key): (each.min_version, each.max_version) for each in answer.api_keys}
        low, high = self._versions.get(api_key, (0, -1))
        if not low <= newest or high < 0:
            raise ClientError(f"the broker at {self.address[0]}:{self.address[1]} does not offer API {api_key}")
        return min(high, newest)

    def close(self) -> None:
        self._socket.close()

    def _frame(self, size: int) -> memoryview:
        done = 0
        while done < size:
            room = min(size, done + _STEP_BYTES)
            if len(self._buffer) < room:
                # Views of the old buffer may still be alive: a new one, not a larger one.
                grown = bytearray(max(room, min(size, 2 * len(self._buffer))))
                grown[:done] = memoryview(self._buffer)[:done]
                self._buffer = grown
            self._fill(memoryview(self._buffer)[done:room])
            done = room
        return memoryview(self._buffer)[:size]

    def _fill(self, view: memoryview) -> None:
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionError("connection closed")
            view = view[got:]

    def _broken(self, error: OSError) -> UnreachableError:
        self.close()
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        return UnreachableError(f"lost the broker at {self.address[0]}:{self.address[1]} ({reason})")


_idle: dict[tuple[Address, str], list[Link]] = {}


@contextlib.contextmanager
def borrow(address: Address, client_id: str, timeout_s: float) -> Iterator[Link]:
    """A link from the process's store, or a new one; it goes back if it was left clean."""
    shelf = _idle.setdefault((address, client_id), [])
    link = shelf.pop() if shelf else Link(address, client_id, timeout_s)
    try:
        yield link
    except BaseException:
        link.close()
        raise
    if link.is_clean and len(shelf) < IDLE_LINKS:
        shelf.append(link)
    else:
        link.close()


def discard(address: Address, client_id: str) -> None:
    """Close idle links to a broker that has just broken one: they are likely to be dead too."""
    for link in _idle.pop((address, client_id), ()):
        link.close()


def bootstrap_addresses(bootstrap: str) -> list[Address]:
    return addresses(bootstrap)
