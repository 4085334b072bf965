"""A log that is damaged or cannot be read: others lead if they can, nobody in sync is called late, and it is told."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from headrace.apis import fetch
from headrace.apis.api import Context, Encoded
from headrace.broker import decisions
from headrace.broker.log_faults import LOOK_AGAIN_SECONDS, UNREADABLE_LOGS
from headrace.core.errors import CorruptionError, DiskFailedError, ErrorCode
from headrace.testing.files import FaultyFiles
from headrace.testing.replicas import LAG_MS, TOPIC, ReplicaCluster, ReplicaNode
from headrace.wire import batch, messages

VALUE = b"a" * 100
COUNT = 20


def three(partitions: int = 1) -> ReplicaCluster:
    cluster = ReplicaCluster(1, 2, 3, flush="ack")
    cluster.make_topic(*[(1, 2, 3)] * partitions)
    cluster.new_files = FaultyFiles
    return cluster


async def filled(cluster: ReplicaCluster, partitions: int = 1) -> ReplicaNode:
    """Start; the leader, with what can be damaged."""
    await cluster.start()
    for index in range(partitions):
        for _ in range(COUNT):
            await cluster.nodes[1].produce(VALUE, index=index)
    return cluster.nodes[1]


def flip(node: ReplicaNode) -> None:
    """Flip one bit of its log, or flip it back; and let nothing be believed that was read before."""
    [path] = [path for path in node.files.paths() if path.endswith(".log") and path.startswith("topics/")]
    node.files.flip(path, 8 * 700)
    if (partition := node.partitions.replica(TOPIC, 0)) is not None:
        partition.log.doubt()


async def read(node: ReplicaNode, offset: int = 0, index: int = 0) -> tuple[int, int]:
    """The error code of a client's Fetch, and the offset after what it got."""
    part = {"partition": index, "fetch_offset": offset, "partition_max_bytes": 10**6}
    fields: dict[str, Any] = {"max_wait": 0, "min_bytes": 1, "max_bytes": 10**6, "isolation_level": 0, "session_id": 0}
    fields |= {"session_epoch": -1, "topics": [{"topic": TOPIC, "partitions": [part]}], "rack_id": ""}
    fields |= {"forgotten_topics_data": []}
    request = messages.decode_request(1, 12, messages.encode_request(1, 12, fields), 0)
    outcome = fetch.handle(Context(node.service, 12, "", "h"), request)
    encoded = outcome if isinstance(outcome, Encoded) else await outcome
    answer = messages.decode_response(1, 12, b"".join(encoded.parts), 0)
    found = answer.responses[0].partitions[0]
    data = bytes(found.records or b"")
    for header in batch.headers(data):
        assert [record.value for record in batch.records(data, header)] == [VALUE]
        offset = header.base_offset + header.last_offset_delta + 1
    return int(found.error_code), offset


# ------------------------------------------------------------------ damage


def test_a_leader_whose_read_finds_damage_lets_others_lead_and_copies_theirs(caplog: pytest.LogCaptureFixture) -> None:
    cluster = three()

    async def scenario() -> None:
        node = await filled(cluster)
        whole = node.values()
        flip(node)
        code, offset = await read(node)
        assert code == ErrorCode.none and 0 < offset < COUNT, "what is whole before the damage is served"
        assert (await read(node, offset))[0] == ErrorCode.kafka_storage_error, "clients look for another leader then"
        await cluster.until(lambda: cluster.record().leader == 2)
        assert node.partitions.is_fit, "the node's other partitions stay where they are"
        await cluster.until(lambda: cluster.nodes[2].get().high_watermark == COUNT)
        assert (await read(cluster.nodes[2])) == (0, COUNT)
        await cluster.nodes[2].produce(b"b")
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert node.values() == [*whole, (COUNT, b"b")]
        assert node.files.names("stray") == ["orders-0"], "what was damaged is kept"
        assert not node.partitions.faults

    with caplog.at_level(logging.ERROR):
        cluster.run(scenario())
    [told] = [record for record in caplog.records if record.getMessage() == "a log is damaged"]
    about = vars(told)
    assert (about["topic"], about["partition"]) == (TOPIC, 0)
    assert ".log" in about["reason"] and "offset" in about["reason"] and "position" in about["reason"]


def test_a_controller_of_an_older_release_is_asked_to_fence_the_node() -> None:
    cluster = three()
    cluster.is_old = True

    async def scenario() -> None:
        node = await filled(cluster)
        flip(node)
        await read(node)
        await cluster.until(lambda: bool(node.partitions.faults) and not node.partitions.is_fit)
        assert (await read(node))[0] == ErrorCode.kafka_storage_error
        cluster.decide(*decisions.fence(cluster.image, 1, decisions.Standard()))
        await node.partitions.settled()
        assert cluster.record().leader == 2
        assert not node.partitions.faults and node.partitions.is_fit
        cluster.decide(*decisions.unfence(cluster.image, 1, decisions.Standard()))
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert node.values() == cluster.nodes[2].values()

    cluster.run(scenario())


def test_a_controller_that_is_silent_is_told_when_it_answers_again() -> None:
    cluster = three()

    async def scenario() -> None:
        node = await filled(cluster)
        cluster.silent = True
        flip(node)
        await read(node)
        await asyncio.sleep(20)
        assert cluster.record().isr == (1, 2, 3)
        assert (await read(node))[0] == ErrorCode.kafka_storage_error, "it is given up"
        cluster.silent = False
        await cluster.until(lambda: cluster.record().leader == 2)
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))

    cluster.run(scenario())


@pytest.mark.parametrize("in_sync", [True, False])
def test_a_replica_that_is_damaged_at_the_start_is_copied_anew_once_nobody_counts_on_it(in_sync: bool) -> None:
    cluster = three()

    async def scenario() -> None:
        await filled(cluster)
        await cluster.lose_power(3, Random(1))
        flip(cluster.nodes[3])
        if not in_sync:
            cluster.decide(*decisions.fence(cluster.image, 3, decisions.Standard()))
        await cluster.start(3)
        node = cluster.nodes[3]
        if in_sync:  # it could be elected: it stays away until the controller has taken it out
            assert node.partitions.faults and node.partitions.replica(TOPIC, 0) is None
            await cluster.until(lambda: not node.partitions.faults)
        else:
            cluster.decide(*decisions.unfence(cluster.image, 3, decisions.Standard()))
        assert node.files.names("stray") == ["orders-0"]
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert node.values() == cluster.nodes[1].values()

    cluster.run(scenario())


def test_damage_that_a_coordinator_finds_when_it_loads_is_looked_at_with_the_next_beat() -> None:
    cluster = three()

    async def scenario() -> None:
        node = await filled(cluster)
        assert node.partitions.examined()
        flip(node)
        with pytest.raises(CorruptionError):
            list(node.get().read_all())
        assert cluster.record().leader == 1
        assert node.partitions.examined(), "it is looked at again first"
        await cluster.until(lambda: cluster.record().leader == 2)
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert node.values() == cluster.nodes[2].values()

    cluster.run(scenario())


def test_a_follower_that_finds_damage_is_copied_anew_and_the_leader_stays() -> None:
    cluster = three()

    async def scenario() -> None:
        await filled(cluster)
        node = cluster.nodes[3]
        flip(node)
        span = node.get().log.locate(0, 10**6, COUNT)
        assert span is not None
        assert node.partitions.suspect(node.get(), span.verify, CorruptionError("as compaction says"))
        await cluster.until(lambda: node.files.names("stray") == ["orders-0"])
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert cluster.record().leader == 1
        assert node.values() == cluster.nodes[1].values()

    cluster.run(scenario())


def test_a_leader_that_nobody_follows_in_sync_serves_all_but_what_is_damaged() -> None:
    cluster = three()

    async def scenario() -> None:
        node = await filled(cluster)
        for other in (2, 3):
            cluster.decide(*decisions.fence(cluster.image, other, decisions.Standard()))
        flip(node)
        code, offset = await read(node)
        assert code == ErrorCode.none
        for _ in range(3):
            assert await read(node, offset) == (ErrorCode.corrupt_message, offset)
            assert await read(node, offset + 1) == (ErrorCode.none, COUNT)
            await asyncio.sleep(2 * LOOK_AGAIN_SECONDS)
            assert node.partitions.faults and node.partitions.is_fit
        assert await node.produce(b"b") == COUNT + 1, "it is written, too"
        for other in (2, 3):
            cluster.decide(*decisions.unfence(cluster.image, other, decisions.Standard()))
        await cluster.until(lambda: cluster.record().leader != 1)
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3) and not node.partitions.faults)

    cluster.run(scenario())


def test_damage_that_is_gone_when_looked_at_again_changes_nothing() -> None:
    cluster = three()

    async def scenario() -> None:
        node = await filled(cluster)
        flip(node)
        _, offset = await read(node)
        assert (await read(node, offset))[0] == ErrorCode.kafka_storage_error
        flip(node)  # back
        await asyncio.sleep(0.1)
        assert not node.partitions.faults and cluster.record().leader == 1
        assert await read(node) == (0, COUNT)

    cluster.run(scenario())


def test_a_log_that_is_damaged_at_the_start_and_that_nobody_else_has_is_left_alone() -> None:
    cluster = ReplicaCluster(1, flush="ack")
    cluster.make_topic((1,))
    cluster.new_files = FaultyFiles

    async def scenario() -> None:
        await filled(cluster)
        await cluster.lose_power(1, Random(1))
        flip(cluster.nodes[1])
        await cluster.start(1)
        node = cluster.nodes[1]
        await asyncio.sleep(1)
        assert node.partitions.faults and node.partitions.is_fit
        assert node.files.names("stray") == []

    cluster.run(scenario())


# ------------------------------------------------------------------ reads that fail


def break_reads(node: ReplicaNode) -> None:
    node.files.cold = True
    node.files.fail("read", path=".log", repeat=True)


def test_a_leader_that_cannot_read_lets_others_lead_and_nobody_is_called_late(caplog: pytest.LogCaptureFixture) -> None:
    cluster = three()
    seen: list[tuple[int, ...]] = []

    async def scenario() -> None:
        node = await filled(cluster)
        cluster.cut(1, 3)
        await asyncio.sleep(0.6)  # until the fetch that waited is over
        node.append(VALUE)
        break_reads(node)
        cluster.heal()
        await cluster.until(lambda: seen.append(cluster.record().isr) or cluster.record().leader != 1)  # type: ignore[func-returns-value]
        assert set(seen) <= {(1, 2, 3), (2, 3)}, "the followers are in sync all the time"
        assert node.partitions.is_fit
        node.files.heal()
        node.files.cold = False
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert node.values() == cluster.nodes[2].values()

    with caplog.at_level(logging.ERROR):
        cluster.run(scenario())
    assert [record for record in caplog.records if record.getMessage() == "a log cannot be read"]


def test_followers_stay_in_sync_as_long_as_they_ask_a_leader_that_cannot_read() -> None:
    """Nobody may decide: the leader must not put to the controller that others are late."""
    cluster = three()

    async def scenario() -> None:
        node = await filled(cluster)
        node.partitions._log_faults._others_have = lambda partition: False
        cluster.cut(1, 2)
        cluster.cut(1, 3)
        await asyncio.sleep(0.6)
        node.append(VALUE)
        break_reads(node)
        cluster.heal()
        await asyncio.sleep(5 * LAG_MS / 1000)
        assert cluster.record().isr == (1, 2, 3)
        assert node.partitions.faults, "readiness tells of it"
        cluster.cut(1, 3)
        await cluster.until(lambda: cluster.record().isr == (1, 2))  # this one does not ask any more
        node.files.heal()
        cluster.heal()
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3) and not node.partitions.faults)

    cluster.run(scenario())


def test_a_lone_leader_answers_storage_errors_while_reads_fail_and_recovers(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ReplicaCluster(1, flush="ack")
    cluster.make_topic((1,))
    cluster.new_files = FaultyFiles

    async def scenario() -> None:
        node = await filled(cluster)
        break_reads(node)
        for _ in range(50):
            assert await read(node) == (ErrorCode.kafka_storage_error, 0)
            await asyncio.sleep(0.5)
        assert node.partitions.faults and node.partitions.disk_fault is None
        assert await node.produce(VALUE) == COUNT + 1
        node.files.heal()
        assert await read(node) == (0, COUNT + 1)
        await cluster.until(lambda: not node.partitions.faults)

    with caplog.at_level(logging.WARNING):
        cluster.run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a log cannot be read", "a log can be read again"]


def test_a_disk_that_cannot_read_several_logs_is_not_trusted_with_any() -> None:
    count = UNREADABLE_LOGS + 1
    cluster = three(count)

    async def scenario() -> None:
        node = await filled(cluster, count)
        node.files.cold = True
        node.files.fail("read", path=".log", repeat=True)
        for index in range(UNREADABLE_LOGS):
            assert node.partitions.disk_fault is None
            assert (await read(node, index=index))[0] == ErrorCode.kafka_storage_error
            await cluster.until(lambda index=index: cluster.record(index).leader != 1)
        await cluster.until(lambda: isinstance(node.partitions.disk_fault, DiskFailedError))
        assert not node.partitions.is_fit, "it asks to be fenced, beat after beat"
        assert len(node.partitions) == 0

    cluster.run(scenario())
