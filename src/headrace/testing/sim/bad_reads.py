"""Reads that fail or lie for a while, under a running broker.

Rules:
- Nothing that was damaged is ever delivered: clients check (`clients.verify`, `History.read`).
- One machine at a time. While its reads fail and all else is well, the others lead and stay in sync, and everything can
  be read from them.
- What lies, lies until the end of the safety phase; what has turned stays so, and must be copied from others.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.testing.sim.clients import Client
from headrace.testing.sim.consumers import read_all
from headrace.testing.sim.disk_loss import files_in, folder_of
from headrace.testing.sim.history import Violation
from headrace.testing.sim.loop import Owner
from headrace.testing.sim.program import Program

if TYPE_CHECKING:
    from headrace.testing.sim.clients import Partition as Place
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World

READ_SECONDS: Final = 5.0  # a reader that begins when reads begin to fail has everything by then
LEAST_IN_SYNC: Final = 2


class BadReads(Program):
    """See the module."""

    name = "reads"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._reader: Client | None = None
        self._ill: Machine | None = None

    def begin(self) -> None:
        self._reader = self._world.client("rea")

    def strike(self) -> None:
        world, dice = self._world, self._dice
        machine = dice.choice(world.machines)
        if self._ill is not None or not machine.is_serving or not world.harm.may_all_be(machine):
            return
        places = [place for place in world.harm.places(machine) if place in world.partitions]
        if not places:
            return
        place = dice.choice(places)
        machine.files.cold = dice.random() < 0.5  # else the page cache has what was read before
        kind = dice.choice(("fail", "fail all", "lie", "turn"))
        if kind in ("fail", "fail all"):
            self._fail(machine, place, folder_of(place) if kind == "fail" else "topics")
        else:
            self._turn(machine, place, for_good=kind == "turn" and len(world.machines) > 1)

    def _fail(self, machine: Machine, place: Place, folder: str) -> None:
        self._note("reads fail", machine)
        machine.files.fail_reads(folder)
        machine.cannot_read = True
        self._ill = machine
        for each in self._world.harm.places(machine):
            self._world.harm.done(machine, each)
        if self._world.quiet and len(self._world.machines) > 1:
            self._world.spawn(Owner("rea"), self._read_all(place))

        self._later(self._dice.choice((1.0, 6.0)), partial(self._end, machine))

    def _end(self, machine: Machine) -> None:
        """The disk is mended; a process that has given it up starts again, and so does one that gave up a log."""
        if self._ill is not machine:
            return
        self._ill = None
        machine.files.heal_reads()
        machine.cannot_read = False
        if machine.is_serving and machine.service.partitions.faults:
            self._world.note(f"restart node {machine.node_id} for its disk")
            machine.kill()
            self._world.start(machine)

    def _turn(self, machine: Machine, place: Place, *, for_good: bool) -> None:
        """A few bits of what the log holds durably, in the first two thirds of a segment."""
        files = machine.files
        logs = [path for path in files_in(files, folder_of(place)) if path.endswith(".log")]
        logs = [path for path in logs if len(files.peek(path)) > 300]
        if not logs:
            return
        self._note("bits turn" if for_good else "reads lie", machine)
        self._world.harm.done(machine, place)
        for _ in range(self._dice.choice((1, 3))):
            path = self._dice.choice(logs)
            bit = self._dice.randrange(8 * len(files.peek(path)) * 2 // 3)
            (files.flip if for_good else files.lie)(path, bit)
            files.evict(path)  # while its pages are in memory, nobody sees what became of the disk

    async def _read_all(self, place: Place) -> None:
        """Nothing else is wrong: everything can be read, from whoever leads by then."""
        assert self._reader is not None
        world = self._world
        try:
            async with asyncio.timeout(READ_SECONDS):
                found, _ = await read_all(self._reader, place, committed_only=False)
        except TimeoutError:
            if not self._over:
                raise Violation(f"{place} could not be read while one disk could not be read") from None
            return
        for offset, value in found:
            world.history.read(place, offset, value, by=self._reader.name)
        world.history.count("read while reads fail")

    def look(self) -> None:
        """There is a new image: nobody but the ill one leaves the in-sync sets."""
        world = self._world
        image = world.watch.newest_image
        if not world.quiet or image is None or len(world.machines) < 3 or self._over:
            return
        for topic in image.topics.values():
            for record in topic.partitions:
                if len(record.replicas) >= 3 and len(record.isr) < LEAST_IN_SYNC:
                    world.fail(Violation(f"{record.topic}-{record.index} is in sync on {record.isr} only"))

    def heal(self) -> None:
        super().heal()
        if self._ill is not None:
            self._end(self._ill)
        for machine in self._world.machines:
            machine.files.cold = False
