"""The controller of one node: order, durability before answers, replay, snapshots, and going offline."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from headrace.broker.controller import FORMAT, Proposal, image_of
from headrace.broker.image import (
    BrokerRecord,
    ConfigRecord,
    Image,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    records_of,
)
from headrace.broker.raft_storage import UnsavedStorage
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, DiskFullError, ErrorCode
from headrace.raft.ready import Save
from headrace.raft.records import Entry
from headrace.testing.metadata import InlineWorkers, lone_controller


class Disk(UnsavedStorage):
    """Fails when told."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.error: Exception | None = None
        self.rewrite_error: Exception | None = None
        self.writes = 0

    @property
    def proposals(self) -> list[Entry]:
        return [entry for entry in self.entries(self.first_index(), self.last_index() + 1, 2**62) if entry.payload]

    def room_for(self, size_bytes: int) -> None:
        if self.full:
            raise DiskFullError("no space")

    def write(self, saves) -> None:
        self.writes += 1
        if self.error is not None:
            raise self.error

    def rewrite(self, snapshot) -> None:
        if self.rewrite_error is not None:
            raise self.rewrite_error


class HeldWorkers(InlineWorkers):
    """Work only when told."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def run(self, work):
        await self.gate.wait()
        return work()


def topic(name: str, number: int = 1, partitions: int = 1) -> list:
    return [
        TopicRecord(name, UUID(int=number)),
        *(PartitionRecord(name, index, (1,), (1,), 1, 0) for index in range(partitions)),
    ]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_proposal_is_applied_and_answered_with_the_image_that_holds_it():
    async def scenario():
        controller = lone_controller()
        image = await controller.propose(topic("orders"))
        assert image.topics["orders"].topic_id == UUID(int=1)
        assert controller.image is image

    asyncio.run(scenario())


def test_a_node_alone_leads_when_it_is_loaded():
    controller = lone_controller()
    assert controller.leads
    assert controller.quorum.leader == 1
    assert controller.quorum.is_alone


def test_nothing_is_shown_or_answered_before_it_is_synced():
    async def scenario():
        workers = HeldWorkers()
        controller = lone_controller(workers=workers)
        seen = []
        controller.subscribe(lambda old, new: seen.append(new))
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        assert "orders" in controller.proposed.topics
        assert not task.done()
        assert controller.image == Image()
        assert seen == []
        workers.gate.set()
        await task
        assert seen == [controller.image]

    asyncio.run(scenario())


def test_subscribers_see_every_change_in_order_even_when_one_sync_covers_many():
    async def scenario():
        disk, workers = Disk(), HeldWorkers()
        controller = lone_controller(disk, workers=workers)
        seen = []
        controller.subscribe(lambda old, new: seen.append((old.next_producer_id, new.next_producer_id)))
        before = disk.writes
        tasks = [asyncio.create_task(controller.propose([ProducerIdsRecord(n)])) for n in (1, 2, 3, 4)]
        await settle()
        workers.gate.set()
        images = await asyncio.gather(*tasks)
        assert seen == [(0, 1), (1, 2), (2, 3), (3, 4)]
        assert [image.next_producer_id for image in images] == [1, 2, 3, 4]
        assert disk.writes - before <= 2  # the first goes alone, the others share

    asyncio.run(scenario())


def test_a_proposal_outlives_the_caller_that_made_it():
    async def scenario():
        workers = HeldWorkers()
        controller = lone_controller(workers=workers)
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        task.cancel()
        await settle()
        workers.gate.set()
        await controller.close()
        assert "orders" in controller.image.topics

    asyncio.run(scenario())


def test_an_empty_proposal_waits_for_those_before_it_and_writes_nothing():
    async def scenario():
        disk, workers = Disk(), HeldWorkers()
        controller = lone_controller(disk, workers=workers)
        assert await controller.propose([]) is controller.image
        first = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        second = asyncio.create_task(controller.propose([]))
        await settle()
        assert not second.done()
        workers.gate.set()
        assert "orders" in (await second).topics
        await first
        assert len(disk.proposals) == 1

    asyncio.run(scenario())


def test_replay_gives_the_image_back():
    async def scenario():
        disk = Disk()
        controller = lone_controller(disk)
        await controller.propose([BrokerRecord(1, "localhost", 9092, "rack")])
        await controller.propose(topic("orders", partitions=3))
        await controller.propose([ConfigRecord("topic", "orders", "retention.ms", "5"), ProducerIdsRecord(1000)])
        await controller.propose(topic("gone", 2))
        await controller.propose([RemoveTopicRecord("gone")])
        assert image_of(disk) == controller.image
        again = lone_controller(disk)
        assert again.image == controller.image == again.proposed
        assert again.known_addresses() == {1: ("localhost", 9092)}

    asyncio.run(scenario())


def test_a_growing_log_is_replaced_by_a_snapshot_that_replays_to_the_same_image():
    async def scenario():
        disk = Disk()
        controller = lone_controller(disk, snapshot_after=10)
        await controller.propose(topic("orders"))
        for n in range(100):
            await controller.propose([ConfigRecord("topic", "orders", "retention.ms", str(n))])
        await controller.close()
        assert len(disk.proposals) < 25
        again = lone_controller(disk, snapshot_after=10)
        assert again.image == controller.image
        await again.propose([ConfigRecord("topic", "orders", "retention.ms", "last")])
        await again.close()
        assert lone_controller(disk).image == again.image

    asyncio.run(scenario())


def test_snapshots_do_not_become_more_frequent_as_the_image_grows():
    async def scenario():
        disk = Disk()
        controller = lone_controller(disk, snapshot_after=10)
        snapshots = 0
        for n in range(200):
            before = disk.snapshot().index
            await controller.propose(topic(f"t{n}", n + 1))
            await settle()
            snapshots += disk.snapshot().index != before
        assert 0 < snapshots < 8

    asyncio.run(scenario())


def test_a_snapshot_may_be_taken_while_proposals_are_under_way():
    async def scenario():
        disk, workers = Disk(), HeldWorkers()
        controller = lone_controller(disk, workers=workers, snapshot_after=3)
        tasks = [asyncio.create_task(controller.propose(topic(f"t{n}", n + 1))) for n in range(20)]
        await settle()
        workers.gate.set()
        late = asyncio.create_task(controller.propose(topic("late", 99)))
        await asyncio.gather(*tasks, late)
        await controller.close()
        assert len(controller.image.topics) == 21
        assert disk.snapshot().index > 0
        assert lone_controller(disk).image == controller.image

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "entry",
    [
        b"\xff\xff",
        msgspec.msgpack.encode(Proposal(FORMAT + 1, False, [])),
        msgspec.msgpack.encode([FORMAT, False, [["no-such-record", 1]]]),
        msgspec.msgpack.encode(Proposal(FORMAT, False, [PartitionRecord("absent", 0, (1,), (1,), 1, 0)])),
        msgspec.msgpack.encode(Proposal(FORMAT, False, [*topic("a"), PartitionRecord("a", 7, (1,), (1,), 1, 0)])),
    ],
)
def test_a_log_that_cannot_be_replayed_stops_start_up_and_says_why(entry):
    disk = Disk()
    lone_controller(disk)
    place = disk.last_index() + 1
    disk.save(Save(entries=(Entry(place, 2, entry),)))
    with pytest.raises(CorruptionError, match=f"metadata log cannot be replayed: entry {place}"):
        lone_controller(disk)


def test_a_full_disk_refuses_a_proposal_and_the_next_one_works():
    async def scenario():
        disk = Disk()
        controller = lone_controller(disk)
        disk.full = True
        with pytest.raises(ApiError) as refused:
            await controller.propose(topic("orders"))
        assert refused.value.code is ErrorCode.kafka_storage_error
        assert controller.proposed == Image()
        disk.full = False
        assert "orders" in (await controller.propose(topic("orders"))).topics

    asyncio.run(scenario())


def test_a_full_disk_during_a_snapshot_costs_nothing():
    async def scenario():
        disk = Disk()
        controller = lone_controller(disk, snapshot_after=1)
        disk.rewrite_error = DiskFullError("no space")
        await controller.propose(topic("orders"))
        await settle()
        assert controller.fault is None
        disk.rewrite_error = None
        await controller.propose(topic("more", 2))
        await controller.close()
        assert lone_controller(disk).image == controller.image

    asyncio.run(scenario())


def test_a_failed_save_acknowledges_nothing_and_takes_the_controller_offline():
    async def scenario():
        disk, workers = Disk(), HeldWorkers()
        controller = lone_controller(disk, workers=workers)
        before = disk.writes
        tasks = [asyncio.create_task(controller.propose(topic(f"t{n}", n + 1))) for n in range(3)]
        await settle()
        disk.error = DiskFailedError("fsync failed")
        workers.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome.code for outcome in outcomes] == [ErrorCode.kafka_storage_error] * 3
        assert isinstance(controller.fault, DiskFailedError)
        assert controller.image == controller.proposed == Image()
        disk.error = None
        with pytest.raises(ApiError):
            await controller.propose([])
        assert not controller.leads
        assert disk.writes == before + 1

    asyncio.run(scenario())


def test_a_subscriber_that_raises_leaves_nobody_waiting():
    async def scenario():
        controller = lone_controller()

        def broken(old, new):
            raise RuntimeError("a bug")

        controller.subscribe(broken)
        with pytest.raises(ApiError):
            await controller.propose(topic("orders"))
        assert isinstance(controller.fault, RuntimeError)

    asyncio.run(scenario())


def test_a_record_that_does_not_fit_the_image_is_never_written():
    async def scenario():
        disk = Disk()
        controller = lone_controller(disk)
        with pytest.raises(KeyError):
            await controller.propose([PartitionRecord("absent", 0, (1,), (1,), 1, 0)])
        assert disk.proposals == []
        assert records_of(controller.proposed) == []

    asyncio.run(scenario())


def test_a_proposal_is_answered_when_its_subscribers_have_settled():
    async def scenario():
        controller = lone_controller()
        opened = asyncio.Event()
        controller.subscribe(lambda old, new: None, settled=lambda: opened.wait())
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        assert "orders" in controller.image.topics
        assert not task.done()
        opened.set()
        await task

    asyncio.run(scenario())


def test_who_waits_for_an_index_is_told_when_it_is_applied():
    async def scenario():
        workers = HeldWorkers()
        controller = lone_controller(workers=workers)
        index = controller.applied_index + 1
        await controller.applied(index - 1)
        waiting = asyncio.create_task(controller.applied(index))
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        assert not waiting.done()
        workers.gate.set()
        await waiting
        await task

    asyncio.run(scenario())
