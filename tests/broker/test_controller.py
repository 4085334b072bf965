"""The single-node controller: order, durability before answers, replay, snapshots, and going offline."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from headrace.broker.controller import FORMAT, Controller, Proposal
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
from headrace.broker.metadata_log import MemoryMetadataLog
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, DiskFullError, ErrorCode


class HeldLog(MemoryMetadataLog):
    """Syncs only when told, and fails when told."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.syncs = 0
        self.append_error: Exception | None = None
        self.sync_error: Exception | None = None

    def append(self, entry: bytes) -> int:
        if self.append_error is not None:
            raise self.append_error
        return super().append(entry)

    async def synced(self, offset: int) -> None:
        self.syncs += 1
        await self.gate.wait()
        if self.sync_error is not None:
            raise self.sync_error


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
        controller = Controller(MemoryMetadataLog())
        image = await controller.propose(topic("orders"))
        assert image.topics["orders"].topic_id == UUID(int=1)
        assert controller.image is image

    asyncio.run(scenario())


def test_nothing_is_shown_or_answered_before_it_is_synced():
    async def scenario():
        log = HeldLog()
        controller = Controller(log)
        seen = []
        controller.subscribe(lambda old, new: seen.append(new))
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        assert len(log.entries) == 1
        assert "orders" in controller.proposed.topics
        assert not task.done()
        assert controller.image == Image()
        assert seen == []
        log.gate.set()
        await task
        assert seen == [controller.image]

    asyncio.run(scenario())


def test_subscribers_see_every_change_in_order_even_when_one_sync_covers_many():
    async def scenario():
        log = HeldLog()
        controller = Controller(log)
        seen = []
        controller.subscribe(lambda old, new: seen.append((old.next_producer_id, new.next_producer_id)))
        tasks = [asyncio.create_task(controller.propose([ProducerIdsRecord(n)])) for n in (1, 2, 3)]
        await settle()
        log.gate.set()
        images = await asyncio.gather(*tasks)
        assert seen == [(0, 1), (1, 2), (2, 3)]
        assert [image.next_producer_id for image in images] == [1, 2, 3]
        assert log.syncs == 1

    asyncio.run(scenario())


def test_a_proposal_outlives_the_caller_that_made_it():
    async def scenario():
        log = HeldLog()
        controller = Controller(log)
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        task.cancel()
        await settle()
        log.gate.set()
        await controller.close()
        assert "orders" in controller.image.topics

    asyncio.run(scenario())


def test_an_empty_proposal_waits_for_those_before_it_and_writes_nothing():
    async def scenario():
        log = HeldLog()
        controller = Controller(log)
        assert await controller.propose([]) is controller.image
        first = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        second = asyncio.create_task(controller.propose([]))
        await settle()
        assert not second.done()
        log.gate.set()
        assert "orders" in (await second).topics
        await first
        assert len(log.entries) == 1

    asyncio.run(scenario())


def test_replay_gives_the_image_back():
    async def scenario():
        log = MemoryMetadataLog()
        controller = Controller(log)
        await controller.propose([BrokerRecord(1, "localhost", 9092, "rack")])
        await controller.propose(topic("orders", partitions=3))
        await controller.propose([ConfigRecord("topic", "orders", "retention.ms", "5"), ProducerIdsRecord(1000)])
        await controller.propose(topic("gone", 2))
        await controller.propose([RemoveTopicRecord("gone")])
        again = Controller(log)
        assert again.load() == controller.image == again.proposed

    asyncio.run(scenario())


def test_a_growing_log_is_replaced_by_a_snapshot_that_replays_to_the_same_image():
    async def scenario():
        log = MemoryMetadataLog()
        controller = Controller(log, snapshot_after=10)
        await controller.propose(topic("orders"))
        for n in range(100):
            await controller.propose([ConfigRecord("topic", "orders", "retention.ms", str(n))])
        await controller.close()
        assert len(log.entries) < 25
        again = Controller(log, snapshot_after=10)
        assert again.load() == controller.image
        await again.propose([ConfigRecord("topic", "orders", "retention.ms", "last")])
        assert Controller(log).load() == again.image

    asyncio.run(scenario())


def test_snapshots_do_not_become_more_frequent_as_the_image_grows():
    async def scenario():
        log = MemoryMetadataLog()
        controller = Controller(log, snapshot_after=10)
        snapshots = 0
        for n in range(200):
            before = min(log.entries, default=0)
            await controller.propose(topic(f"t{n}", n + 1))
            await settle()
            snapshots += min(log.entries) != before
        assert snapshots < 8

    asyncio.run(scenario())


def test_a_snapshot_may_be_taken_while_proposals_are_under_way():
    async def scenario():
        log = HeldLog()
        controller = Controller(log, snapshot_after=3)
        tasks = [asyncio.create_task(controller.propose(topic(f"t{n}", n + 1))) for n in range(20)]
        await settle()
        log.gate.set()
        late = asyncio.create_task(controller.propose(topic("late", 99)))
        await asyncio.gather(*tasks, late)
        await controller.close()
        assert len(controller.image.topics) == 21
        assert Controller(log).load() == controller.image

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xff\xff",
        msgspec.msgpack.encode(Proposal(FORMAT + 1, False, [])),
        msgspec.msgpack.encode([FORMAT, False, [["no-such-record", 1]]]),
        msgspec.msgpack.encode(Proposal(FORMAT, False, [PartitionRecord("absent", 0, (1,), (1,), 1, 0)])),
        msgspec.msgpack.encode(Proposal(FORMAT, False, [*topic("a"), PartitionRecord("a", 7, (1,), (1,), 1, 0)])),
    ],
)
def test_a_log_that_cannot_be_replayed_stops_start_up_and_says_why(entry):
    log = MemoryMetadataLog()
    log.append(entry)
    with pytest.raises(CorruptionError, match="metadata log cannot be replayed: entry 0"):
        Controller(log).load()


def test_a_full_disk_refuses_a_proposal_and_the_next_one_works():
    async def scenario():
        log = HeldLog()
        log.gate.set()
        controller = Controller(log)
        log.append_error = DiskFullError("no space")
        with pytest.raises(ApiError) as refused:
            await controller.propose(topic("orders"))
        assert refused.value.code is ErrorCode.kafka_storage_error
        assert controller.proposed == Image()
        log.append_error = None
        assert "orders" in (await controller.propose(topic("orders"))).topics

    asyncio.run(scenario())


def test_a_full_disk_during_a_snapshot_costs_nothing():
    async def scenario():
        log = HeldLog()
        log.gate.set()
        controller = Controller(log, snapshot_after=1)
        controller.subscribe(lambda old, new: setattr(log, "append_error", DiskFullError("no space")))
        await controller.propose(topic("orders"))
        await controller.close()
        assert controller.fault is None
        log.append_error = None
        await controller.propose(topic("more", 2))
        assert Controller(log).load() == controller.image

    asyncio.run(scenario())


def test_a_failed_append_takes_the_controller_offline():
    async def scenario():
        log = HeldLog()
        controller = Controller(log)
        log.append_error = DiskFailedError("EIO")
        for _ in range(2):
            with pytest.raises(ApiError) as refused:
                await controller.propose(topic("orders"))
            assert refused.value.code is ErrorCode.kafka_storage_error
            log.append_error = None
        assert controller.image == controller.proposed == Image()
        assert log.entries == {}

    asyncio.run(scenario())


def test_a_failed_sync_acknowledges_nothing_and_takes_the_controller_offline():
    async def scenario():
        log = HeldLog()
        controller = Controller(log)
        tasks = [asyncio.create_task(controller.propose(topic(f"t{n}", n + 1))) for n in range(3)]
        await settle()
        log.sync_error = DiskFailedError("fsync failed")
        log.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [outcome.code for outcome in outcomes] == [ErrorCode.kafka_storage_error] * 3
        assert isinstance(controller.fault, DiskFailedError)
        assert controller.image == Image()
        with pytest.raises(ApiError):
            await controller.propose([])
        assert log.syncs == 1

    asyncio.run(scenario())


def test_a_subscriber_that_raises_leaves_nobody_waiting():
    async def scenario():
        controller = Controller(MemoryMetadataLog())

        def broken(old, new):
            raise RuntimeError("a bug")

        controller.subscribe(broken)
        with pytest.raises(ApiError):
            await controller.propose(topic("orders"))
        assert isinstance(controller.fault, RuntimeError)

    asyncio.run(scenario())


def test_a_record_that_does_not_fit_the_image_is_never_written():
    async def scenario():
        log = MemoryMetadataLog()
        controller = Controller(log)
        with pytest.raises(KeyError):
            await controller.propose([PartitionRecord("absent", 0, (1,), (1,), 1, 0)])
        assert log.entries == {}
        assert records_of(controller.proposed) == []

    asyncio.run(scenario())


def test_a_proposal_is_answered_when_its_subscribers_have_settled():
    async def scenario():
        controller = Controller(MemoryMetadataLog())
        opened = asyncio.Event()
        controller.subscribe(lambda old, new: None, settled=lambda: opened.wait())
        task = asyncio.create_task(controller.propose(topic("orders")))
        await settle()
        assert "orders" in controller.image.topics
        assert not task.done()
        opened.set()
        await task

    asyncio.run(scenario())
