"""A network in virtual time: streams and datagrams between hosts, with everything that goes wrong on the way.

Rules:
- A stream keeps its order. What a cut holds back arrives after it has healed, or never, if the stream is reset.
- Cuts are one-way: what `cut(a, b)` stops is what a sends to b. Connecting needs both ways.
- A process that is killed resets its streams (the machine's system does that for it); a machine that loses its power
  sends nothing: its peers find out when they send something after it is back.
- A paused process takes nothing; its data waits, and senders are told to pause.
- Datagrams are lost, doubled, late and out of order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from headrace.core.ports import Address
from headrace.testing.sim.loop import OWNER, Owner, SimLoop

HIGH_WATER_BYTES = 256 * 1024
CONNECT_TRIES = 12
RETRY_SECONDS = 0.5


class SimTransport(asyncio.Transport):
    """One end of a stream."""

    def __init__(self, fabric: Fabric, owner: Owner, here: Address, there: Address) -> None:
        super().__init__({"sockname": here, "peername": there})
        self._fabric = fabric
        self.owner = owner
        self.here, self.there = here, there
        self.other: SimTransport | None = None
        self.protocol: asyncio.Protocol | None = None
        self.closed = False  # nothing more is sent or received on this side
        self.vanished = False  # its machine has lost its power
        self.silent = False  # its protocol has been told, or never will be
        self._reading = True
        self._inbox: deque[bytes] = deque()
        self._unread = 0  # bytes on the way to us, and waiting here
        self._paused_writing = False
        self._ended = False  # the other side has closed, and we have not told yet
        self.free_at = 0.0  # when the last thing that we sent arrives

    # -- the protocol's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed or not data:
            return
        content = bytes(data)
        other = self.other
        assert other is not None
        other._unread += len(content)
        if other._unread > HIGH_WATER_BYTES and not self._paused_writing:
            self._paused_writing = True
            if self.protocol is not None:
                self.protocol.pause_writing()
        self._fabric.carry(self, "data", content)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._fabric.carry(self, "end", b"")
            self._tell_lost(None)

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self._fabric.carry(self, "reset", b"")
            self._tell_lost(None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._fabric.soon(self.owner, self._drain)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The network's limit is the same for all."""

    def get_write_buffer_size(self) -> int:
        return self.other._unread if self.other is not None else 0

    # -- the fabric's side

    def arrive(self, kind: str, content: bytes) -> None:
        """Something has come over the wire. Runs as the network, not as the owner."""
        if self.vanished:
            self._answer_for_the_dead()
        elif self.closed:
            if kind == "data":
                self._answer_for_the_dead()
        elif kind == "reset":
            self.closed = True
            self._fabric.soon(self.owner, self._tell_lost, ConnectionResetError("reset by peer"))
        elif kind == "end":
            self._ended = True
            self._fabric.soon(self.owner, self._drain)
        else:
            self._inbox.append(content)
            self._fabric.soon(self.owner, self._drain)

    def _answer_for_the_dead(self) -> None:
        """The system knows no such stream: it resets."""
        if self._fabric.has_power(self.here[0]):
            self._fabric.carry(self, "reset", b"")
        else:
            self._fabric.unanswered.setdefault(self.here[0], {})[self] = None  # until what was sent is sent again

    def _drain(self) -> None:
        while self._inbox and self._reading and not self.closed and self.protocol is not None:
            content = self._inbox.popleft()
            self._unread -= len(content)
            self.protocol.data_received(content)
        if self._unread < HIGH_WATER_BYTES // 4 and self.other is not None and self.other._paused_writing:
            self.other._paused_writing = False
            self._fabric.soon(self.other.owner, self.other._resume)
        if self._ended and not self._inbox and not self.closed:
            self.closed = True
            self._tell_lost(None)

    def _resume(self) -> None:
        if not self.closed and self.protocol is not None:
            self.protocol.resume_writing()

    def _tell_lost(self, error: Exception | None) -> None:
        if not self.silent and self.protocol is not None:
            self.silent = True
            self._fabric.soon(self.owner, self.protocol.connection_lost, error)
        self._fabric.forget(self)


class SimListening:
    def __init__(self, fabric: Fabric, owner: Owner, address: Address, new_protocol: Callable[[], Any]) -> None:
        self._fabric = fabric
        self.owner = owner
        self.address = address
        self.new_protocol = new_protocol
        self.open = False
        self.port = address[1]

    async def start(self) -> None:
        self.open = True

    def close(self) -> None:
        self._fabric.listeners.pop(self.address, None)

    async def wait_closed(self) -> None: ...


class SimDatagrams:
    def __init__(
        self, fabric: Fabric, owner: Owner, address: Address, receive: Callable[[bytes, Address], None]
    ) -> None:
        self._fabric = fabric
        self.owner = owner
        self.address = address
        self.receive = receive

    def send(self, packet: bytes, to: Address) -> None:
        self._fabric.send_packet(self.address, to, packet)

    def close(self) -> None:
        self._fabric.packets.pop(self.address, None)


class SimNetwork:
    """The network as one host sees it; implements `core.ports.Network`."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric = fabric
        self._host = host

    @property
    def most_connections(self) -> None:
        """As many as anybody likes."""

    async def listen(self, host: str, port: int, new_protocol: Callable[[], asyncio.Protocol]) -> SimListening:
        fabric = self._fabric
        address = (self._host, port or fabric.free_port())
        if address in fabric.listeners:
            raise OSError(98, "Address already in use")
        listening = SimListening(fabric, _owner(), address, new_protocol)
        fabric.listeners[address] = listening
        return listening

    async def connect(self, address: Address, new_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        return await self._fabric.connect(self._host, _owner(), address, new_protocol)

    async def datagrams(self, host: str, port: int, receive: Callable[[bytes, Address], None]) -> SimDatagrams:
        address = (self._host, port or self._fabric.free_port())
        door = self._fabric.packets[address] = SimDatagrams(self._fabric, _owner(), address, receive)
        return door


class Fabric:
    """All hosts and what lies between them."""

    def __init__(self, loop: SimLoop, dice: Random) -> None:
        self._loop = loop
        self._dice = dice
        self._world = Owner("network")
        self._ports = 40_000
        self._cuts: dict[tuple[str, str], None] = {}
        self._waiting: dict[tuple[str, str], deque[tuple[SimTransport, str, bytes]]] = {}
        self._dark: dict[str, None] = {}
        self.listeners: dict[Address, SimListening] = {}
        self.packets: dict[Address, SimDatagrams] = {}
        self.streams: dict[SimTransport, None] = {}
        self.unanswered: dict[str, dict[SimTransport, None]] = {}  # by host: who was spoken to while it was dark
        self.delay_s = 0.0005  # the mean on top of it
        self.least_delay_s = 0.0002
        self.loss = 0.0  # of datagrams
        self.doubling = 0.0
        self.sent = 0

    # -- faults

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing that `sender` sends reaches `receiver`."""
        self._cuts[sender, receiver] = None

    def heal(self, sender: str, receiver: str) -> None:
        if self._cuts.pop((sender, receiver), 0) is None:
            for transport, kind, content in self._waiting.pop((sender, receiver), ()):
                self.carry(transport, kind, content)

    def heal_all(self) -> None:
        for sender, receiver in list(self._cuts):
            self.heal(sender, receiver)

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts

    def reset_streams(self, host: str, other: str | None = None) -> None:
        """Something on the way drops the streams of a host (to another): both ends are told."""
        for transport in list(self.streams):
            if transport.here[0] == host and other in (None, transport.there[0]) and transport.other is not None:
                for end in (transport, transport.other):
                    if not end.closed and not end.vanished:
                        end.closed = True
                        self.soon(end.owner, end._tell_lost, ConnectionResetError("reset on the way"))

    def process_died(self, owner: Owner) -> None:
        """kill -9: the system closes what the process had."""
        self._shut_doors(owner)
        for transport in list(self.streams):
            if transport.owner is owner and not transport.closed:
                transport.closed = transport.silent = True
                self.carry(transport, "reset", b"")
                self.forget(transport)

    def power_lost(self, owner: Owner, host: str) -> None:
        self._shut_doors(owner)
        self._dark[host] = None
        for held in self._waiting.values():  # what it would have sent again
            kept = [each for each in held if each[0].owner is not owner]
            held.clear()
            held.extend(kept)
        for transport in list(self.streams):
            if transport.owner is owner:
                transport.vanished = True
                self.forget(transport)

    def power_back(self, host: str) -> None:
        self._dark.pop(host, None)
        for transport in self.unanswered.pop(host, ()):
            self.carry(transport, "reset", b"")

    def has_power(self, host: str) -> bool:
        return host not in self._dark

    def _shut_doors(self, owner: Owner) -> None:
        self.listeners = {where: door for where, door in self.listeners.items() if door.owner is not owner}
        self.packets = {where: door for where, door in self.packets.items() if door.owner is not owner}

    # -- streams

    async def connect(
        self, host: str, owner: Owner, address: Address, new_protocol: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        for _ in range(CONNECT_TRIES):
            there = address[0]
            if not self.has_power(there) or self.is_cut(host, there) or self.is_cut(there, host):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(self._delay() + self._delay())
            if not self.has_power(there) or self.is_cut(host, there) or self.is_cut(there, host):
                continue
            listening = self.listeners.get(address)
            if listening is None or not listening.open:
                raise ConnectionRefusedError(111, "Connection refused")
            return self._join(host, owner, listening, new_protocol)
        raise TimeoutError(110, "Connection timed out")

    def _join(
        self, host: str, owner: Owner, listening: SimListening, new_protocol: Callable[[], asyncio.Protocol]
    ) -> SimTransport:
        here = (host, self.free_port())
        one = SimTransport(self, owner, here, listening.address)
        other = SimTransport(self, listening.owner, listening.address, here)
        one.other, other.other = other, one
        self.streams[one] = self.streams[other] = None
        one.protocol = new_protocol()
        self.soon(listening.owner, _accept, other, listening)
        one.protocol.connection_made(one)
        return one

    def carry(self, sender: SimTransport, kind: str, content: bytes) -> None:
        """Bring something to the other end, after what was sent before."""
        receiver = sender.other
        assert receiver is not None
        way = (sender.here[0], sender.there[0])
        if way in self._cuts:
            self._waiting.setdefault(way, deque()).append((sender, kind, content))
            return
        self.sent += 1
        sender.free_at = max(sender.free_at, self._loop.time() + self._delay())
        self._loop.call_at(sender.free_at, receiver.arrive, kind, content, context=self._world.context)

    def forget(self, transport: SimTransport) -> None:
        self.streams.pop(transport, None)

    def soon(self, owner: Owner, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(callback, *args, context=owner.context)

    # -- datagrams

    def send_packet(self, sender: Address, to: Address, packet: bytes) -> None:
        if self.is_cut(sender[0], to[0]):
            return
        copies = 1
        if self.loss and self._dice.random() < self.loss:
            copies = 0
        elif self.doubling and self._dice.random() < self.doubling:
            copies = 2
        for _ in range(copies):
            self.sent += 1
            self._loop.call_later(self._delay(), self._receive, sender, to, packet, context=self._world.context)

    def _receive(self, sender: Address, to: Address, packet: bytes) -> None:
        door = self.packets.get(to)
        if door is not None and not self.is_cut(sender[0], to[0]) and not door.owner.paused:
            self.soon(door.owner, door.receive, packet, sender)

    def _delay(self) -> float:
        return self.least_delay_s + self._dice.expovariate(1.0) * self.delay_s

    def free_port(self) -> int:
        self._ports += 1
        return self._ports


def _accept(transport: SimTransport, listening: SimListening) -> None:
    if transport.closed or transport.vanished:
        return
    protocol = transport.protocol = listening.new_protocol()
    protocol.connection_made(transport)
    transport._drain()


def _owner() -> Owner:
    owner = OWNER.get()
    assert owner is not None, "the network is used by somebody's process"
    return owner
