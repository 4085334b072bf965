"""Carries Raft's messages to other nodes, or loses them; and how a request of a private API is framed.

Rules:
- To each node one request is under way at a time; what comes meanwhile goes with the next one, in order.
- A node that does not answer is reported as unreachable, and what waited for it is dropped: Raft sends it again. So
  nothing piles up for the dead.
- Private APIs (32000 and above) have the plain request header without a client id; their bodies are msgpack.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.core.errors import LinkError, ProtocolError
from headrace.raft.encoding import decode, encode
from headrace.raft.messages import InstallSnapshot, Message

if TYPE_CHECKING:
    from headrace.core.ports import Links

RAFT_KEY: Final = 32001
COMMAND_KEY: Final = 32002
FORWARD_KEY: Final = 32003
LANE: Final = "raft"
ANSWER_BYTES: Final = 4  # of the correlation id, before an answer's body
SECONDS_PER_BYTE: Final = 1 / 2**20  # that a large message may take, above the time for any

_HEADER: Final = struct.Struct(">hhih")
_MESSAGES: Final = msgspec.msgpack.Decoder(list[bytes])

Unreachable = Callable[[int, Sequence[Message]], None]


def request_frame(api_key: int, body: bytes, *, version: int = 0) -> bytes:
    """A request of a private API. Links give it a correlation id of their own."""
    return _HEADER.pack(api_key, version, 0, -1) + body


def pack(messages: Sequence[Message]) -> bytes:
    return msgspec.msgpack.encode([encode(message) for message in messages])


def unpack(body: bytes | memoryview) -> list[Message]:
    """Raises ProtocolError."""
    try:
        return [decode(raw) for raw in _MESSAGES.decode(body)]
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a list of Raft messages: {error}") from None


def unpack_from(node: int, body: bytes | memoryview) -> list[Message]:
    """What a node has brought. Raises ProtocolError if it is not its own."""
    messages = unpack(body)
    if any(message.sender != node for message in messages):
        raise ProtocolError(f"node {node} speaks for another node")
    return messages


class Post:
    """See the module."""

    def __init__(self, links: Links, unreachable: Unreachable, *, timeout_s: float = 1.0) -> None:
        self._links = links
        self._unreachable = unreachable
        self._timeout_s = timeout_s
        self._waiting: dict[int, list[Message]] = {}
        self._carriers: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    def send(self, node: int, messages: Sequence[Message]) -> None:
        if self._closed:
            return
        self._waiting.setdefault(node, []).extend(messages)
        if node not in self._carriers:
            self._carriers[node] = asyncio.get_running_loop().create_task(self._carry(node), name=f"raft-to-{node}")

    async def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        for carrier in self._carriers.values():
            carrier.cancel()
        self._carriers.clear()

    async def _carry(self, node: int) -> None:
        try:
            while messages := self._waiting.pop(node, None):
                frame = request_frame(RAFT_KEY, pack(messages))
                timeout_s = self._timeout_s + len(frame) * SECONDS_PER_BYTE
                try:
                    await self._links.call(node, frame, lane=LANE, timeout_s=timeout_s)
                except LinkError:
                    lost = [*messages, *self._waiting.pop(node, ())]
                    self._unreachable(node, [each for each in lost if isinstance(each, InstallSnapshot)])
        finally:
            if not self._closed:
                self._carriers.pop(node, None)
