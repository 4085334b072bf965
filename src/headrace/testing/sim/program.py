"""A program: one class of faults that is switched on by name, beside the trouble that every history has.

Rules:
- A program draws from a generator of its own: a history without it is what it always was.
- It damages at most one replica of a partition at a time (`Harm`), until that replica is as good as the others again.
  With three replicas, two of them in sync for every acknowledgement and every acknowledgement synced, nothing may be
  lost then, and everything must heal by itself.
- A replica that is the only one cannot be healed by others. Where a program damages it, it undoes the damage later, as
  an operator with a backup would; until then it may be offline, and must not be anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.core.errors import ApiError, StorageError
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.broker.image import PartitionRecord
    from headrace.broker.partition import Partition
    from headrace.storage.log import Log
    from headrace.testing.sim.clients import Partition as Place
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World

RESTART_SECONDS: Final = (0.2, 1.0, 3.0)


class Program:
    """Strikes at random moments of the safety phase."""

    name: ClassVar[str]
    every_s: ClassVar[float] = 1.0  # the mean

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = Random(f"{world.options.seed}/program {self.name}")
        self._over = False

    async def run(self, seconds: float) -> None:
        loop = self._world.loop
        end = loop.time() + seconds
        while True:
            await asyncio.sleep(self._dice.expovariate(1.0) * self.every_s)
            if loop.time() >= end or self._over:
                return
            self.strike()

    def begin(self) -> None:
        """The topics are there: clients of its own may start."""

    def strike(self) -> None:
        """Let something go wrong."""

    def look(self) -> None:
        """There is a new image. Called in the middle of a node's work: look, and act later."""

    def heal(self) -> None:
        """The safety phase is over: nothing is wrong any more."""
        self._over = True

    async def restore(self) -> None:
        """All nodes serve again: do what only an operator can do. A node may be down for a moment afterwards."""

    def finish(self) -> None:
        """Its clients shall end."""

    async def check(self) -> None:
        """In the end, when all replicas are in sync. Raises Violation."""

    def _later(self, most_seconds: float, undo: Callable[[], None]) -> None:
        # As the world, whoever's context this is called in: it must happen even if that process dies.
        self._world.later(self._dice.uniform(0.05, most_seconds), undo)

    def _note(self, text: str, machine: Machine | None = None) -> None:
        where = "" if machine is None else f" node {machine.node_id}"
        self._world.history.count(f"fault: {text}")
        self._world.note(f"FAULT {text}{where}")

    def _end_process(self, machine: Machine) -> None:
        """Kill it, or cut its power."""
        if self._dice.random() < 0.4:
            self._world.power.goes(machine)
            machine.lose_power()
        else:
            machine.kill()

    def _restart(self, machine: Machine) -> None:
        def again() -> None:
            if not machine.is_up and machine in self._world.machines:
                self._world.start(machine)

        self._later(self._dice.choice(RESTART_SECONDS), again)


class Harm:
    """Which replicas are damaged now: at most one of a partition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._harmed: dict[Place, int] = {}

    def places(self, machine: Machine) -> list[Place]:
        """Partitions of which a machine has a replica that may be damaged, as the newest image has it."""
        self._look()
        return [
            (record.topic, record.index)
            for record in self._records(machine)
            if (len(record.replicas) >= 3 or len(self._world.machines) == 1)
            and self._harmed.get((record.topic, record.index), machine.node_id) == machine.node_id
        ]

    def may_all_be(self, machine: Machine) -> bool:
        """Whether that is so for all of a machine's replicas."""
        return len(self.places(machine)) == len(self._records(machine))

    def _records(self, machine: Machine) -> list[PartitionRecord]:
        image = self._world.watch.newest_image
        records = [] if image is None else [record for topic in image.topics.values() for record in topic.partitions]
        return [record for record in records if machine.node_id in record.replicas]

    def done(self, machine: Machine, place: Place) -> None:
        self._harmed[place] = machine.node_id

    def rotten(self, record: PartitionRecord) -> list[int]:
        """Followers whose logs are damaged where nobody has read them yet."""
        place = (record.topic, record.index)
        node = self._harmed.get(place)
        mine = None if node is None else self._replica(place, node)
        if node is None or mine is None or mine.leads:
            return []
        try:
            batches(mine.log, mine.log.start_offset)
        except StorageError:
            return [node]
        return []

    def _look(self) -> None:
        for place, node in list(self._harmed.items()):
            if self._is_gone(place, node) or self._is_whole(place, node):
                del self._harmed[place]

    def _record(self, place: Place) -> PartitionRecord | None:
        image = self._world.watch.newest_image
        return None if image is None else image.partition(*place)

    def _is_gone(self, place: Place, node: int) -> bool:
        record = self._record(place)
        return record is None or node not in record.replicas

    def _is_whole(self, place: Place, node: int) -> bool:
        """Whether a replica is in sync, and holds what its leader holds."""
        record = self._record(place)
        mine = self._replica(place, node)
        leader = None if record is None else self._replica(place, record.leader)
        if record is None or mine is None or leader is None or not leader.leads or node not in record.isr:
            return False
        end = min(mine.log.end_offset, leader.log.end_offset)
        if mine is leader or end < leader.high_watermark:
            return mine is leader
        if mine.log.config.compacts:
            return True
        try:
            begin = max(mine.log.start_offset, leader.log.start_offset)
            return batches(mine.log, begin, end) == batches(leader.log, begin, end)
        except (ApiError, StorageError):
            return False

    def _replica(self, place: Place, node: int) -> Partition | None:
        machine = next((each for each in self._world.machines if each.node_id == node), None)
        if machine is None or not machine.is_serving:
            return None
        return machine.service.partitions.replica(*place)


def batches(log: Log, begin: int, end: int | None = None) -> list[tuple[int, ...]]:
    """What a log holds from an offset on, batch by batch."""
    found: list[tuple[int, ...]] = []
    offset, end = begin, log.end_offset if end is None else end
    while offset < end and (span := log.locate(offset, 1 << 20, end)) is not None:
        data = span.read()
        found += [
            (each.base_offset, each.last_offset_delta, each.leader_epoch, each.crc) for each in batch.headers(data)
        ]
        offset = span.next_offset
    return [each for each in found if each[0] >= begin]
