"""Random histories of three replicas: links cut, leaders changed, power lost. What was acknowledged is never lost."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from headrace.broker import decisions
from headrace.broker.commands import Register
from headrace.broker.levels import LEVEL
from headrace.core.errors import ApiError
from headrace.testing.files import FaultyFiles
from headrace.testing.replicas import ReplicaCluster

NODES = (1, 2, 3)
STEPS = 60


class History:
    """One seed. With `synced` the power may go anywhere; otherwise one replica, in sync or eligible, keeps it."""

    def __init__(self, seed: int, *, synced: bool, min_isr: int) -> None:
        self.dice = Random(seed)
        self.synced = synced
        self.cluster = ReplicaCluster(
            *NODES, flush="ack" if synced else "os", segment_bytes=600, min_insync_replicas=min_isr
        )
        self.policy = self.cluster.policy
        self.dark: set[int] = set()  # nodes that lost power, and did not register since
        self.eligible_led = 0
        self.cluster.new_files = FaultyFiles
        self.cluster.loses_answers = lambda: self.dice.random() < 0.2
        self.cluster.make_topic(NODES)
        self.acknowledged: dict[int, bytes] = {}
        self.writing: list[asyncio.Task[None]] = []
        self.written = 0
        self.high_watermark = 0

    @property
    def living(self) -> list[int]:
        return [n for n in NODES if self.cluster.nodes[n].alive]

    async def play(self) -> None:
        cluster = self.cluster
        await cluster.start()
        steps = (self.write, self.write, self.write, self.cut, self.heal, self.elect, self.crash, self.restart)
        for _ in range(STEPS):
            await self.dice.choice(steps)()
            await asyncio.sleep(self.dice.choice((0.0, 0.002, 0.02, 0.3, 3.0)))
        await self.settle()

    async def write(self) -> None:
        leader = self.cluster.nodes.get(self.cluster.record().leader)
        candidates = [leader] if leader is not None and self.dice.random() < 0.8 else list(self.cluster.nodes.values())
        for node in candidates:
            if node.alive:
                for _ in range(self.dice.randrange(1, 4)):
                    self.written += 1
                    self.writing.append(asyncio.ensure_future(self._write(node, b"%d" % self.written)))

    async def _write(self, node: Any, value: bytes) -> None:
        try:
            end = await node.produce(value, value + b"!")
        except ApiError:
            return
        assert node.alive
        for offset, each in ((end - 2, value), (end - 1, value + b"!")):
            assert self.acknowledged.setdefault(offset, each) == each, "one offset, two values"

    async def cut(self) -> None:
        one, other = self.dice.sample((0, *NODES), 2)
        self.cluster.cut(one, other)

    async def heal(self) -> None:
        self.cluster.heal()

    async def elect(self) -> None:
        able = [n for n in self.cluster.record().isr if n in self.living]
        if able:
            self.cluster.elect(self.dice.choice(able))

    async def crash(self) -> None:
        node = self.dice.choice(NODES)
        record = self.cluster.record()
        guards = {*record.isr, *record.elr} - {node} - self.dark
        if node not in self.living or (not self.synced and node in (*record.isr, *record.elr) and not guards):
            return
        self.dark.add(node)
        await self.cluster.lose_power(node, self.dice)
        self.cluster.decide(*decisions.fence(self.cluster.image, node, self.policy))

    async def restart(self) -> None:
        for node in NODES:
            if node not in self.living:
                register = Register(node, f"host{node}", 9092, None, "", False, level=LEVEL)
                self.cluster.decide(*decisions.register(self.cluster.image, register, self.policy))
                self.dark.discard(node)
                await self.cluster.start(node)
                before = self.cluster.record()
                self.cluster.decide(*decisions.unfence(self.cluster.image, node, self.policy))
                self.eligible_led += self.cluster.record().leader in before.elr
                return

    async def settle(self) -> None:
        cluster = self.cluster
        cluster.loses_answers = lambda: False
        cluster.heal()
        while len(self.living) < len(NODES):
            await self.restart()
        await cluster.until(lambda: set(cluster.record().isr) == set(NODES), 60)
        leader = cluster.nodes[cluster.record().leader]
        await leader.produce(b"last")
        for task in self.writing:
            task.cancel()
        # A follower hears of the last high watermark with its next answer.
        await cluster.until(lambda: len({len(cluster.nodes[n].values()) for n in NODES}) == 1, 60)
        logs = [cluster.nodes[n].values() for n in NODES]
        assert logs[0] == logs[1] == logs[2]
        found = dict(logs[0])
        lost = {offset: value for offset, value in self.acknowledged.items() if found.get(offset) != value}
        assert not lost
        epochs = [cluster.nodes[n].get().log.epochs.entries for n in NODES]
        assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_what_was_acknowledged_survives(seed: int, synced: bool, min_isr: int) -> None:
    history = History(seed, synced=synced, min_isr=min_isr)
    history.cluster.run(history.play())
    assert history.acknowledged
    assert not history.cluster.short_leaders
