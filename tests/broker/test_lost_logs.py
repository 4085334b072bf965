"""Logs that are missing, swapped, older or damaged when a node starts: noticed, kept, and never taught to others."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.image import BrokerRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.storage.identity import IDENTITY
from headrace.storage.manifest import Manifest
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.replicas import TOPIC, ReplicaCluster, ReplicaNode

PATH = f"topics/{TOPIC}-0"


def alone(*, partitions: int = 1) -> ReplicaCluster:
    cluster = ReplicaCluster(1, flush="ack")
    cluster.new_files = FaultyFiles
    cluster.make_topic(*[(1,)] * partitions)
    return cluster


async def filled(cluster: ReplicaCluster, count: int = 3, *, index: int = 0) -> ReplicaNode:
    if not cluster.nodes:
        await cluster.start()
    leader = cluster.nodes[cluster.record(index).leader]
    for number in range(count):
        await leader.produce(b"%d" % number, index=index)
    return leader


async def stopped(node: ReplicaNode, *, exact: bool = True) -> None:
    """As a broker stops; without `exact` it is killed when its checkpoint is done."""
    await node.partitions.known.checkpoint(node.partitions)
    await node.stop()
    if exact:
        await node.partitions.stop()


async def again(cluster: ReplicaCluster, node_id: int = 1) -> ReplicaNode:
    record = cluster.image.brokers[node_id]
    cluster.decide(BrokerRecord(node_id, record.host, record.port, epoch=record.epoch + 1))
    await cluster.start(node_id)
    return cluster.nodes[node_id]


def refused(node: ReplicaNode, index: int = 0) -> str:
    with pytest.raises(ApiError) as error:
        node.partitions.get(TOPIC, index)
    assert error.value.code is ErrorCode.kafka_storage_error
    return str(error.value)


def test_a_log_that_is_where_it_was_goes_on() -> None:
    cluster = alone()

    async def scenario() -> None:
        await stopped(await filled(cluster))
        node = await again(cluster)
        assert [value for _, value in node.values()] == [b"0", b"1", b"2"]
        assert node.partitions.faults == []
        assert node.partitions.known_high_watermark(cluster.image.topics[TOPIC], 0) == 3

    cluster.run(scenario())


def missing(files: FaultyFiles, _: FaultyFiles) -> None:
    files.put(PATH, None)


def older(files: FaultyFiles, backup: FaultyFiles) -> None:
    files.put(PATH, backup)


def other(files: FaultyFiles, _: FaultyFiles) -> None:
    copy = files.copy()
    copy.remove(PATH)
    copy.rename(f"topics/{TOPIC}-1", PATH)
    files.put(PATH, copy)


DAMAGES = {"is missing": missing, "older copy": older, "swapped": other}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("message", DAMAGES)
def test_a_lost_log_of_a_lone_node_is_offline_and_nothing_is_removed(message: str, exact: bool) -> None:
    cluster = alone(partitions=2)

    async def scenario() -> None:
        leader = await filled(cluster)
        backup = leader.files.copy()
        await filled(cluster, 2)
        await filled(cluster, 9, index=1)
        await stopped(leader, exact=exact)
        DAMAGES[message](leader.files, backup)
        before = [path for path in leader.files.paths() if path.startswith(PATH)]
        for _ in range(3):
            node = await again(cluster)
            said = refused(node)
            assert message in said or (not exact and "put back from a copy" in said)
            assert "headrace log accept DIR orders 0" in said
            assert [path for path in node.files.paths() if path.startswith(PATH)] == before
            assert len(node.values(1)) == 9, "the other one goes on"
            await node.stop()

    cluster.run(scenario())


def test_the_newest_directory_may_be_put_back() -> None:
    cluster = alone()

    async def scenario() -> None:
        leader = await filled(cluster)
        await stopped(leader)
        newest = leader.files.copy()
        leader.files.put(PATH, None)
        node = await again(cluster)
        refused(node)
        await node.stop()
        await node.partitions.stop()
        node.files.put(PATH, newest)
        assert len((await again(cluster)).values()) == 3

    cluster.run(scenario())


def test_a_damaged_identity_is_mended() -> None:
    cluster = alone()

    async def scenario() -> None:
        leader = await filled(cluster)
        await stopped(leader)
        leader.files.flip(f"{PATH}/{IDENTITY}", 100)
        node = await again(cluster)
        assert len(node.values()) == 3
        await node.produce(b"more")
        assert leader.files.peek(f"{PATH}/{IDENTITY}")[:8].isalnum()

    cluster.run(scenario())


def test_a_topic_that_is_made_again_adopts_nothing_of_its_former_life() -> None:
    """The directory's names survive a power cut, and what it says of itself does not: the manifest knows."""
    for seed in range(40):
        cluster = alone()

        async def scenario(cluster: ReplicaCluster = cluster, seed: int = seed) -> None:
            await cluster.start()
            node = cluster.nodes[1]
            node.append(b"of the first life")  # not synced: it may survive, and its identity may not
            await cluster.lose_power(1, Random(seed))
            life = UUID(int=8)
            cluster.decide(
                RemoveTopicRecord(TOPIC),
                TopicRecord(TOPIC, life),
                PartitionRecord(TOPIC, 0, (1,), (1,), 1, 0),
            )
            node = await again(cluster)
            assert node.values() == []
            assert node.partitions.faults == []

        cluster.run(scenario())


def test_at_every_power_cut_a_log_is_as_known_or_lost_for_a_reason() -> None:
    """From the making of a topic to its first records and the next start: nothing acknowledged is gone."""
    for number in range(60):
        cluster = alone()
        acknowledged: list[bytes] = []

        async def scenario(
            cluster: ReplicaCluster = cluster, number: int = number, acknowledged: list[bytes] = acknowledged
        ) -> None:
            files = FaultyFiles()
            cluster.new_files = lambda: files
            files.cut_power_at(number)
            try:
                await cluster.start()
                for count in range(4):
                    await cluster.nodes[1].produce(b"%d" % count)
                    files.must_have_power()
                    acknowledged.append(b"%d" % count)
                    await cluster.nodes[1].partitions.known.checkpoint(cluster.nodes[1].partitions)
            except (PowerCutError, ApiError, StorageError):
                pass
            if 1 in cluster.nodes:
                await cluster.nodes[1].stop()
                cluster.nodes.clear()
            after = files.power_cut(Random(number))
            cluster.new_files = lambda: after
            await cluster.start()
            node = cluster.nodes[1]
            assert node.partitions.faults == []
            assert [value for _, value in node.values()][: len(acknowledged)] == acknowledged

        cluster.run(scenario())


def three() -> ReplicaCluster:
    cluster = ReplicaCluster(1, 2, 3, flush="ack", min_insync_replicas=2)
    cluster.new_files = FaultyFiles
    cluster.make_topic((1, 2, 3))
    return cluster


@pytest.mark.parametrize("damage", [missing, older])
def test_a_leader_that_lost_its_log_teaches_nobody_to_forget(damage: Callable[..., Any]) -> None:
    cluster = three()

    async def scenario() -> None:
        leader = await filled(cluster)
        backup = leader.files.copy()
        await filled(cluster, 5)
        await cluster.until(lambda: all(len(node.values()) == 8 for node in cluster.nodes.values()))
        for node in cluster.nodes.values():
            await stopped(node, exact=False)
        damage(leader.files, backup)
        for node_id in (1, 2, 3):
            await again(cluster, node_id)
        assert [index for _, index in cluster.nodes[1].partitions.lost_replicas()] == [0]
        await cluster.until(lambda: cluster.record().isr == (2, 3))  # it was reported
        await cluster.until(lambda: len(cluster.record().isr) == 3)
        assert all(len(node.values()) == 8 for node in cluster.nodes.values())
        assert cluster.nodes[1].partitions.faults == []
        assert cluster.nodes[1].files.names("stray") == ([] if damage is missing else [f"{TOPIC}-0"])

    cluster.run(scenario())


def test_a_log_that_is_cut_is_not_taken_for_an_older_one() -> None:
    """At every power cut around a truncation the next start finds the log fit."""
    for number in range(40):
        cluster = three()

        async def scenario(cluster: ReplicaCluster = cluster, number: int = number) -> None:
            leader = await filled(cluster)
            for other in (2, 3):
                cluster.cut(1, other)
            cluster.cut(0, 1)
            leader.append(b"never acknowledged")
            await leader.flusher.drain()
            await leader.partitions.known.checkpoint(leader.partitions)
            found = Manifest.read(leader.files)
            assert found is not None and found.entries[TOPIC, 0].end_offset == 4
            cluster.elect(2, isr=(2, 3))
            leader.files.cut_power_at(leader.files.operations + number)
            try:
                cluster.heal()
                await cluster.until(lambda: leader.get().log.end_offset == 3 or leader.files._dead, 5)
            except (PowerCutError, AssertionError):
                pass
            await cluster.lose_power(1, Random(number))
            node = await again(cluster, 1)
            assert node.partitions.faults == []
            await cluster.until(lambda: [value for _, value in node.values()] == [b"0", b"1", b"2"])

        cluster.run(scenario())
