"""All programs, and those of one history.

Rules:
- Which faults a history has beside the first ones is said by name; its seed says the rest.
- Some of these histories are quiet: nothing but their programs goes wrong. Then more can be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker import housekeeping
from headrace.testing.sim import rebirth
from headrace.testing.sim.bad_reads import BadReads
from headrace.testing.sim.disk_loss import DirectoryLoss, FolderLoss, JournalLoss
from headrace.testing.sim.floods import Floods
from headrace.testing.sim.program import Program
from headrace.testing.sim.shortages import FullDisks, NoMoreFiles

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World


class Rebirths(Program):
    """Machines go down just when a topic is deleted or made again, and come back in its next life."""

    name = "rebirth"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: UUID | None = None
        self._down: list[Machine] = []  # until the next life

    def look(self) -> None:
        """There is a new image; most nodes have not heard of it yet."""
        world, dice = self._world, self._dice
        image = world.watch.newest_image
        topic = None if image is None else image.topics.get(rebirth.NAME)
        topic_id = None if topic is None else topic.topic_id
        if topic_id == self._last or self._over:
            return
        self._last = topic_id
        if topic_id is not None:
            for machine in self._down:
                self._restart(machine)
            self._down = []
        if dice.random() < 0.4:
            return
        machines = world.machines if dice.random() < 0.2 else [dice.choice(world.machines)]
        for machine in machines:
            if machine.is_up and not machine.retiring and not self._down:
                self._later(dice.choice((0.05, 0.3)), partial(self._end, machine, waits=len(machines) == 1))

    def _end(self, machine: Machine, *, waits: bool) -> None:
        if not machine.is_up or self._over:
            return
        self._note("down in a topic's life", machine)
        self._end_process(machine)
        if waits and self._last is None and len(self._world.machines) > 1:
            self._down.append(machine)
        else:
            self._restart(machine)


CHECKPOINT_SECONDS: Final = 0.5
KINDS: Final[dict[str, type[Program]]] = {
    each.name: each
    for each in (FolderLoss, DirectoryLoss, JournalLoss, BadReads, FullDisks, NoMoreFiles, Floods, Rebirths)
}


USUAL: Final = ("folders", "directories", "reads", "full", "files", "floods", "rebirth")  # those that the suite has


class Programs:
    """Those of one history; none, in most."""

    def __init__(self, world: World) -> None:
        self._all = [KINDS[name](world) for name in world.options.programs]

    def __bool__(self) -> bool:
        return bool(self._all)

    @contextmanager
    def on(self) -> Iterator[None]:
        checkpoint_s = housekeeping.CHECKPOINT_SECONDS
        with ExitStack() as stack:
            if self._all:  # histories are short
                stack.callback(setattr, housekeeping, "CHECKPOINT_SECONDS", checkpoint_s)
                housekeeping.CHECKPOINT_SECONDS = CHECKPOINT_SECONDS
            for each in self._all:
                if isinstance(each, Floods):
                    stack.enter_context(each.on())
            yield

    def begin(self) -> None:
        for each in self._all:
            each.begin()

    async def run(self, seconds: float) -> None:
        await asyncio.gather(*(each.run(seconds) for each in self._all))

    def look(self) -> None:
        """There is a new image."""
        for each in self._all:
            each.look()

    def heal(self) -> None:
        for each in self._all:
            each.heal()

    async def restore(self) -> None:
        for each in self._all:
            await each.restore()

    def finish(self) -> None:
        for each in self._all:
            each.finish()

    async def check(self) -> None:
        for each in self._all:
            await each.check()
