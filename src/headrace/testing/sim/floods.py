"""Clients without manners: some send hundreds of requests at once, some never read their answers.

Rules:
- A request costs its node time here: while it is being answered, nothing else of that node happens (`SimLoop.spend`).
  So a node that answers a whole flood before it looks at anybody else is seen in virtual time.
- Another client's small request is answered within PATIENCE_S all the same, and no node is taken for dead.
- What a node holds for a connection is bounded: answers that nobody reads are not made without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from headrace.apis import TABLE
from headrace.testing.peer import frame, header
from headrace.testing.sim.clients import FETCH, LIST_OFFSETS, METADATA, Client, Unknown
from headrace.testing.sim.history import Violation
from headrace.testing.sim.loop import Owner, SimLoop
from headrace.testing.sim.network import SimNetwork, SimTransport
from headrace.testing.sim.program import Program
from headrace.wire.messages import encode_request

if TYPE_CHECKING:
    from headrace.apis.api import Api
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World

COST_S: Final = {METADATA[0]: 0.002, LIST_OFFSETS[0]: 0.002, FETCH[0]: 0.0002}
FLOOD: Final = 400  # requests at once: most of a second
PATIENCE_S: Final = 0.25
UNREAD: Final = 1500  # requests of a client that reads no answer
BYTES_PER_CONNECTION: Final = 3 * 1024 * 1024


class Rude(asyncio.Protocol):
    """Sends what it is given, as fast as it may; reads, or does not."""

    def __init__(self, reads: bool) -> None:
        self._reads = reads
        self.transport: Any = None
        self.received = 0
        self.open = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.open = True
        if not self._reads:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._may_write.set()

    async def send(self, frames: list[bytes], at_once: int) -> None:
        for first in range(0, len(frames), at_once):
            await self._may_write.wait()
            if not self.open:
                return
            self.transport.write(b"".join(frames[first : first + at_once]))
            await asyncio.sleep(0.001)


class Floods(Program):
    """See the module."""

    name = "floods"
    every_s: ClassVar[float] = 1.5

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._probes: list[Client] = []
        self._running = True
        self._flooded: dict[int, float] = {}  # by node: until when
        self._count = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Requests cost time."""
        table = cast("dict[int, Api]", TABLE)
        kept = {key: table[key] for key in COST_S}

        def charged(handle: Any, seconds: float) -> Any:
            def charged_handle(context: Any, request: Any) -> Any:
                loop = asyncio.get_running_loop()
                assert isinstance(loop, SimLoop)
                loop.spend(seconds)
                return handle(context, request)

            return charged_handle

        try:
            for key, api in kept.items():
                table[key] = replace(api, handle=charged(api.handle, COST_S[key]))
            yield
        finally:
            table.update(kept)

    def begin(self) -> None:
        for machine in self._world.machines:
            probe = self._world.client(f"pam {machine.node_id}")
            self._probes.append(probe)
            self._world.spawn(Owner(probe.name), self._ask(probe, machine))

    async def _ask(self, probe: Client, machine: Machine) -> None:
        """Small requests to one node, all the time."""
        world = self._world
        request = {"topics": [{"name": "orders"}], "allow_auto_topic_creation": False}
        while self._running:
            begun = world.loop.time()
            try:
                await probe.call(machine.address, METADATA, request)
            except Unknown as error:
                if world.quiet and not self._over:
                    raise Violation(f"{probe.name} got no answer during a flood: {error}") from error
            else:
                took = world.loop.time() - begun
                world.history.count("small requests during floods", int(self._flooded.get(machine.node_id, 0) > begun))
                if world.quiet and took > PATIENCE_S:
                    raise Violation(f"{probe.name} waited {took:.3f} s for an answer, while others flooded the node")
            self._measure(machine)
            await probe.pause(0.1)

    def strike(self) -> None:
        machine = self._dice.choice(self._world.machines)
        reads = self._dice.random() < 0.6
        self._count += 1
        self._note("flood" if reads else "answers are not read", machine)
        self._flooded[machine.node_id] = self._world.loop.time() + 1.0
        for number in range(self._dice.choice((1, 1, 3)) if reads else 2):
            owner = Owner(f"flood {self._count}/{number}")
            self._world.spawn(owner, self._flood(machine, reads))

    async def _flood(self, machine: Machine, reads: bool) -> None:
        network = SimNetwork(self._world.fabric, f"127.0.8.{self._count}")
        rude = Rude(reads)
        try:
            await network.connect(machine.address, lambda: rude)
        except OSError:
            return
        if reads:
            await rude.send(self._requests(self._dice.choice((METADATA, LIST_OFFSETS)), FLOOD), FLOOD)
        else:
            await rude.send(self._requests(FETCH, UNREAD), 50)
        await asyncio.sleep(1.5)
        self._world.history.count("bytes of answers to floods", rude.received)
        if rude.open:
            rude.transport.abort()

    def _requests(self, api: tuple[int, int], count: int) -> list[bytes]:
        body = encode_request(*api, self._request(api))
        return [frame(header(*api, number, "rude") + body) for number in range(count)]

    def _request(self, api: tuple[int, int]) -> dict[str, Any]:
        if api == METADATA:
            return {"topics": None, "allow_auto_topic_creation": False}
        if api == LIST_OFFSETS:
            wanted = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
            return {"topics": [{"name": "orders", "partitions": wanted}]}
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        return {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": "orders", "partitions": [part]}]}

    def _measure(self, machine: Machine) -> None:
        """What a node holds for a client: what it has written and is not read, and what it keeps itself."""
        hosts = {each.host for each in self._world.machines}
        streams = [each for each in self._world.fabric.streams if each.owner is machine.owner]
        streams = [each for each in streams if each.there[0] not in hosts]
        held = max(map(_held, streams), default=0)
        facts = self._world.history.facts
        facts["most bytes held"] = max(held, facts.get("most bytes held", 0))
        if held > BYTES_PER_CONNECTION:
            raise Violation(f"node {machine.node_id} holds {held} bytes for one connection")

    def finish(self) -> None:
        self._running = False


def _held(stream: SimTransport) -> int:
    protocol: Any = stream.protocol
    kept = getattr(protocol, "_held_bytes", 0)
    return stream.get_write_buffer_size() + kept + sum(map(len, getattr(protocol, "_backlog", ())))
