"""Gossip driven over a simulated network, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from headrace.broker.cluster_settings import ClusterSettings
from headrace.broker.gossip import Gossip, is_local
from headrace.broker.image import BrokerRecord, Image, RemoveBrokerRecord, apply
from headrace.testing.sim.loop import Owner, SimLoop
from headrace.testing.sim.network import Fabric, SimNetwork

PORT = 9092


class Wall:
    """A wall clock that may be wrong."""

    def __init__(self, loop: SimLoop, ahead_ms: int) -> None:
        self._loop = loop
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self._ahead_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class Village:
    """Nodes that gossip, on hosts 127.0.0.N."""

    def __init__(self, *, settings: ClusterSettings | None = None, skews_ms: dict[int, int] | None = None) -> None:
        self.loop = SimLoop()
        self.fabric = Fabric(self.loop, Random(1))
        self.settings = settings or ClusterSettings()
        self.skews_ms = skews_ms or {}
        self.image = Image()
        self.nodes: dict[int, Gossip] = {}
        self.owners: dict[int, Owner] = {}
        self.deaths: list[tuple[int, int]] = []
        self.addresses: dict[tuple[int, int], tuple[str, int]] = {}

    def register(self, *node_ids: int) -> None:
        before = self.image
        self.image = apply(before, [BrokerRecord(n, f"127.0.0.{n}", PORT) for n in node_ids])
        self._tell(before)

    def remove(self, node_id: int) -> None:
        before = self.image
        self.image = apply(before, [RemoveBrokerRecord(node_id)])
        self._tell(before)

    def _tell(self, before: Image) -> None:
        for node_id, node in self.nodes.items():
            self.owners[node_id].context.run(node.changed, before, self.image)

    def add(self, node_id: int) -> Gossip:
        node = Gossip(
            SimNetwork(self.fabric, f"127.0.0.{node_id}"),
            Random(node_id),
            Wall(self.loop, self.skews_ms.get(node_id, 0)),
            self.settings,
            cluster_id="village",
            bind=(f"127.0.0.{node_id}", PORT),
            on_death=lambda dead: self.deaths.append((node_id, dead)),
            on_address=lambda other, address: self.addresses.__setitem__((node_id, other), address),
        )
        self.nodes[node_id] = node
        owner = self.owners[node_id] = Owner(str(node_id))
        owner.context.run(node.start, node_id, self.image)
        return node


def run(scenario: Any, **choices: Any) -> None:
    village = Village(**choices)
    try:
        village.loop.run_until_complete(scenario(village))
    finally:
        village.loop.close()


def test_a_node_alone_opens_no_port():
    async def scenario(village: Village) -> None:
        village.register(1)
        village.add(1)
        await asyncio.sleep(5)
        assert village.fabric.packets == {}

    run(scenario)


def test_nodes_find_each_other_and_a_newcomer_is_found():
    async def scenario(village: Village) -> None:
        village.register(1, 2)
        village.add(1)
        village.add(2)
        await asyncio.sleep(5)
        assert village.addresses[1, 2] == ("127.0.0.2", PORT)
        assert village.addresses[2, 1] == ("127.0.0.1", PORT)
        village.register(3)
        village.add(3)
        await asyncio.sleep(5)
        assert village.addresses[1, 3] == ("127.0.0.3", PORT)
        assert village.deaths == []

    run(scenario)


def test_a_silent_node_is_reported_dead_by_all_the_others():
    async def scenario(village: Village) -> None:
        village.register(1, 2, 3)
        for node_id in (1, 2, 3):
            village.add(node_id)
        await asyncio.sleep(5)
        village.loop.kill(village.owners[3])
        village.fabric.packets.pop(("127.0.0.3", PORT))
        await asyncio.sleep(5)
        assert sorted(village.deaths) == [(1, 3), (2, 3)]

    run(scenario)


def test_a_node_that_stops_says_so_and_is_not_reported_dead():
    async def scenario(village: Village) -> None:
        village.register(1, 2, 3)
        nodes = [village.add(node_id) for node_id in (1, 2, 3)]
        await asyncio.sleep(5)
        await nodes[2].stop()
        await asyncio.sleep(10)
        assert village.deaths == []
        assert ("127.0.0.3", PORT) not in village.fabric.packets

    run(scenario)


def test_the_last_one_closes_its_port():
    async def scenario(village: Village) -> None:
        village.register(1, 2)
        village.add(1)
        await asyncio.sleep(1)
        assert ("127.0.0.1", PORT) in village.fabric.packets
        village.remove(2)
        await asyncio.sleep(1)
        assert village.fabric.packets == {}

    run(scenario)


def test_clocks_are_compared_and_a_wrong_one_is_warned_of(caplog: pytest.LogCaptureFixture):
    async def scenario(village: Village) -> None:
        village.register(1, 2)
        near = village.add(1)
        village.add(2)
        await asyncio.sleep(20)
        skew_ms = near.skew_of(2)
        assert skew_ms is not None
        assert abs(skew_ms - 2000) < 50
        warnings = [record for record in caplog.records if "clock is wrong" in record.message]
        assert len(warnings) == 2, "each of the two warns once"

    run(scenario, skews_ms={2: 2000})


def test_without_a_secret_strangers_are_not_heard():
    async def scenario(village: Village) -> None:
        village.register(1, 2)
        village.add(1)
        village.add(2)
        await asyncio.sleep(5)
        door, swim = village.fabric.packets["127.0.0.1", PORT], village.nodes[1]._swim
        assert swim is not None
        door.receive(b"junk", ("10.0.0.9", PORT))
        assert sum(swim.refused.values()) == 0, "it did not reach the machine"
        door.receive(b"junk", ("127.0.0.9", PORT))
        assert sum(swim.refused.values()) == 1

    run(scenario)


def test_it_can_be_turned_off():
    async def scenario(village: Village) -> None:
        village.register(1, 2)
        village.add(1)
        await asyncio.sleep(2)
        assert village.fabric.packets == {}
        assert village.nodes[1].skew_of(2) is None

    run(scenario, settings=ClusterSettings(gossip=False))


def test_loopback_is_local():
    assert is_local("127.0.0.7")
    assert is_local("localhost")
    assert not is_local("10.0.0.1")


def test_a_cluster_may_have_more_nodes_than_gossip_has_seeds():
    async def scenario(village: Village) -> None:
        village.register(*range(1, 80))
        village.add(78)
        village.add(79)
        await asyncio.sleep(5)
        assert village.addresses[78, 79] == ("127.0.0.79", PORT)
        village.register(80)  # every node's image grows, and nobody's gossip may object
        village.add(80)
        await asyncio.sleep(5)
        assert village.addresses[78, 80] == ("127.0.0.80", PORT)

    run(scenario)


def test_nodes_that_come_and_go_at_new_addresses_do_not_use_up_the_seeds():
    async def scenario(village: Village) -> None:
        village.register(1, 2)
        village.add(1)
        village.add(2)
        await asyncio.sleep(1)
        for node_id in range(3, 100):
            village.register(node_id)
            village.remove(node_id)
        await asyncio.sleep(5)
        assert village.addresses[1, 2] == ("127.0.0.2", PORT)

    run(scenario)
