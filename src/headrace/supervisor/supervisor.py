"""All services of a plan: started in order, stopped in the opposite order, looked at.

Rules:
- Where nobody has data, broker 0 founds the cluster: it is ready before the others start, and they join it together.
- Brokers that have data form the cluster that they were: they start together, since one alone may be no majority. Those
  that have none join them, broker 0, too: a second founder would be a second cluster.
- A stop ends producers and consumers first, then the brokers, the founder last.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError, HeadraceError
from headrace.supervisor.plan import Plan, Service
from headrace.supervisor.watching import Watched

READY_S: Final = 60.0
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """One service as it is now."""

    name: str
    kind: str
    number: int
    address: str
    state: str
    pid: int | None
    lived_s: float
    restarts: int
    last_exit: int | None


class Supervisor:
    """See the module."""

    def __init__(self, plan: Plan, data_dir: str, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._home: Path | None = None
        root = Path(data_dir)
        if plan.temporary:
            root = self._home = Path(tempfile.mkdtemp(prefix="headrace-"))
        root.mkdir(parents=True, exist_ok=True)
        self.watched = [
            Watched(_at(service, data_dir, root), root / f"{service.name}.log", say) for service in plan.services
        ]

    async def start(self) -> None:
        """Start everything; returns when all are ready that can be. Raises HeadraceError if no broker gets there."""
        for one in self.watched:
            if await one.port_is_taken():
                service = one.service
                raise ConfigError(
                    f"{service.host}:{service.port} is in use, and {service.name} needs it: stop what is there, "
                    "or choose other ports (--base-port)"
                )
        known = [one for one in self.watched if one.has_data]
        first = known or self.watched[:1]
        rest = [one for one in self.watched if one not in first]
        for one in rest:
            one.joins()
        if not await self._start(first):
            raise HeadraceError(f"no broker is ready after {READY_S:.0f} s: {first[0].last_words()}")
        await self._start(rest)

    async def _start(self, group: Iterable[Watched]) -> int:
        """How many are ready. The others are started again and again: whatever keeps them may pass."""
        started = [each for each in group if await each.start()]
        ready = await asyncio.gather(*(self._is_up(one) for one in started))
        return sum(ready)

    async def _is_up(self, one: Watched) -> bool:
        if await self.until_ready(one):
            self._say(f"{one.service.name} is ready on {one.service.host}:{one.service.port} (process {one.pid})")
            return True
        self._say(f"{one.service.name} is not ready after {READY_S:.0f} s: {one.last_words()}")
        return False

    async def until_ready(self, one: Watched) -> bool:
        """Wait until a service is ready, as long as that is worth waiting for."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while not await one.is_ready():
            if asyncio.get_running_loop().time() > deadline or not one.wanted:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def stop(self) -> None:
        """Stop everything and remove what is temporary."""
        first, *rest = self.watched
        await asyncio.gather(*(one.stop(for_good=True) for one in rest if one.service.kind != "broker"))
        await asyncio.gather(*(one.stop(for_good=True) for one in rest))
        await first.stop(for_good=True)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    async def look(self) -> list[Look]:
        return list(await asyncio.gather(*(self._look(one) for one in self.watched)))

    async def _look(self, one: Watched) -> Look:
        service = one.service
        return Look(
            service.name,
            service.kind,
            service.number,
            f"{service.host}:{service.port}",
            await one.state(),
            one.pid,
            one.lived_s,
            one.restarts,
            one.last_exit,
        )

    def find(self, kind: str, number: int = 0) -> Watched | None:
        return next((one for one in self.watched if one.service.kind == kind and one.service.number == number), None)


def _at(service: Service, data_dir: str, root: Path) -> Service:
    """The service with its data under `root`."""
    if not service.data_dir:
        return service
    moved = service.data_dir.replace(data_dir, str(root), 1)
    words = tuple(moved if word == service.data_dir else word for word in service.words)
    return replace(service, words=words, data_dir=moved)
