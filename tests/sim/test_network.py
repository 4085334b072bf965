"""The simulated network: order, cuts, resets, power, back-pressure, datagrams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from headrace.testing.sim.loop import Owner, SimLoop
from headrace.testing.sim.network import HIGH_WATER_BYTES, Fabric, SimNetwork

ADDRESS = ("b", 9092)


class End(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard = b""
        self.transport: Any = None
        self.lost: list[Exception | None] = []
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True


class Stage:
    """Hosts a and b, and a stream from a to b."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.fabric = Fabric(self.loop, Random(1))
        self.owners = {"a": Owner("a"), "b": Owner("b")}
        self.near, self.far = End(), End()

    async def at(self, host: str, work: Callable[[SimNetwork], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work(SimNetwork(self.fabric, host))

        return await self.owners[host].context.run(self.loop.create_task, run())

    async def listen(self) -> None:
        listening = await self.at("b", lambda network: network.listen("b", 9092, lambda: self.far))
        await listening.start()

    async def connect(self) -> None:
        await self.listen()
        await self.at("a", lambda network: network.connect(ADDRESS, lambda: self.near))
        await asyncio.sleep(1)


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    stage = Stage()
    stage.loop.run_until_complete(scene(stage))


def test_a_stream_keeps_its_order() -> None:
    async def scene(stage: Stage) -> None:
        await stage.connect()
        for number in range(100):
            stage.near.transport.write(b"%d," % number)
            await asyncio.sleep(0.0001)
        await asyncio.sleep(1)
        assert stage.far.heard == b"".join(b"%d," % number for number in range(100))

    play(scene)


def test_nobody_listening_refuses_and_a_cut_times_out() -> None:
    async def scene(stage: Stage) -> None:
        outcomes = []
        for cut in (False, True):
            if cut:
                stage.fabric.cut("b", "a")
            try:
                await stage.at("a", lambda network: network.connect(ADDRESS, End))
            except OSError as error:
                outcomes.append(type(error))
        assert outcomes == [ConnectionRefusedError, TimeoutError]

    play(scene)


def test_what_a_cut_holds_back_arrives_when_it_heals_and_only_one_way_is_cut() -> None:
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.fabric.cut("a", "b")
        stage.near.transport.write(b"held")
        stage.far.transport.write(b"through")
        await asyncio.sleep(10)
        assert (stage.far.heard, stage.near.heard) == (b"", b"through")
        stage.fabric.heal("a", "b")
        stage.near.transport.write(b" and more")
        await asyncio.sleep(1)
        assert stage.far.heard == b"held and more"

    play(scene)


def test_a_killed_process_resets_its_streams() -> None:
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.loop.kill(stage.owners["b"])
        stage.fabric.process_died(stage.owners["b"])
        await asyncio.sleep(1)
        assert isinstance(stage.near.lost[0], ConnectionResetError) and stage.far.lost == []

    play(scene)


def test_a_machine_without_power_is_silent_until_it_is_spoken_to_after_it_is_back() -> None:
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.loop.kill(stage.owners["b"])
        stage.fabric.power_lost(stage.owners["b"], "b")
        stage.near.transport.write(b"anybody there?")
        await asyncio.sleep(10)
        assert stage.near.lost == []
        stage.fabric.power_back("b")
        await asyncio.sleep(1)
        assert isinstance(stage.near.lost[0], ConnectionResetError)

    play(scene)


def test_who_does_not_read_slows_the_sender_down() -> None:
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.far.transport.pause_reading()
        stage.near.transport.write(bytes(HIGH_WATER_BYTES + 1))
        await asyncio.sleep(1)
        assert not stage.near.writable and stage.far.heard == b""
        stage.far.transport.resume_reading()
        await asyncio.sleep(1)
        assert stage.near.writable and len(stage.far.heard) == HIGH_WATER_BYTES + 1

    play(scene)


def test_a_closed_stream_delivers_what_was_written_before() -> None:
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.near.transport.write(b"last words")
        stage.near.transport.close()
        await asyncio.sleep(1)
        assert stage.far.heard == b"last words" and stage.far.lost == [None] and stage.near.lost == [None]

    play(scene)


def test_datagrams_are_lost_and_doubled() -> None:
    async def scene(stage: Stage) -> None:
        heard: list[bytes] = []
        await stage.at("b", lambda network: network.datagrams("b", 7, lambda packet, _: heard.append(packet)))
        door = await stage.at("a", lambda network: network.datagrams("a", 7, lambda packet, _: None))
        stage.fabric.loss, stage.fabric.doubling = 0.3, 0.3
        for number in range(300):
            door.send(b"%d" % number, ("b", 7))
        await asyncio.sleep(1)
        kinds = {packet: heard.count(packet) for packet in heard}
        assert 150 < len(kinds) < 270 and 2 in kinds.values() and heard != sorted(heard, key=int)

    play(scene)
