"""Trouble: what goes wrong in the safety phase, when, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from headrace.broker.commands import Drain, Rebalance, Remove
from headrace.testing.sim.variants import VARIANTS

if TYPE_CHECKING:
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World

MEAN_SECONDS_BETWEEN: Final = 0.8


class Trouble:
    """Strikes at random moments. Each kind undoes itself after a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = Random(f"{world.options.seed}/trouble")
        kinds: list[tuple[int, Callable[[Machine], None]]] = [
            (3, self._kill),
            (3, self._lose_power),
            (2, self._pause),
            (1, self._terminate),
            (2, self._slow_disk),
            (1, self._bad_disk),
            (1, self._full_disk),
            (2, self._cut_clients),
            (2, self._reset),
            (1, self._slow_network),
            (1, self._jump),
        ]
        if world.options.rot:
            kinds.append((6, self._rot))
        if len(world.machines) > 1:
            kinds += [
                (1, self._blackout),
                (1, self._brownout),
                (1, self._grow),
                (1, self._move),
                (1, self._retire),
                (2, self._strand),
                (4, self._isolate),
                (3, self._cut_one_way),
                (2, self._partition),
                (1, self._lossy),
            ]
        wanted = VARIANTS[world.options.variant].faults if world.options.variant is not None else ()
        if wanted:
            kinds = [(weight, strike) for weight, strike in kinds if strike.__name__.removeprefix("_") in wanted]
        # A history in which everything happens is hard on nobody: each has its own favourites.
        self._kinds = [(weight * self._dice.choice((0, 1, 1, 3)), strike) for weight, strike in kinds]
        if not any(weight for weight, _ in self._kinds):
            self._kinds = kinds
        if world.flush != "ack" and world.options.variant is None:
            self._kinds.append((4, self._lose_power))  # what is tried there
        self._draining = self._grown = self._retired = self._over = False
        self._pace = MEAN_SECONDS_BETWEEN * self._dice.choice((0.5, 1, 2))

    async def run(self, seconds: float) -> None:
        loop = self._world.loop
        end = loop.time() + seconds
        while True:
            await asyncio.sleep(self._dice.expovariate(1.0) * self._pace)
            if loop.time() >= end:
                self._over = True
                return
            weights = [weight for weight, _ in self._kinds]
            [(_, strike)] = self._dice.choices(self._kinds, weights)
            strike(self._dice.choice(self._world.machines))

    def _later(self, most_seconds: float, undo: Callable[[], None]) -> None:
        self._world.loop.call_later(self._dice.uniform(0.05, most_seconds), undo)

    def _note(self, text: str, machine: Machine | None = None) -> None:
        where = "" if machine is None else f" node {machine.node_id}"
        self._world.history.count(f"fault: {text}")
        self._world.note(f"FAULT {text}{where}")

    # -- processes

    def _restart(self, machine: Machine) -> None:
        def again() -> None:
            if not machine.is_up:
                machine.files.heal()
                self._world.start(machine)

        self._later(self._dice.choice((0.2, 2.0, 5.0)), again)

    def _kill(self, machine: Machine) -> None:
        if machine.is_up:
            self._note("kill", machine)
            machine.kill()
            self._restart(machine)

    def _lose_power(self, machine: Machine) -> None:
        machine = self._spared(machine)
        if machine.is_up and self._world.power.may_go(machine):
            self._note("lose power", machine)
            self._world.power.lose(machine)
            self._restart(machine)

    def _spared(self, machine: Machine) -> Machine:
        """Another machine in its place, if this one must not lose its power now and another may."""
        may_go = self._world.power.may_go
        others = [each for each in self._world.machines if each.is_up and may_go(each)]
        return machine if may_go(machine) or not others else others[0]

    def _blackout(self, machine: Machine) -> None:
        if self._world.flush != "ack":
            self._lose_power(machine)
            return
        self._note("blackout")
        for each in self._world.machines:
            if each.is_up:
                each.lose_power()
                self._restart(each)

    def _brownout(self, machine: Machine) -> None:
        """The disks of all but one are slow; then the power goes everywhere, and that one comes back last."""
        world = self._world
        if world.flush != "ack":
            self._lose_power(machine)
            return
        self._note("brownout", machine)
        others = [each for each in world.machines if each is not machine]
        for other in others:
            other.workers.delay_s = 0.4

        def dark() -> None:
            for each in world.machines:
                each.workers.delay_s = 0.001
                if each.is_up and not self._over:
                    each.lose_power()
                    world.loop.call_later(3.0 if each is machine else self._dice.uniform(0.05, 0.3), back, each)

        def back(each: Machine) -> None:
            if not each.is_up:
                world.start(each)

        world.loop.call_later(self._dice.uniform(0.5, 2.0), dark)

    def _strand(self, machine: Machine) -> None:
        """Leave a leader alone in its in-sync set, then kill it while the others come back."""
        world = self._world
        topics = machine.service.image.topics if machine.is_serving else {}
        records = [each for topic in topics.values() for each in topic.partitions if topic.name in world.topics]
        if not records:
            return
        record = self._dice.choice(records)
        by_id = {each.node_id: each for each in world.machines}
        leader = by_id.get(record.leader)
        followers = [by_id[node] for node in record.replicas if node != record.leader and node in by_id]
        if leader is None:
            return
        self._note("strand", leader)
        for follower in followers:
            follower.pause()
            world.loop.call_later(3.0, follower.resume)

        def end() -> None:
            if leader.is_up and not self._over:
                leader.kill()
                world.loop.call_later(self._dice.uniform(1.0, 4.0), again)

        def again() -> None:
            if not leader.is_up:
                world.start(leader)

        world.loop.call_later(2.8, end)

    def _rot(self, machine: Machine) -> None:
        """A bit of a durable record turns while the broker is down; others follow it."""
        if not machine.is_serving:
            return
        machine.kill()
        self._restart(machine)
        files = machine.files
        logs = [path for path in files.paths() if path.startswith("topics/orders") and path.endswith(".log")]
        logs = [path for path in logs if len(files.peek(path)) > 1500]
        if logs:
            path = self._dice.choice(logs)
            self._note("rot", machine)
            files.flip(path, self._dice.randrange(8 * 100, 8 * len(files.peek(path)) // 2))

    def _terminate(self, machine: Machine) -> None:
        if machine.is_serving:
            self._note("terminate", machine)

            async def end() -> None:
                clean = await machine.stop(5.0)
                self._world.note(f"node {machine.node_id} ended {'cleanly' if clean else 'by force'}")
                self._restart(machine)

            self._world.background(end())

    def _pause(self, machine: Machine) -> None:
        if machine.is_serving:
            self._note("pause", machine)
            machine.pause()
            self._later(self._dice.choice((0.3, 3.0, 8.0)), machine.resume)

    # -- the cluster itself

    def _grow(self, machine: Machine) -> None:
        """A node joins, and replicas are moved to it."""
        world = self._world
        if self._grown or not any(each.is_serving for each in world.machines):
            return
        self._grown = True
        self._note("grow")
        newcomer = world.grow()

        async def settle() -> None:
            for _ in range(20):
                await asyncio.sleep(0.3)
                if newcomer.is_serving and await world.ask(Rebalance()) is not None:
                    world.note(f"moved replicas to node {newcomer.node_id}")
                    return

        world.background(settle())

    def _move(self, machine: Machine) -> None:
        """A node gives everything away for a while; never more than the others can take."""
        if self._draining or len(self._world.machines) <= self._world.replication:
            return
        self._draining = True
        self._note("drain", machine)
        node_id = machine.node_id

        async def away() -> None:
            if await world.ask(Drain(node_id, True)) is not None:
                await world.ask(Rebalance())
            await asyncio.sleep(self._dice.uniform(0.1, 3.0))
            while await world.ask(Drain(node_id, False)) is None:
                await asyncio.sleep(0.5)
            self._draining = False

        world = self._world
        world.background(away())

    def _retire(self, machine: Machine) -> None:
        """A node gives everything away and leaves for good."""
        world = self._world
        may = machine.is_serving and machine.node_id != 1 and len(world.machines) > world.replication
        if self._retired or self._draining or not may:
            return
        self._retired = self._draining = True
        self._note("retire", machine)
        node_id = machine.node_id

        async def leave() -> None:
            for _ in range(15):
                await world.ask(Drain(node_id, True))
                await world.ask(Rebalance())
                await asyncio.sleep(0.5)
                if await world.ask(Remove(node_id)) is not None or self._is_gone(machine):
                    world.note(f"node {node_id} has left")
                    world.history.count("nodes that left")
                    world.shrink(machine)
                    self._draining = False
                    return
            machine.retiring = False
            while await world.ask(Drain(node_id, False)) is None:
                await asyncio.sleep(0.5)
            self._draining = False

        machine.retiring = True
        world.background(leave())

    def _is_gone(self, machine: Machine) -> bool:
        """It was removed, although nobody heard the answer."""
        others = [each for each in self._world.machines if each.is_serving and each is not machine]
        return any(machine.node_id not in each.service.image.brokers for each in others)

    # -- disks and clocks

    def _slow_disk(self, machine: Machine) -> None:
        self._note("slow disk", machine)
        machine.workers.delay_s = self._dice.choice((0.02, 0.1, 0.3))
        self._later(3.0, lambda: setattr(machine.workers, "delay_s", 0.001))

    def _bad_disk(self, machine: Machine) -> None:
        if machine.is_serving and not machine.disk_is_bad and self._world.power.may_go(machine):
            self._note("bad disk", machine)
            machine.disk_is_bad = True
            self._world.power.goes(machine)
            machine.files.fail(self._dice.choice(("sync", "write")), nth=self._dice.randrange(1, 4))
            owner = machine.owner

            def replace() -> None:
                if machine.owner is owner and machine.is_up:
                    self._world.note(f"restart node {machine.node_id} for its disk")
                    machine.kill()
                    self._restart(machine)

            self._later(3.0, replace)

    def _full_disk(self, machine: Machine) -> None:
        if machine.is_serving:
            self._note("full disk", machine)
            files = machine.files
            files.space_left = self._dice.randrange(0, 2000)

            def empty() -> None:
                files.space_left = None

            self._later(2.0, empty)

    def _jump(self, machine: Machine) -> None:
        self._note("clock jump", machine)
        machine.clock.skew_ms += self._dice.choice((-60_000, -500, 500, 60_000))

    # -- the network

    def _cut_clients(self, machine: Machine) -> None:
        self._note("cut from clients", machine)
        hosts = [f"127.0.9.{number + 1}" for number in range(len(self._world.clients)) if self._dice.random() < 0.6]
        ways = [(host, machine.host) for host in hosts] if self._dice.random() < 0.7 else []
        ways += [(machine.host, host) for host in hosts] if self._dice.random() < 0.7 else []
        self._cut(ways)

    def _isolate(self, machine: Machine) -> None:
        self._note("isolate", machine)
        others = [other.host for other in self._world.machines if other is not machine]
        self._cut([way for other in others for way in ((machine.host, other), (other, machine.host))])

    def _cut_one_way(self, machine: Machine) -> None:
        self._note("cut one way", machine)
        others = [other.host for other in self._world.machines if other is not machine]
        some = self._dice.sample(others, self._dice.randrange(1, len(others) + 1))
        if self._dice.random() < 0.5:
            self._cut([(machine.host, other) for other in some])
        else:
            self._cut([(other, machine.host) for other in some])

    def _partition(self, machine: Machine) -> None:
        self._note("partition", machine)
        hosts = [each.host for each in self._world.machines]
        self._dice.shuffle(hosts)
        at = self._dice.randrange(1, len(hosts))
        self._cut([way for one in hosts[:at] for other in hosts[at:] for way in ((one, other), (other, one))])

    def _cut(self, ways: list[tuple[str, str]]) -> None:
        fabric = self._world.fabric
        fresh = [way for way in ways if not fabric.is_cut(*way)]
        for way in fresh:
            fabric.cut(*way)
        resets = self._dice.random() < 0.3

        def heal() -> None:
            for way in fresh:
                fabric.heal(*way)
                if resets:
                    fabric.reset_streams(*way)

        self._later(self._dice.choice((0.5, 3.0, 8.0)), heal)

    def _reset(self, machine: Machine) -> None:
        self._note("reset", machine)
        self._world.fabric.reset_streams(machine.host)

    def _slow_network(self, machine: Machine) -> None:
        self._note("slow network")
        fabric = self._world.fabric
        fabric.delay_s = self._dice.choice((0.005, 0.02, 0.08))
        self._later(3.0, lambda: setattr(fabric, "delay_s", 0.0005))

    def _lossy(self, machine: Machine) -> None:
        self._note("lossy")
        fabric = self._world.fabric
        fabric.loss, fabric.doubling = self._dice.choice((0.05, 0.3, 0.7)), 0.1

        def mend() -> None:
            fabric.loss = fabric.doubling = 0.0

        self._later(4.0, mend)
