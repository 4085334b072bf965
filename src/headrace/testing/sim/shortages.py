"""Disks that are full for a while, and processes that may open no more files.

Rules:
- A producer with five requests in flight sees no gap, no duplicate and no loss, and needs no new epoch, however often a
  full disk takes one batch and refuses the one behind or before it.
- Topics that are made while files cannot be opened come online by themselves when they can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import CREATE_TOPICS, LATER, Client, Partition, Unknown
from headrace.testing.sim.history import History, Sent, Violation
from headrace.testing.sim.loop import Owner
from headrace.testing.sim.program import Program
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World

IN_FLIGHT: Final = 5


class Pipeline:
    """A producer of one partition that always has five batches in flight, as Java's and librdkafka's do.

    What fails for a passing reason is sent again in its place; what was sent behind it stays in flight meanwhile.
    """

    def __init__(self, client: Client, history: History, partition: Partition, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._history = history
        self._partition = partition
        self._now_ms = now_ms
        self._number = 0
        self._sequence = 0
        self._made = 0  # batches
        self._open: dict[int, tuple[int, list[Sent], bytes]] = {}  # by sequence: not acknowledged yet, in order
        self.running = True

    @property
    def pending(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        producer = await self._client.init_producer(None)
        flights: dict[asyncio.Task[None], int] = {}
        while self.running or self._open:
            while self.running and self._may_make:
                self._make(*producer)
            try:
                where = await self._client.leader(self._partition)
            except Unknown:
                await self._client.pause(0.1)
                continue
            for sequence in sorted(self._open):
                if sequence not in flights.values() and len(flights) < IN_FLIGHT:
                    flights[asyncio.ensure_future(self._send(where, sequence))] = sequence
                    await asyncio.sleep(0)  # so that they leave in this order
            await asyncio.wait(list(flights), return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in flights if task.done()]:
                del flights[task]
                task.result()
            await self._client.pause(0.2)

    @property
    def _may_make(self) -> bool:
        """Nobody runs further ahead of what is not acknowledged than the broker remembers."""
        return not self._open or self._made - self._open[min(self._open)][0] < IN_FLIGHT

    def _make(self, producer_id: int, epoch: int) -> None:
        name = self._client.name
        records = []
        for _ in range(self._client.dice.choice((1, 2, 3))):
            value = f"{name}/{self._partition[0]}-{self._partition[1]}/{self._number}".encode()
            records.append(Sent(value, self._partition, name, self._number))
            self._history.send(records[-1])
            self._number += 1
        content = batch.build(
            [(None, record.value) for record in records],
            timestamp_ms=self._now_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence,
        )
        self._open[self._sequence] = (self._made, records, content)
        self._made += 1
        self._sequence += len(records)

    async def _send(self, where: tuple[str, int], sequence: int) -> None:
        _, records, content = self._open[sequence]
        try:
            [answer] = await self._client.produce_at(where, self._partition, [content])
        except Unknown:
            return
        if isinstance(answer, Unknown) or answer[0] in LATER:
            return
        error, offset = answer
        if error == ErrorCode.out_of_order_sequence_number and sequence != min(self._open):
            return  # one before it is missing
        if error not in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            raise Violation(f"{self._client.name} got {error.name} for {records[0].value!r} in {self._partition}")
        for place, record in enumerate(records):
            self._history.acknowledge(record, offset + place if error == ErrorCode.none else -1)
        del self._open[sequence]
        self._history.count("acknowledged in pipelines")


class FullDisks(Program):
    """Space comes and goes, on one machine or on all."""

    name = "full"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._pipelines: list[Pipeline] = []

    def begin(self) -> None:
        world = self._world
        for name, partition in (("eva", ("orders", 1)), ("eve", ("orders", 1))):
            pipeline = Pipeline(world.client(name), world.history, partition, world.clock.now_ms)
            self._pipelines.append(pipeline)
            world.spawn(Owner(name), pipeline.run())

    def strike(self) -> None:
        dice = self._dice
        everywhere = dice.random() < 0.3
        chosen = self._world.machines if everywhere else [dice.choice(self._world.machines)]
        self._note("full disks" if everywhere else "full disk", None if everywhere else chosen[0])
        end = self._world.loop.time() + dice.choice((0.3, 1.0, 3.0))
        for machine in chosen:
            self._fill(machine, end)

    def _fill(self, machine: Machine, end: float) -> None:
        """A little space, none, a little: so that a batch finds some, and the one before it found none."""
        files = machine.files

        def change() -> None:
            if self._world.loop.time() >= end or self._over:
                files.space_left = None
                return
            files.space_left = self._dice.choice((0, 0, 150, 400, 3000))
            self._later(0.1, change)

        change()

    def finish(self) -> None:
        for pipeline in self._pipelines:
            pipeline.running = False


class NoMoreFiles(Program):
    """No file can be opened for a while, and just then topics are made."""

    name = "files"
    every_s: ClassVar[float] = 1.5

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._client: Client | None = None
        self._made: list[str] = []

    def begin(self) -> None:
        self._client = self._world.client("fay")

    def strike(self) -> None:
        dice = self._dice
        everywhere = dice.random() < 0.3
        chosen = self._world.machines if everywhere else [dice.choice(self._world.machines)]
        self._note("no more files", None if everywhere else chosen[0])
        for machine in chosen:
            files = machine.files
            files.files_ran_out = True
            self._later(2.5, partial(setattr, files, "files_ran_out", False))
        if len(self._made) < 3:
            name = f"late-{len(self._made)}"
            self._made.append(name)
            self._world.spawn(Owner("fay"), self._make(name))

    async def _make(self, name: str) -> None:
        """Make a topic, and write to it until that works."""
        assert self._client is not None
        client, world = self._client, self._world
        config = [{"name": "min.insync.replicas", "value": str(world.min_insync)}]
        row = {"name": name, "num_partitions": 1, "replication_factor": world.replication, "configs": config}
        while True:
            try:
                answer = await client.call(client.anybody(), CREATE_TOPICS, {"topics": [row], "timeout": 3000}, 5)
            except Unknown:
                await client.pause(0.2)
                continue
            [made] = answer.topics
            if made.error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
                break
            if made.error_code not in LATER | {ErrorCode.invalid_replication_factor}:
                raise Violation(f"CreateTopics: {made.error_code.name} {made.error_message}")
            await client.pause(0.2)
        await self._write(name)
        world.history.count("topics made while no file could be opened")

    async def _write(self, name: str) -> None:
        assert self._client is not None
        content = batch.build([(None, name.encode())], timestamp_ms=self._world.clock.now_ms())
        deadline = None
        while True:
            if self._over and deadline is None:
                deadline = self._world.loop.time() + 30
            if deadline is not None and self._world.loop.time() > deadline:
                raise Violation(f"{name} could not be written, though files can be opened again")
            try:
                [answer] = await self._client.produce((name, 0), [content])
            except Unknown:
                answer = Unknown()
            if not isinstance(answer, Unknown) and answer[0] == ErrorCode.none:
                return
            await self._client.pause(0.2)
