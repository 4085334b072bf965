"""Who is in sync: what leaders ask of the controller, and what counts while it has not answered."""

from __future__ import annotations

import asyncio

from headrace.broker.commands import AlterInSync, Answer, Command, InSyncAltered
from headrace.broker.image import BrokerRecord
from headrace.core.errors import ApiError, ErrorCode
from headrace.testing.replicas import ReplicaCluster


def two() -> ReplicaCluster:
    cluster = ReplicaCluster(1, 2)
    cluster.make_topic((1, 2))
    return cluster


async def shrink(cluster: ReplicaCluster) -> None:
    """Node 2 is cut off until node 1 is alone in sync."""
    cluster.cut(1, 2)
    await asyncio.sleep(0.6)
    await cluster.nodes[1].produce(b"a")
    assert cluster.record().isr == (1,)


def test_a_leader_that_the_controller_does_not_hear_acknowledges_nothing_alone() -> None:
    cluster = two()

    async def scenario() -> None:
        await cluster.start()
        cluster.cut(1, 2)
        cluster.silent = True
        await asyncio.sleep(0.6)
        end = cluster.nodes[1].append(b"a")
        await asyncio.sleep(60)
        assert cluster.nodes[1].get().high_watermark < end
        cluster.silent = False
        await cluster.until(lambda: cluster.nodes[1].get().high_watermark == end)

    cluster.run(scenario())


def test_one_that_was_asked_for_counts_until_it_is_known_that_it_did_not_join() -> None:
    cluster = two()

    async def scenario() -> None:
        await cluster.start()
        await shrink(cluster)
        asked: list[AlterInSync] = []
        answer = cluster.ask

        async def lose(command: Command, *, timeout_s: float = 10.0) -> Answer:
            """The controller does it, and nobody hears of it."""
            assert isinstance(command, AlterInSync)
            asked.append(command)
            await asyncio.sleep(0)
            raise ApiError(ErrorCode.request_timed_out)

        cluster.nodes[1].in_sync._quorum.ask = lose  # type: ignore[method-assign]
        cluster.heal()
        await cluster.until(lambda: asked)
        assert asked[0].changes[0].isr == (1, 2)
        assert asked[0].changes[0].epochs == (-1, 1)
        cluster.cut(1, 2)
        await asyncio.sleep(0.6)
        end = cluster.nodes[1].append(b"b")
        await asyncio.sleep(60)
        # Node 2 may be in sync, for all that is known: it could be elected.
        assert cluster.nodes[1].get().high_watermark < end

        # The controller is heard again, and node 2 is fenced: it did not join, and will not.
        node = cluster.image.brokers[2]
        cluster.decide(BrokerRecord(2, node.host, node.port, epoch=1, fenced=True))
        cluster.nodes[1].in_sync._quorum.ask = answer  # type: ignore[method-assign]
        await cluster.until(lambda: cluster.nodes[1].get().high_watermark == end)
        assert cluster.record().isr == (1,)

    cluster.run(scenario())


def test_a_node_that_is_fenced_or_was_started_again_does_not_join() -> None:
    cluster = two()

    async def scenario() -> None:
        await cluster.start()
        await shrink(cluster)
        node = cluster.image.brokers[2]
        cluster.decide(BrokerRecord(2, node.host, node.port, epoch=1, fenced=True))
        cluster.heal()
        await asyncio.sleep(30)
        assert cluster.nodes[2].values() == cluster.nodes[1].values()
        assert cluster.record().isr == (1,)
        cluster.decide(BrokerRecord(2, node.host, node.port, epoch=1))
        await cluster.until(lambda: cluster.record().isr == (1, 2))

    cluster.run(scenario())


def test_who_keeps_up_but_is_fenced_is_waited_for_no_longer() -> None:
    cluster = two()

    async def scenario() -> None:
        await cluster.start()
        await shrink(cluster)
        cluster.silent = True
        cluster.heal()
        leader = cluster.nodes[1]
        await cluster.until(lambda: cluster.nodes[2].get().log.end_offset == 1)
        await asyncio.sleep(0.1)
        cluster.kill(2)
        cluster.silent = False
        node = cluster.image.brokers[2]
        begun = cluster.loop.time()
        cluster.decide(BrokerRecord(2, node.host, node.port, epoch=2, fenced=True))
        await leader.produce(b"b")
        assert cluster.loop.time() - begun < 1.9  # less than a follower may lag
        assert cluster.record().isr == (1,)

    cluster.run(scenario())


def test_refusals_end_a_wish() -> None:
    cluster = two()

    async def scenario() -> None:
        await cluster.start()
        await shrink(cluster)
        answer, asked = cluster.ask, []

        async def refuse(command: Command, *, timeout_s: float = 10.0) -> Answer:
            asked.append(command)
            return InSyncAltered((ErrorCode.ineligible_replica,))

        cluster.nodes[1].in_sync._quorum.ask = refuse  # type: ignore[method-assign]
        cluster.heal()
        await cluster.until(lambda: asked)
        await asyncio.sleep(0.01)
        cluster.cut(1, 2)
        await asyncio.sleep(0.6)
        await cluster.nodes[1].produce(b"b")  # alone, for node 2 did not join
        cluster.nodes[1].in_sync._quorum.ask = answer  # type: ignore[method-assign]
        cluster.heal()
        await cluster.until(lambda: cluster.record().isr == (1, 2))

    cluster.run(scenario())
