"""Real sockets.

Rules:
- What leaves is bound to the node's own address, unless the node listens everywhere: so a node can be cut off by it.
- A datagram that the system does not take at once is lost, as the network may lose it too. So are those that come while
  a name is looked up.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Final, cast

from headrace.core.ports import Address
from headrace.runtime.descriptor_limit import connections_allowed

BACKLOG: Final = 1024
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})
LOOKUPS: Final = 64  # of names, at a time
NAME_SECONDS: Final = 30.0  # that a name stands for a number
FAILED_NAME_SECONDS: Final = 5.0


class SocketListening:
    """A bound port of `SocketNetwork`."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = int(server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        await self._server.start_serving()

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        await self._server.wait_closed()


class SocketDatagrams(asyncio.DatagramProtocol):
    """A bound datagram port of `SocketNetwork`."""

    def __init__(self, receive: Callable[[bytes, Address], None]) -> None:
        self._receive = receive
        self._transport: asyncio.DatagramTransport | None = None
        self._numbers: dict[str, str] = {}  # by name
        self._lookups: dict[str, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._receive(data, (addr[0], addr[1]))

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there, for one. The packet is lost."""

    def send(self, packet: bytes, to: Address) -> None:
        number = self._numbers.get(to[0]) or (to[0] if _is_number(to[0]) else None)
        if number is None:
            self._look_up(to[0])
        elif self._transport is not None:
            try:
                self._transport.sendto(packet, (number, to[1]))
            except (OSError, ValueError):
                pass  # too large, no route: lost

    def _look_up(self, name: str) -> None:
        if name not in self._lookups and len(self._lookups) < LOOKUPS:
            self._lookups[name] = asyncio.get_running_loop().create_task(self._find(name), name="look-up")

    async def _find(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
            self._numbers[name] = str(found[0][4][0])
            loop.call_later(NAME_SECONDS, self._numbers.pop, name, None)
        except (OSError, UnicodeError):  # there is no such name, or there cannot be
            await asyncio.sleep(FAILED_NAME_SECONDS)
        finally:
            self._lookups.pop(name, None)

    def close(self) -> None:
        for task in tuple(self._lookups.values()):
            task.cancel()
        if self._transport is not None:
            self._transport.close()


class SocketNetwork:
    """The machine's network, as the node with this address sees it."""

    def __init__(self, own_host: str = "") -> None:
        self._from = None if own_host in WILDCARDS else (own_host, 0)

    @property
    def most_connections(self) -> int | None:
        return connections_allowed()

    async def listen(self, host: str, port: int, new_protocol: Callable[[], asyncio.Protocol]) -> SocketListening:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(new_protocol, host, port, backlog=BACKLOG, start_serving=False)
        return SocketListening(server)

    async def connect(self, address: Address, new_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        host, port = address
        transport, _ = await loop.create_connection(new_protocol, host, port, local_addr=self._from)
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return transport

    async def datagrams(self, host: str, port: int, receive: Callable[[bytes, Address], None]) -> SocketDatagrams:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_datagram_endpoint(
            lambda: SocketDatagrams(receive), local_addr=(host or "0.0.0.0", port)
        )
        return protocol


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
