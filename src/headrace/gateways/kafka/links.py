"""Requests to other nodes, over connections that begin with `hello`.

Rules:
- One connection per node and lane, made when it is first needed. Requests are pipelined and told apart by correlation
  ids of ours: callers may use whatever ids they like, and get them back.
- A call ends: with the answer, or as a LinkError at its deadline, when the connection is lost, or when no connection
  could be made. Then nobody knows what became of the request. Nothing is sent twice.
- After a connection that could not be made, calls wait until the next attempt (back-off with jitter). When an attempt
  fails, everybody who waits is told: queues do not outlive an attempt.
- A connection that the other side ends is made again at once, needed or not: so it is known soon whether anybody is
  still there. `on_contact` hears of nodes' connections that are made, lost, or refused.
- A deadline that passes while nothing at all came in ends the connection: what is half dead is made anew.
- What waits and what is under way is bounded per lane, in calls and in bytes.
- The node's address is looked up for every connection; a node that has moved is called at its new address.
- What a node understands is what its last handshake has agreed on. Who makes a frame asks for it (`version`); a frame
  that a node does not understand after all ends as a LinkError.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from headrace.core.errors import LinkError, ProtocolError
from headrace.core.limits import FRAME_BYTES
from headrace.core.logs import REQUEST
from headrace.core.ports import Contact
from headrace.gateways.kafka import hello
from headrace.gateways.kafka.hello import Caller, Membership, RefusedError
from headrace.wire.frames import FrameSplitter

if TYPE_CHECKING:
    from headrace.core.ports import Address, Dice, Network

logger = logging.getLogger(__name__)

CALLS_PER_LANE: Final = 1024
BYTES_PER_LANE: Final = 64 * 1024 * 1024
CONNECT_SECONDS: Final = 3.0  # until we are welcome
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 1.0  # between connections that nobody has asked for

_HELLO_HEADER: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")


@dataclass(slots=True, eq=False)
class Call:
    """One request, from its beginning to its answer."""

    frame: bytes
    answer: asyncio.Future[bytes]
    timer: asyncio.TimerHandle | None = None
    sent_at: float | None = None


class Stream(asyncio.Protocol):
    """One connection to a node: the handshake, then frames both ways."""

    def __init__(self, link: Link, membership: Membership, dice: Dice) -> None:
        self._link = link
        self._membership = membership
        self._dice = dice
        self._splitter = FrameSplitter(hello.MESSAGE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._caller: Caller | None = None
        self._next_id = 0
        self._calls: deque[tuple[int, Call]] = deque()  # under way, in the order of the answers
        self.heard_at = 0.0

    @property
    def welcome(self) -> bool:
        return self._caller is not None and self._caller.done

    @property
    def under_way(self) -> int:
        return len(self._calls)

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        local = hello.both_local(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        self._caller = Caller(self._membership, self._dice.randbytes, target_id=self._link.node_id, local=local)
        try:
            self._send(_hello_frame(self._caller.hello()))
        except RefusedError as error:
            self._give_up(str(error))

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._link.now()
        try:
            for frame in self._splitter.feed(data):
                if self._caller is not None and not self._caller.done:
                    self._greeted(self._caller, frame)
                else:
                    self._answered(frame)
        except (ProtocolError, RefusedError) as error:
            self._give_up(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        reason = f"the connection was lost ({exc})" if exc is not None else "the connection was closed"
        self._link.lost(self, reason, by_peer=True)

    def _greeted(self, caller: Caller, frame: bytes) -> None:
        answer = caller.answer(frame[_CORRELATION.size :])
        if answer is not None:
            self._send(_hello_frame(answer))
            return
        self._splitter.max_frame_bytes = FRAME_BYTES
        self._link.welcomed(self)

    def _answered(self, frame: bytes) -> None:
        if len(frame) < _CORRELATION.size or not self._calls:
            raise ProtocolError("an answer that nobody waits for")
        number, call = self._calls.popleft()
        if _CORRELATION.unpack_from(frame)[0] != number:
            raise ProtocolError("an answer out of its turn")
        if not call.answer.done():
            call.answer.set_result(call.frame[4:8] + frame[4:])
        self._link.finished(call)

    # -- the link's side

    def send(self, call: Call) -> None:
        number = self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        frame = call.frame
        call.sent_at = self._link.now()
        self._calls.append((number, call))
        self._send(
            b"".join((len(frame).to_bytes(4, "big"), frame[:4], _CORRELATION.pack(number), memoryview(frame)[8:]))
        )

    def agree(self, versions: dict[int, int]) -> None:
        """Note what we and the node understand."""
        assert self._caller is not None and self._caller.peer is not None
        versions[self._caller.peer] = self._caller.version

    def take_calls(self) -> list[Call]:
        calls = [call for _, call in self._calls]
        self._calls.clear()
        return calls

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send(self, content: bytes) -> None:
        if self._transport is not None:
            self._transport.write(content)

    def _give_up(self, reason: str) -> None:
        self._link.lost(self, reason)
        self.abort()


class Link:
    """One lane to one node."""

    def __init__(self, links: PeerLinks, node_id: int, name: str, locate: Callable[[], Address | None]) -> None:
        self._links = links
        self._locate = locate
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Call, None] = {}
        self._held_calls = 0
        self._held_bytes = 0
        self._stream: Stream | None = None
        self._address: Address | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._pause = 0.0  # before the next attempt
        self._probe_after = 0.0
        self._closed = False
        self.node_id = node_id

    def now(self) -> float:
        return self._loop.time()

    async def call(self, frame: bytes, timeout_s: float) -> bytes:
        if self._closed:
            raise self._error("this node is stopping")
        if self._held_calls >= CALLS_PER_LANE or self._held_bytes + len(frame) > BYTES_PER_LANE:
            raise self._error("too much is under way already")
        call = Call(frame, self._loop.create_future())
        self._held_calls += 1
        self._held_bytes += len(frame)
        call.timer = self._loop.call_later(timeout_s, self._expired, call, timeout_s)
        stream = self._stream
        if stream is not None and stream.welcome and not self._has_moved():
            stream.send(call)
        else:
            self._waiting[call] = None
            self._attempt_if_due()
        try:
            return await call.answer
        finally:
            if call.timer is not None:
                call.timer.cancel()
            if call in self._waiting:
                del self._waiting[call]
                self.finished(call)

    def close(self) -> None:
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._stream is not None:
            self._stream.abort()
            self.lost(self._stream, "this node is stopping")
        self._fail_waiting("this node is stopping")

    # -- connecting

    def _has_moved(self) -> bool:
        address = self._locate()
        if address is None or address == self._address:
            return False
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
            self._fail(stream.take_calls(), "the node has moved")
        return True

    def _attempt_if_due(self, *, probe: bool = False) -> None:
        if (self._waiting or probe) and self._attempt is None and self._stream is None and not self._closed:
            self._attempt = self._loop.create_task(self._connect(), name=f"link-{self._name}")

    async def _connect(self) -> None:
        REQUEST.set(None)  # what is logged here is not about the request that happens to need the link first
        try:
            if self._pause:
                await asyncio.sleep(self._pause * (0.5 + self._links.dice.random()))
            address = self._locate()
            if address is None:
                self._failed("its address is not known")
                return
            self._address = address
            links = self._links
            made: list[Stream] = []

            def new_stream() -> Stream:
                made.append(Stream(self, links.membership, links.dice))
                self._stream = made[-1]
                return made[-1]

            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await links.network.connect(address, new_stream)
            except (OSError, TimeoutError, ValueError) as error:  # a host that cannot be a name is a ValueError
                reason = f"no connection to {address[0]}:{address[1]} ({str(error) or 'timed out'})"
                self._failed(reason)
                if isinstance(error, ConnectionRefusedError):
                    links.tell(self.node_id, Contact.REFUSED)
                return
            self._loop.call_later(CONNECT_SECONDS, self._must_be_welcome, self._stream)
        finally:
            self._attempt = None
            self._attempt_if_due()  # for calls that came after this one had failed

    def _must_be_welcome(self, stream: Stream | None) -> None:
        if stream is not None and stream is self._stream and not stream.welcome:
            stream.abort()
            self.lost(stream, "the handshake took too long")

    def welcomed(self, stream: Stream) -> None:
        if stream is not self._stream:
            stream.abort()
            return
        self._pause = 0.0
        self._links.refusals.pop(self._name, None)
        stream.agree(self._links.agreed)
        self._links.tell(self.node_id, Contact.MADE)
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            if call.answer.done():
                self.finished(call)
            else:
                stream.send(call)

    def lost(self, stream: Stream, reason: str, *, by_peer: bool = False) -> None:
        """The stream has ended; the handshake may have been under way."""
        if stream is self._stream:
            self._stream = None
            if not stream.welcome:
                self._failed(reason)
            elif by_peer:
                self._probe()
        self._fail(stream.take_calls(), reason)

    def _probe(self) -> None:
        """A process that was killed leaves a machine that refuses: one attempt tells."""
        self._links.tell(self.node_id, Contact.LOST)
        if self.node_id != hello.ANYBODY and self.now() >= self._probe_after:
            self._probe_after = self.now() + PROBE_SECONDS
            self._attempt_if_due(probe=True)

    def _failed(self, reason: str) -> None:
        self._stream = None
        self._pause = min(LONGEST_PAUSE_SECONDS, self._pause * 2 or FIRST_PAUSE_SECONDS)
        self._links.complain(self._name, reason)
        self._fail_waiting(reason)

    # -- the end of calls

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        self._fail(list(waiting), reason)

    def _fail(self, calls: list[Call], reason: str) -> None:
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(self._error(reason))
            self.finished(call)

    def finished(self, call: Call) -> None:
        """Its answer came, or never will: its room is free."""
        self._held_calls -= 1
        self._held_bytes -= len(call.frame)

    def _expired(self, call: Call, timeout_s: float) -> None:
        if call.answer.done():
            return
        call.answer.set_exception(self._error(f"no answer within {timeout_s:g} s"))
        stream = self._stream
        if stream is not None and call.sent_at is not None and stream.heard_at <= call.sent_at:
            stream.abort()
            self.lost(stream, "it has fallen silent")

    def _error(self, reason: str) -> LinkError:
        return LinkError(f"{self._name}: {reason}")


class PeerLinks:
    """See the module; implements `core.ports.Links`."""

    def __init__(
        self,
        network: Network,
        membership: Membership,
        address_of: Callable[[int], Address | None],
        dice: Dice,
    ) -> None:
        self.network = network
        self.membership = membership
        self.dice = dice
        self.refusals: dict[str, str] = {}  # by link: what was last wrong with it
        self.agreed: dict[int, int] = {}  # by node: the version of the last handshake
        self.on_contact: Callable[[int, Contact], None] | None = None
        self._address_of = address_of
        self._links: dict[tuple[int | Address, str], Link] = {}
        self._closed = False

    async def call(self, node_id: int, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        link = self._links.get((node_id, lane))
        if link is None:
            link = self._new_link((node_id, lane), node_id, f"node {node_id}", lambda: self._address_of(node_id))
        return await link.call(frame, timeout_s)

    async def call_address(self, address: Address, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        """Call whoever of the cluster lives at an address."""
        link = self._links.get((address, lane))
        if link is None:
            name = f"the node at {address[0]}:{address[1]}"
            link = self._new_link((address, lane), hello.ANYBODY, name, lambda: address)
        return await link.call(frame, timeout_s)

    def version(self, node_id: int) -> int:
        return self.agreed.get(node_id, self.membership.versions[0])

    def forget(self, node_id: int) -> None:
        """The node has left for good: close its connections."""
        self.agreed.pop(node_id, None)
        for key in [key for key in self._links if key[0] == node_id]:
            self._links.pop(key).close()

    def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _new_link(
        self, key: tuple[int | Address, str], node_id: int, who: str, locate: Callable[[], Address | None]
    ) -> Link:
        if self._closed:
            raise LinkError(f"{who}: this node is stopping")
        link = self._links[key] = Link(self, node_id, f"{who}, {key[1]}", locate)
        return link

    def tell(self, node_id: int, contact: Contact) -> None:
        if self.on_contact is not None and node_id != hello.ANYBODY and not self._closed:
            self.on_contact(node_id, contact)

    def complain(self, name: str, reason: str) -> None:
        """Log a fault once, not at every attempt."""
        if self.refusals.get(name) != reason:
            self.refusals[name] = reason
            logger.warning("a node cannot be reached", extra={"link": name, "reason": reason})


def _hello_frame(message: bytes) -> bytes:
    header = _HELLO_HEADER.pack(hello.API_KEY, hello.API_VERSION, 0, -1)
    return (len(header) + len(message)).to_bytes(4, "big") + header + message
