"""The network between the nodes of a cluster, to be cut: every connection to a node goes through here.

    board = Switchboard({1: ("127.0.0.11", 9093), ...})   node -> where it really listens
    board.start()
    board.addresses[1]                                     where node 1 says that it is
    board.isolate(1); board.cut(1, 2); board.heal()

Nodes are told apart by the address that their connections come from: node N's own. What is cut is not refused: bytes
stop, in both directions, and new connections are accepted and hear nothing, as behind a router that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Self

from headrace.runtime.thread import LoopThread

CLIENTS = -1  # whoever is not a node
CHUNK = 65_536
Address = tuple[str, int]


class Switchboard:
    """See the module."""

    def __init__(self, targets: Mapping[int, Address]) -> None:
        self.addresses: dict[int, Address] = {}
        self._targets = dict(targets)
        self._nodes = {host: node for node, (host, _) in targets.items()}
        self._cuts: set[frozenset[int]] = set()
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._servers: list[asyncio.Server] = []
        self._healed: asyncio.Event | None = None

    def start(self) -> Self:
        self._thread = LoopThread("switchboard")
        self._thread.run(self._open(), 30)
        return self

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._close(), 30)
            thread.close()

    def retarget(self, node: int, target: Address) -> None:
        """The node listens elsewhere now."""
        self._targets[node] = target

    def cut(self, one: int, other: int) -> None:
        with self._lock:
            self._cuts.add(frozenset((one, other)))

    def isolate(self, node: int, *, clients: bool = True) -> None:
        """Cut a node off from all other nodes, and from clients."""
        for other in [*self._targets, *([CLIENTS] if clients else [])]:
            if other != node:
                self.cut(node, other)

    def heal(self) -> None:
        with self._lock:
            self._cuts.clear()
        thread, healed = self._thread, self._healed
        if thread is not None and healed is not None:
            thread.run(_set(healed), 30)

    def _is_cut(self, one: int, other: int) -> bool:
        with self._lock:
            return frozenset((one, other)) in self._cuts

    async def _open(self) -> None:
        self._healed = asyncio.Event()
        for node, (host, _) in self._targets.items():
            server = await asyncio.start_server(partial(self._connect, node), host, 0)
            self._servers.append(server)
            self.addresses[node] = (host, server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # what was accepted has begun, and ends by itself when it is cancelled
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for sockets to be closed

    async def _connect(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source_host = writer.get_extra_info("peername")[0]
        source = self._nodes.get(source_host, CLIENTS)
        far_writer: asyncio.StreamWriter | None = None
        try:
            await self._pass(source, node)
            host, port = self._targets[node]
            # From the caller's own address, where it has one: the node shall know who calls.
            local = (source_host, 0) if source != CLIENTS else None
            far_reader, far_writer = await asyncio.open_connection(host, port, local_addr=local)
            await asyncio.gather(
                self._pump(reader, far_writer, source, node), self._pump(far_reader, writer, source, node)
            )
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or all is over
        finally:
            for each in (writer, far_writer):
                if each is not None:
                    each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int, node: int) -> None:
        while chunk := await reader.read(CHUNK):
            await self._pass(source, node)
            writer.write(chunk)
            await writer.drain()
        raise ConnectionError("one side has closed")

    async def _pass(self, source: int, node: int) -> None:
        """Wait while the way is cut."""
        assert self._healed is not None
        while self._is_cut(source, node):
            self._healed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._healed.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


async def _set(event: asyncio.Event) -> None:
    event.set()
