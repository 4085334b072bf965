"""Three nodes of a cluster are killed, the log of the one that led is lost, and all start again: nothing is lost.

High watermarks are taken to survive on the disks.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.partitions import Partitions
from headrace.testing.sim import oracles
from headrace.testing.sim.world import Options, World

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

TOPIC, INDEX = "orders", 0


class Emptied(World):
    """A world with one fault, and no dice in it. The node that led is back first, and led before the last one is."""

    def __init__(self, *, remembers: bool) -> None:
        super().__init__(Options(0, 3, plain=True, faults=False))
        self.remembers = remembers
        self.known: dict[tuple[int, Any, int], int] = {}
        self.watch._has_all_committed = lambda *_: None  # type: ignore[method-assign]

    async def _phases(self) -> None:
        for machine in self.machines:
            self.start(machine)
            await self.until("a node to serve", lambda each=machine: each.is_serving, 30)  # type: ignore[misc]
        await self._create_topics()
        self._begin_clients()
        await asyncio.sleep(3)
        record = self.machines[0].service.image.topics[TOPIC].partitions[INDEX]
        first, *others = [self.machines[node - 1] for node in record.replicas]
        for machine in self.machines:
            for each in machine.service.partitions if self.remembers else ():
                self.known[machine.node_id, each.topic_id, each.index] = each.high_watermark
        for machine in self.machines:
            machine.kill()
        for path in [path for path in first.files.paths() if path.startswith(f"topics/{TOPIC}-{INDEX}/")]:
            first.files.remove(path)
        for machine in (first, others[0]):
            self.start(machine)
        await self.until("two nodes to serve", lambda: first.is_serving and others[0].is_serving, 30)
        await asyncio.sleep(10)
        await self._heal()
        await asyncio.sleep(10)
        await oracles.Finale(self).run()


def run(monkeypatch: pytest.MonkeyPatch, *, remembers: bool) -> None:
    world = Emptied(remembers=remembers)
    known = world.known

    def remembered(partitions: Partitions, topic: Any, index: int) -> int:
        return known.get((partitions.node_id, topic.topic_id, index), 0)

    monkeypatch.setattr(Partitions, "known_high_watermark", remembered)
    world.run()


def test_nothing_is_lost_when_the_log_of_the_node_that_led_is_lost_while_all_are_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `remembers`, and with nothing else that tells of the loss, the oracles see records that are lost."""
    run(monkeypatch, remembers=True)
