"""Coordinators live where their partitions are led, and move with them."""

from __future__ import annotations

import asyncio
import gc
from itertools import count
from typing import Any

import pytest

from headrace.broker.groups import GroupCoordinator
from headrace.broker.internal_topics import OFFSETS_TOPIC
from headrace.broker.markers import EndMarker
from headrace.broker.shards import Shards, partition_for
from headrace.broker.transactions import TRANSACTION_TOPIC, TransactionCoordinator
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import OffsetToCommit
from headrace.group.settings import GroupSettings
from headrace.testing.metadata import InlineWorkers
from headrace.testing.replicas import ReplicaCluster, ReplicaNode
from headrace.testing.sim.clock import SimClock
from headrace.txn.settings import TransactionSettings

NOT_COORDINATOR = ErrorCode.not_coordinator


class Topic:
    """An internal topic as one node of a cluster sees it."""

    alone = False

    def __init__(self, node: ReplicaNode) -> None:
        self.node = node

    def find(self) -> list[Any]:
        cluster = self.node.cluster
        topic = self.node.image.topics.get(cluster.topic)
        if topic is None:
            return []
        parts = [self.node.partitions.replica(cluster.topic, record.index) for record in topic.partitions]
        return [part if part is not None and part.leads else None for part in parts]

    async def ensure(self) -> list[Any]:
        return self.find()

    def absence(self, index: int) -> ApiError:
        return ApiError(NOT_COORDINATOR)


class Markers:
    """Markers that are never written while `refuse` is set."""

    def __init__(self) -> None:
        self.written: list[EndMarker] = []
        self.refuse = False

    async def write(self, marker: EndMarker) -> None:
        if self.refuse:
            raise ApiError(ErrorCode.leader_not_available)
        self.written.append(marker)


def groups_on(node: ReplicaNode) -> GroupCoordinator:
    ids = count(1)
    coordinator = GroupCoordinator(
        GroupSettings(initial_rebalance_delay_ms=0),
        Topic(node),
        clock=SimClock(node.cluster.loop.time),
        workers=InlineWorkers(),
        new_id=lambda: f"member-{next(ids)}",
    )
    node.partitions.watchers.append(coordinator.role_changed)
    return coordinator


def transactions_on(node: ReplicaNode, markers: Markers) -> TransactionCoordinator:
    ids = count(100 * node.node_id)

    async def next_id() -> int:
        return next(ids)

    coordinator = TransactionCoordinator(
        TransactionSettings(),
        Topic(node),
        markers,
        offsets_topic=Topic(node),
        next_producer_id=next_id,
        clock=SimClock(node.cluster.loop.time),
        workers=InlineWorkers(),
    )
    node.partitions.watchers.append(coordinator.role_changed)
    return coordinator


async def refusal(work: Any) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        await work
    return refused.value.code


async def offset_of(groups: GroupCoordinator) -> int:
    """The committed offset, when the group is loaded."""
    while True:
        try:
            [row] = await groups.fetch("g", [("orders", 0)])
            return row.offset
        except ApiError as error:
            if error.code is not ErrorCode.coordinator_load_in_progress:
                raise
            await asyncio.sleep(0.001)


def test_a_topic_that_nobody_waits_for_any_more_may_fail_to_be_made_in_silence() -> None:
    """A client that asked for a coordinator has gone: its request is cancelled, the making of the topic is not."""

    class Refused(Topic):
        def __init__(self) -> None:
            self.decided = asyncio.Event()

        def find(self) -> list[Any]:
            return []

        async def ensure(self) -> list[Any]:
            await self.decided.wait()
            raise ApiError(ErrorCode.not_controller, "another node leads now")

    async def scenario() -> list[dict[str, Any]]:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        topic = Refused()
        shards: Shards[Any] = Shards(OFFSETS_TOPIC, topic, lambda _: None)
        asking = asyncio.create_task(shards.ensure())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        topic.decided.set()
        for _ in range(3):
            await asyncio.sleep(0)
        del shards, topic, asking
        gc.collect()
        return unhandled

    assert asyncio.run(scenario()) == []


def test_committed_offsets_move_with_the_leadership() -> None:
    cluster = ReplicaCluster(1, 2, 3, topic=OFFSETS_TOPIC)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await cluster.start()
        groups = {n: groups_on(node) for n, node in cluster.nodes.items()}
        for coordinator in groups.values():
            await coordinator.start()
        await groups[1].commit(group="g", offsets=[OffsetToCommit("orders", 0, 42)])
        assert await offset_of(groups[1]) == 42
        assert await refusal(groups[2].fetch("g", [("orders", 0)])) is NOT_COORDINATOR

        cluster.elect(2)
        assert await refusal(groups[1].commit(group="g", offsets=[OffsetToCommit("orders", 0, 43)])) is NOT_COORDINATOR
        assert await offset_of(groups[2]) == 42
        assert await refusal(groups[1].fetch("g", [("orders", 0)])) is NOT_COORDINATOR

        cluster.elect(1)  # and back: what was loaded before is not used again
        await groups[2].stop()
        assert await offset_of(groups[1]) == 42
        for n in (1, 3):
            await groups[n].stop()

    cluster.run(scenario())


def test_who_waits_for_a_commit_when_the_group_moves_is_sent_to_the_other_node() -> None:
    cluster = ReplicaCluster(1, 2, topic=OFFSETS_TOPIC)
    cluster.make_topic((1, 2))

    async def scenario() -> None:
        await cluster.start()
        groups = groups_on(cluster.nodes[1])
        await groups.start()
        cluster.cut(1, 2)
        await asyncio.sleep(0.6)
        commit = asyncio.ensure_future(groups.commit(group="g", offsets=[OffsetToCommit("orders", 0, 42)]))
        await asyncio.sleep(0.1)
        assert not commit.done()
        cluster.elect(2)
        assert await refusal(commit) is NOT_COORDINATOR
        await groups.stop()

    cluster.run(scenario())


def test_a_new_coordinator_writes_the_markers_that_the_old_one_could_not() -> None:
    cluster = ReplicaCluster(1, 2, 3, topic=TRANSACTION_TOPIC)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await cluster.start()
        markers = {n: Markers() for n in cluster.nodes}
        coordinators = {n: transactions_on(node, markers[n]) for n, node in cluster.nodes.items()}
        for coordinator in coordinators.values():
            await coordinator.start()
        markers[1].refuse = True
        who = await coordinators[1].init_producer_id("t", 60_000)
        assert who.error is ErrorCode.none
        identity = (who.producer_id, who.producer_epoch)
        assert await coordinators[1].add_partitions("t", *identity, [("orders", 0)]) is ErrorCode.none
        assert (await coordinators[1].end("t", *identity, commit=True, bump=True)).error is ErrorCode.none
        assert not markers[1].written

        cluster.elect(2)
        await cluster.until(lambda: markers[2].written)
        assert markers[2].written == [
            EndMarker("orders", 0, who.producer_id, who.producer_epoch + 1, True, 1, bumped=True)
        ]
        assert await refusal(coordinators[1].init_producer_id("t", 60_000)) is NOT_COORDINATOR
        again = await coordinators[2].init_producer_id("t", 60_000)
        assert (again.error, again.producer_id) == (ErrorCode.none, who.producer_id)
        await asyncio.sleep(5)
        assert not markers[1].written  # the old one has stopped trying
        for coordinator in coordinators.values():
            await coordinator.stop()

    cluster.run(scenario())


def test_a_node_that_does_not_know_the_topic_sends_readers_away_unless_it_is_alone() -> None:
    cluster = ReplicaCluster(1, 2, topic=OFFSETS_TOPIC)

    async def scenario() -> None:
        await cluster.start()
        topic = Topic(cluster.nodes[1])
        shards: Shards[Any] = Shards(OFFSETS_TOPIC, topic, lambda log: log)
        with pytest.raises(ApiError) as refused:
            shards.exist()
        assert refused.value.code is NOT_COORDINATOR
        topic.alone = True
        assert not shards.exist()

    cluster.run(scenario())


def test_names_live_where_kafka_keeps_them() -> None:
    # Java: Math.abs("hello".hashCode()) % 50
    assert partition_for("hello", 50) == 99162322 % 50
