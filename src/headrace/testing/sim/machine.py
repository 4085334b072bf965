"""One machine of the simulation: a disk, a clock, a network address, and a broker's process that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.app import Node
from headrace.core.errors import ConfigError, StorageError
from headrace.settings import Settings, load
from headrace.testing.files import FaultyFiles
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.loop import Owner, SimLoop
from headrace.testing.sim.network import Fabric, SimNetwork
from headrace.testing.sim.workers import SimWorkers

if TYPE_CHECKING:
    from headrace.broker.service import Service
    from headrace.core.ports import Address

PORT = 9092


class Machine:
    """The disk and the address stay; processes come and go."""

    def __init__(
        self,
        loop: SimLoop,
        fabric: Fabric,
        node_id: int,
        flags: Mapping[str, str],
        storage: Mapping[str, Any],
        dice: Random,
        host: str,
    ) -> None:
        """`storage`: settings smaller than users may choose."""
        self._loop = loop
        self._fabric = fabric
        self._dice = dice
        self._flags = dict(flags)
        self._storage = dict(storage)
        self.node_id = node_id
        self.host = host
        self.files = FaultyFiles()
        self.clock = SimClock(loop.time, skew_ms=dice.randrange(-2000, 2000), rate=1 + dice.uniform(-1, 1) * 1e-4)
        self.workers = SimWorkers(dice, dice.choice((0.0002, 0.001, 0.005)))
        self.owner: Owner | None = None
        self.node: Node | None = None
        self.starting: asyncio.Task[object] | None = None
        self.stopping = False
        self.retiring = False  # it is about to leave the cluster for good
        self.lives = 0
        self.boots = 0  # times that its system has gone down
        self.disk_is_bad = False
        self.cannot_read = False
        self.on_refusal: Callable[[Machine], None] | None = None  # it may refuse to start; this is told then

    @property
    def address(self) -> Address:
        return self.host, PORT

    @property
    def is_up(self) -> bool:
        """The process lives; it may be starting or paused."""
        return self.owner is not None

    @property
    def is_serving(self) -> bool:
        return self.node is not None and self.starting is None and not self._paused and not self.stopping

    @property
    def _paused(self) -> bool:
        return self.owner is not None and self.owner.paused

    @property
    def service(self) -> Service:
        assert self.node is not None, "the node does not run"
        return self.node.service

    def settings(self) -> Settings:
        flags = {
            "storage.kind": "disk",
            "kafka.host": self.host,
            "kafka.port": str(PORT),
            "broker.node_id": str(self.node_id),
            "http.enabled": "false",
        }
        settings = load(flags={**flags, **self._flags}).settings
        return replace(settings, storage=replace(settings.storage, **self._storage))

    def start(self, failed: Callable[[Exception], None]) -> None:
        """Start the process; `failed` is told if the broker gives up by itself."""
        assert self.owner is None
        self.lives += 1
        owner = self.owner = Owner(f"node {self.node_id} life {self.lives}")
        self._fabric.power_back(self.host)
        node = self.node = Node(
            self.settings(),
            files=self.files,
            clock=self.clock,
            workers=self.workers,
            network=SimNetwork(self._fabric, self.host),
            dice=Random(self._dice.randrange(2**62)),
            boot_id=f"{self.node_id}/{self.boots}",
        )
        task = self.starting = owner.context.run(self._loop.create_task, node.start())

        def started(done: asyncio.Task[object]) -> None:
            if self.owner is not owner:
                return
            self.starting = None
            error = None if done.cancelled() else done.exception()
            if error is None:
                self.on_refusal = None
            else:
                self.kill()
                if isinstance(error, StorageError | ConfigError):
                    failed(error)
                else:
                    raise error

        task.add_done_callback(started)

    async def stop(self, seconds: float) -> bool:
        """SIGTERM, and SIGKILL when it takes too long. Whether the end was clean."""
        owner, node = self.owner, self.node
        if owner is None or node is None or self.starting is not None:
            self.kill()
            return False
        self.stopping = True
        task: asyncio.Task[None] = owner.context.run(self._loop.create_task, node.stop())
        done, _ = await asyncio.wait([task], timeout=seconds)
        clean = bool(done) and task.exception() is None
        if self.owner is owner:
            self._end(owner)
            self._fabric.process_died(owner)
            self._leave_disk()
        return clean

    def kill(self) -> None:
        """kill -9: what was written stays."""
        owner = self.owner
        if owner is not None:
            self._end(owner)
            self._fabric.process_died(owner)
            self._leave_disk()

    def _leave_disk(self) -> None:
        """What the next process finds.

        After a failed sync the machine is started anew, too: until then its system shows bytes that it never writes.
        """
        if self.disk_is_bad:
            self._reboot()
        else:
            self.files = self.files.killed()

    def _reboot(self) -> None:
        self.files = self.files.power_cut(self._dice)
        self.boots += 1
        self.disk_is_bad = False

    @property
    def disk_fails(self) -> bool:
        limited = self.files.space_left is not None or self.files.files_ran_out
        return self.disk_is_bad or limited or self.cannot_read

    @property
    def may_complain(self) -> bool:
        """Whether there is a reason for its last words."""
        return self.disk_fails or self.retiring or self.on_refusal is not None

    def lose_power(self) -> None:
        """What was not synced is lost, or comes back as rubbish."""
        owner = self.owner
        if owner is not None:
            self._end(owner)
            self._fabric.power_lost(owner, self.host)
        self._reboot()

    def pause(self) -> None:
        if self.owner is not None:
            self._loop.pause(self.owner)

    def resume(self) -> None:
        if self.owner is not None and self.owner.paused:
            self._loop.resume(self.owner)

    def _end(self, owner: Owner) -> None:
        self._loop.kill(owner)
        self._loop.bury(self.node)
        self.owner = self.node = self.starting = None
        self.stopping = False
