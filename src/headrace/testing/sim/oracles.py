"""The end of a history: clients finish, everything is read, and the promises are held against it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.testing.sim import latest, rebirth
from headrace.testing.sim.admin import CONFIG
from headrace.testing.sim.consumers import read_all
from headrace.testing.sim.history import Violation
from headrace.testing.sim.loop import Owner
from headrace.testing.sim.program import batches

if TYPE_CHECKING:
    from headrace.broker.image import PartitionRecord
    from headrace.storage.log import Log
    from headrace.testing.sim.clients import Partition
    from headrace.testing.sim.world import World


class Finale:
    """Liveness first: what is healed makes progress. Then safety: everything that was promised is there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reader = world.client("final reader")
        self._committed: dict[Partition, list[tuple[int, bytes | None]]] = {}

    async def run(self) -> None:
        await self._progress()
        await self._finish_clients()
        await self._read_everything()
        await Replicas(self._world).check()
        await self._world.programs.check()

    async def _progress(self) -> None:
        """Everybody who works must get something done that was begun after the healing."""
        world, history = self._world, self._world.history
        names = ("acknowledged", "transactions committed", "commits")[: 1 if world.options.simple else 3]
        before = {name: history.facts.get(name, 0) for name in names}
        done = [each.done for each in world.transactors]

        def all_move() -> bool:
            counted = all(history.facts.get(name, 0) > number + 3 for name, number in before.items())
            return counted and all(each.done > was for each, was in zip(world.transactors, done, strict=True))

        await world.until("progress after the healing", all_move, 45)

    async def _finish_clients(self) -> None:
        world = self._world
        for producer in world.producers:
            producer.running = False
        for transactor in world.transactors:
            transactor.running = False
        world.programs.finish()
        await world.until("producers to finish", lambda: not any(each.pending for each in world.producers), 30)
        await world.until("transactions to finish", lambda: not any(each.busy for each in world.transactors), 30)
        ends = {each: await self._end_of(each) for each in world.partitions}

        def copied() -> bool:
            return all(
                world.history.commits.get((copier.group, copier.source), 0) >= ends[copier.source][1]
                for copier in world.copiers
            )

        await world.until("copiers to catch up", copied, 45)
        for copier in world.copiers:
            copier.running = False

        def consumed() -> bool:
            committed = world.history.commits
            groups = {member.group: None for member in world.members}
            orders = {each: end for each, (_, end) in ends.items() if each[0] == "orders"}
            return all(committed.get((group, each), 0) >= end for group in groups for each, end in orders.items())

        await world.until("the groups to catch up", consumed, 45)
        for member in world.members:
            member.running = False
        if world.admin is not None:
            world.admin.running = False
        if world.phoenix is not None:
            world.phoenix.running = False
        if world.keeper is not None:
            world.keeper.running = False
        await world.until("everybody to end", lambda: not world.is_busy, 30)

    async def _end_of(self, partition: Partition) -> tuple[int, int]:
        """Offsets behind the last record, and behind the last committed one that a reader sees.

        Nobody writes orders any more: what was decided about them must come to be seen, a moment later perhaps.
        """
        deadline = self._world.loop.time() + 60
        while True:
            records, end = await self._read(partition, committed_only=True)
            _, whole = await self._read(partition, committed_only=False)
            if end >= whole or partition[0] != "orders":
                return end, (records[-1][0] + 1 if records else 0)
            if self._world.loop.time() > deadline:
                raise Violation(f"{partition} is stable to {end} only, and ends at {whole}")
            await asyncio.sleep(0.1)

    async def _read(self, partition: Partition, *, committed_only: bool) -> tuple[list[tuple[int, bytes | None]], int]:
        world = self._world
        task = world.spawn(Owner("the final reader"), read_all(self._reader, partition, committed_only=committed_only))
        await world.until(f"{partition} to be read", task.done, 30)
        if task.exception() is not None:
            await asyncio.sleep(3600)  # the history has failed; it is told elsewhere
        found: tuple[list[tuple[int, bytes | None]], int] = task.result()
        return found

    async def _read_everything(self) -> None:
        world, history = self._world, self._world.history
        visible: dict[bytes, tuple[Partition, int]] = {}
        for partition in world.partitions:
            everything, _ = await self._read(partition, committed_only=False)
            for offset, value in everything:
                history.read(partition, offset, value, by="the final reader")
            committed, _ = await self._read(partition, committed_only=True)
            self._committed[partition] = committed
            history.check_log(partition, committed, committed=True)
            visible |= {value: (partition, offset) for offset, value in committed if value is not None}
        history.check_transactions(visible)
        if world.phoenix is not None:
            world.phoenix.check((await self._read(rebirth.PLACE, committed_only=False))[0])
        for copier in world.copiers:
            self._check_copies(copier.source, copier.target)

    def _check_copies(self, source: Partition, target: Partition) -> None:
        """Everything once, in order."""
        originals = self._values(source)
        copies = [value.removeprefix(b"copy of ").split(b" by ")[0] for value in self._values(target)]
        if copies != originals:
            for place, (one, other) in enumerate(zip(copies, originals, strict=False)):
                if one != other:
                    raise Violation(f"copy {place} of {source} is {one!r}, and {other!r} was to be copied")
            raise Violation(f"{len(originals)} records of {source} have {len(copies)} copies")

    def _values(self, partition: Partition) -> list[bytes]:
        return [value for _, value in self._committed[partition] if value is not None]


class Replicas:
    """In the end all nodes have the same image, all replicas are in sync, and their logs are the same."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def check(self) -> None:
        world = self._world
        await world.until("the same image everywhere", self._same_images, 30)
        await world.until("all replicas to be in sync", self._all_in_sync, 60)
        await world.until("all replicas to have everything", self._same_ends, 30)
        for machine in world.machines:
            controller = machine.service.controller
            world.watch.saw_image(machine.node_id, controller.applied_index, controller.image)
        if world.admin is not None:
            world.admin.check(world.machines[0].service.image.topics["bills"].configs.get(CONFIG))
        for record in self._records():
            self._compare(record)
        if world.failure is not None:
            raise world.failure

    def _same_images(self) -> bool:
        return len({machine.service.controller.applied_index for machine in self._world.machines}) == 1

    def _records(self) -> list[PartitionRecord]:
        image = self._world.machines[0].service.image
        return [record for topic in image.topics.values() for record in topic.partitions]

    def _all_in_sync(self) -> bool:
        return all(sorted(record.isr) == sorted(record.replicas) for record in self._records())

    def _replicas(self, record: PartitionRecord) -> dict[int, Log]:
        found = {}
        for machine in self._world.machines:
            if machine.node_id in record.replicas:
                partition = machine.service.partitions.replica(record.topic, record.index)
                if partition is None:
                    raise Violation(f"node {machine.node_id} has no replica of {record.topic}-{record.index}")
                found[machine.node_id] = partition.log
        return found

    def _same_ends(self) -> bool:
        return all(len({log.end_offset for log in self._replicas(record).values()}) == 1 for record in self._records())

    def _compare(self, record: PartitionRecord) -> None:
        logs = self._replicas(record)
        for node in self._world.harm.rotten(record):
            del logs[node]  # nobody has read what is damaged there
        if record.topic == latest.NAME:  # compacted by each replica in its own time
            assert self._world.keeper is not None
            self._world.keeper.check(logs)
            return
        begin = max(log.start_offset for log in logs.values())
        seen = {node: batches(log, begin) for node, log in logs.items()}
        first, *others = seen.items()
        for node, found in others:
            if found != first[1]:
                parts = next((pair for pair in zip(first[1], found, strict=False) if pair[0] != pair[1]), None)
                raise Violation(
                    f"nodes {first[0]} and {node} have different logs of {record.topic}-{record.index}: {parts}"
                )
