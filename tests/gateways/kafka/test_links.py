"""Links between nodes over real sockets: an embedded broker, nodes that stall, lie, close and move."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.app import Node
from headrace.core.errors import LinkError
from headrace.core.ports import Address, Contact
from headrace.gateways.kafka import hello, links
from headrace.gateways.kafka.hello import Answerer, Membership
from headrace.gateways.kafka.links import PeerLinks
from headrace.runtime.dice import SystemDice
from headrace.runtime.network import SocketNetwork
from headrace.settings import load
from headrace.testing.peer import payload
from headrace.wire.messages import decode_response

DICE = SystemDice()
HOST = "127.0.0.1"
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow we are, connections are made in time."""
    monkeypatch.setattr(links, "CONNECT_SECONDS", PATIENCE_S)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 100)

    asyncio.run(bounded())


def new_links(addresses: dict[int, Address], us: Membership, network: SocketNetwork | None = None) -> PeerLinks:
    return PeerLinks(network or SocketNetwork(HOST), us, addresses.get, DICE)


class Stub(asyncio.Protocol):
    """A node that believes everybody who proves, and answers as the test says."""

    def __init__(self, us: Membership, answer: Callable[[bytes], bytes | None], greet: bool = True) -> None:
        self._answerer = Answerer(us, DICE.randbytes, local=True)
        self._answer = answer
        self._greet = greet
        self._held = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= 4 and len(self._held) >= 4 + (size := int.from_bytes(self._held[:4], "big")):
            frame, self._held = self._held[4 : 4 + size], self._held[4 + size :]
            if struct.unpack_from(">h", frame)[0] == hello.API_KEY:
                if self._greet:
                    self.send(frame[4:8] + self._answerer.answer(frame[10:]))
            elif (answer := self._answer(frame)) is not None:
                self.send(answer)

    def send(self, frame: bytes) -> None:
        self.transport.write(len(frame).to_bytes(4, "big") + frame)


@asynccontextmanager
async def stub(
    answer: Callable[[bytes], bytes | None],
    *,
    greet: bool = True,
    node_id: int = 2,
    us: Membership | None = None,
) -> AsyncIterator[tuple[Address, list[Stub]]]:
    made: list[Stub] = []

    def new() -> Stub:
        made.append(Stub(us or Membership(node_id, "c", "s"), answer, greet))
        return made[-1]

    listening = await SocketNetwork(HOST).listen(HOST, 0, new)
    await listening.start()
    try:
        yield (HOST, listening.port), made
    finally:
        listening.close()
        for each in made:
            if each.transport is not None:
                each.transport.abort()


def echo(frame: bytes) -> bytes:
    return frame[4:8] + frame[8:]


def request(number: int, text: bytes = b"") -> bytes:
    return struct.pack(">hhi", 3, 0, number) + text


@asynccontextmanager
async def broker(**settings: str) -> AsyncIterator[Node]:
    flags = {"storage.kind": "memory", "kafka.port": "0", "http.enabled": "false"}
    node = Node(load(flags={**flags, **{name.replace("__", "."): value for name, value in settings.items()}}).settings)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def test_a_real_broker_answers_a_node_that_has_proved_itself():
    async def test() -> None:
        async with broker() as node:
            where = (HOST, node.addresses.kafka_port)
            ours = new_links({1: where}, Membership(9, node.service.cluster_id))
            answer = await ours.call(1, payload(18, 0, {}, 77), lane="control", timeout_s=PATIENCE_S)
            assert int.from_bytes(answer[:4], "big") == 77
            assert decode_response(18, 0, answer, 4).api_keys
            ours.close()

    run(test)


def test_a_real_broker_tells_a_stranger_why_it_is_refused():
    async def test() -> None:
        async with broker() as node:
            where = (HOST, node.addresses.kafka_port)
            ours = new_links({1: where}, Membership(9, "another-cluster"))
            with pytest.raises(LinkError, match="belongs to cluster"):
                await ours.call(1, payload(18, 0, {}), lane="control", timeout_s=PATIENCE_S)
            ours.close()

    run(test)


def test_a_node_does_not_count_among_the_clients_of_its_address():
    async def test() -> None:
        async with broker(kafka__max_connections_per_ip="1") as node:
            where = (HOST, node.addresses.kafka_port)
            ours = new_links({1: where}, Membership(9, node.service.cluster_id))
            for lane in ("a", "b", "c"):
                await ours.call(1, payload(18, 0, {}), lane=lane, timeout_s=PATIENCE_S)
            ours.close()

    run(test)


def test_what_a_node_understands_is_what_its_last_handshake_says():
    """A node of an older release is upgraded, and goes back."""

    async def test() -> None:
        release = Membership(2, "c", "s", versions=(1, 1))
        async with stub(echo, us=release) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s", versions=(1, 3)))
            assert ours.version(2) == 1, "nothing is known: the oldest"

            async def restart(*versions: int) -> None:
                release.versions = (versions[0], versions[1])
                link = ours._links[2, "a"]
                before = link._stream
                made[-1].transport.abort()
                await until(lambda: link._stream is not before)

            await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            assert ours.version(2) == 1
            for newest, spoken in ((2, 2), (4, 3), (1, 1)):
                await restart(1, newest)
                await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
                assert ours.version(2) == spoken
            await restart(4, 5)
            with pytest.raises(LinkError):
                await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            assert any("upgrade by one release" in reason or "closed" in reason for reason in ours.refusals.values())
            ours.close()

    run(test)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_calls_of_a_lane_are_pipelined_and_keep_their_own_ids():
    async def test() -> None:
        async with stub(echo) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            answers = await asyncio.gather(
                *(ours.call(2, request(5, b"%d" % each), lane="a", timeout_s=PATIENCE_S) for each in range(50))
            )
            assert answers == [struct.pack(">i", 5) + b"%d" % each for each in range(50)]
            assert len(made) == 1
            ours.close()

    run(test)


def test_lanes_do_not_wait_for_each_other():
    async def test() -> None:
        async with stub(lambda frame: None if frame[8:] == b"slow" else echo(frame)) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            slow = asyncio.create_task(ours.call(2, request(1, b"slow"), lane="a", timeout_s=PATIENCE_S))
            assert (await ours.call(2, request(2, b"x"), lane="b", timeout_s=PATIENCE_S))[4:] == b"x"
            assert not slow.done() and len(made) == 2
            ours.close()
            with pytest.raises(LinkError, match="stopping"):
                await slow

    run(test)


def test_a_call_ends_at_its_deadline_and_the_silent_connection_with_it():
    async def test() -> None:
        async with stub(lambda frame: echo(frame) if frame[8:] == b"ok" else None) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            assert await ours.call(2, request(1, b"ok"), lane="a", timeout_s=PATIENCE_S)
            with pytest.raises(LinkError, match=r"within 0\.05 s"):
                await ours.call(2, request(1), lane="a", timeout_s=0.05)
            assert await ours.call(2, request(1, b"ok"), lane="a", timeout_s=PATIENCE_S)
            assert len(made) == 2
            ours.close()

    run(test)


def test_a_late_answer_is_not_taken_for_that_of_the_next_call():
    async def test() -> None:
        held: list[bytes] = []

        def answer(frame: bytes) -> bytes | None:
            if frame[8:] == b"ping":
                return echo(frame)
            held.append(frame)
            return None

        async with stub(answer) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            late = asyncio.create_task(ours.call(2, request(1, b"late"), lane="a", timeout_s=PATIENCE_S))
            await until(lambda: bool(held))
            late.cancel()
            after = asyncio.create_task(ours.call(2, request(2, b"ping"), lane="a", timeout_s=PATIENCE_S))
            await asyncio.sleep(0.01)
            made[0].transport.write(b"")
            # The answers change places: the second one comes first, and must not be believed.
            with pytest.raises(LinkError, match="out of its turn"):
                await after
            ours.close()

    run(test)


def test_whoever_closes_in_the_middle_fails_what_was_under_way_and_is_called_anew():
    async def test() -> None:
        held: list[bytes] = []
        async with stub(lambda frame: echo(frame) if frame[8:] == b"ok" else held.append(frame)) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            first = asyncio.create_task(ours.call(2, request(1, b"lost"), lane="a", timeout_s=PATIENCE_S))
            assert await ours.call(2, request(1, b"ok"), lane="b", timeout_s=PATIENCE_S)
            await until(lambda: bool(held))
            assert len(made) == 2
            for each in made:
                each.transport.abort()
            with pytest.raises(LinkError):
                await first
            assert (await ours.call(2, request(1, b"ok"), lane="a", timeout_s=PATIENCE_S))[4:] == b"ok"
            ours.close()

    run(test)


def test_a_killed_node_is_known_by_its_refusal_though_nobody_calls_it():
    async def test() -> None:
        heard: list[tuple[int, Contact]] = []
        async with stub(echo) as (where, _):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            ours.on_contact = lambda node, contact: heard.append((node, contact))
            await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            await ours.call_address(where, request(1), lane="a", timeout_s=PATIENCE_S)
            assert heard == [(2, Contact.MADE)]
        while len(heard) < 3:
            await asyncio.sleep(0.001)
        assert heard == [(2, Contact.MADE), (2, Contact.LOST), (2, Contact.REFUSED)]
        ours.close()

    run(test)


def test_a_node_that_hangs_up_is_called_again_once_and_not_again_and_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "PROBE_SECONDS", 1000.0)  # however slow we are, the second loss comes too soon

    async def test() -> None:
        heard: list[Contact] = []
        async with stub(echo) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            ours.on_contact = lambda _, contact: heard.append(contact)
            await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            made[0].transport.abort()
            while heard != [Contact.MADE, Contact.LOST, Contact.MADE]:
                await asyncio.sleep(0.001)
            made[1].transport.abort()
            while heard != [Contact.MADE, Contact.LOST, Contact.MADE, Contact.LOST]:
                await asyncio.sleep(0.001)
            assert len(made) == 2
            assert await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            ours.close()

    run(test)


def test_nobody_at_the_address_is_an_error_at_once():
    async def test() -> None:
        with socket.socket() as taken:  # nobody else gets the port, and nobody listens
            taken.bind((HOST, 0))
            ours = new_links({2: taken.getsockname()}, Membership(1, "c", "s"))
            for _ in range(3):
                with pytest.raises(LinkError, match="no connection"):
                    await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            with pytest.raises(LinkError, match="not known"):
                await ours.call(3, request(1), lane="a", timeout_s=PATIENCE_S)
            ours.close()

    run(test)


def test_a_host_that_cannot_be_a_name_is_an_error_at_once_and_not_tried_all_the_time():
    async def test() -> None:
        attempts = 0

        class Network(SocketNetwork):
            async def connect(self, *arguments: Any) -> asyncio.Transport:
                nonlocal attempts
                attempts += 1
                return await super().connect(*arguments)

        ours = new_links({2: ("a..b", 9092)}, Membership(1, "c", "s"), Network(HOST))
        with pytest.raises(LinkError, match="no connection to a..b:9092"):
            await ours.call(2, b"\0" * 10, lane="control", timeout_s=PATIENCE_S)
        assert attempts == 1
        ours.close()

    run(test)


def test_a_node_that_moved_is_called_at_its_new_address():
    async def test() -> None:
        async with stub(echo) as (old, _), stub(lambda frame: echo(frame) + b"!") as (new, _):
            addresses = {2: old}
            ours = new_links(addresses, Membership(1, "c", "s"))
            assert (await ours.call(2, request(1, b"x"), lane="a", timeout_s=PATIENCE_S))[4:] == b"x"
            addresses[2] = new
            assert (await ours.call(2, request(1, b"x"), lane="a", timeout_s=PATIENCE_S))[4:] == b"x!"
            ours.close()

    run(test)


def test_another_node_at_the_address_is_not_taken_for_the_one_that_was_called():
    async def test() -> None:
        async with broker() as node:
            where = (HOST, node.addresses.kafka_port)
            ours = new_links({4: where}, Membership(9, node.service.cluster_id))
            with pytest.raises(LinkError, match="looks for node 4"):
                await ours.call(4, payload(18, 0, {}), lane="a", timeout_s=PATIENCE_S)
            answer = await ours.call_address(where, payload(18, 0, {}), lane="a", timeout_s=PATIENCE_S)
            assert answer
            ours.close()

    run(test)


def test_a_handshake_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch):
    class Network(SocketNetwork):
        async def connect(self, *arguments: Any) -> asyncio.Transport:
            made = await super().connect(*arguments)
            monkeypatch.setattr(links, "CONNECT_SECONDS", 0.05)  # from now on
            return made

    async def test() -> None:
        async with stub(echo, greet=False) as (where, _):
            ours = new_links({2: where}, Membership(1, "c", "s"), Network(HOST))
            with pytest.raises(LinkError, match="handshake"):
                await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            ours.close()

    run(test)


def test_a_lane_holds_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "CALLS_PER_LANE", 3)

    async def test() -> None:
        async with stub(lambda frame: None) as (where, _):
            ours = new_links({2: where}, Membership(1, "c", "s"))
            tasks = [asyncio.create_task(ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(LinkError, match="too much"):
                await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            ours.close()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, LinkError) for each in ended)

    run(test)


def test_calls_leave_from_the_nodes_own_address():
    async def test() -> None:
        async with stub(echo) as (where, made):
            ours = new_links({2: where}, Membership(1, "c", "s"), SocketNetwork("127.0.0.5"))
            await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
            assert made[0].transport.get_extra_info("peername")[0] == "127.0.0.5"
            ours.close()

    run(test)


@pytest.mark.parametrize("noise", [b"\xff" * 64, struct.pack(">i", 5) + b"hello", struct.pack(">i", 1 << 30)])
def test_an_answerer_that_speaks_nonsense_is_hung_up_on(noise: bytes):
    async def test() -> None:
        class Liar(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                transport.write(noise)

        listening = await SocketNetwork(HOST).listen(HOST, 0, Liar)
        await listening.start()
        ours = new_links({2: (HOST, listening.port)}, Membership(1, "c", "s"))
        with pytest.raises(LinkError):
            await ours.call(2, request(1), lane="a", timeout_s=PATIENCE_S)
        ours.close()
        listening.close()

    run(test)
