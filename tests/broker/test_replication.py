"""Followers copy what their leaders have, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker import decisions, reassigning
from headrace.broker.flusher import Flusher
from headrace.broker.replication import Throttle
from headrace.core.counters import Counters
from headrace.core.errors import ApiError, CorruptionError, ErrorCode
from headrace.testing.replicas import TOPIC, ReplicaCluster
from headrace.testing.sim.clock import SimClock
from headrace.wire import batch

DURABLE: dict[str, Any] = {"flush": "ack"}


def three(**config: Any) -> ReplicaCluster:
    cluster = ReplicaCluster(1, 2, 3, **config)
    cluster.make_topic((1, 2, 3))
    return cluster


@pytest.mark.parametrize("config", [{}, DURABLE])
def test_followers_have_what_was_acknowledged(config: dict[str, Any]) -> None:
    cluster = three(**config)

    async def scenario() -> None:
        await cluster.start()
        for number in range(20):
            end = await cluster.nodes[1].produce(b"%d" % number)
            for node in cluster.nodes.values():
                assert node.get().reached_offset >= end
        assert cluster.nodes[1].values() == cluster.nodes[2].values() == cluster.nodes[3].values()

    cluster.run(scenario())


def test_nothing_is_acknowledged_that_an_in_sync_replica_lacks() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        cluster.cut(1, 3)
        await asyncio.sleep(0.6)  # until the fetch that waited is over
        end = cluster.nodes[1].append(b"b")
        await cluster.until(lambda: cluster.nodes[2].get().log.end_offset == end)
        assert cluster.nodes[1].get().high_watermark == 1
        cluster.heal()
        await cluster.nodes[1].get().committed(end)
        assert cluster.nodes[3].get().log.end_offset == end

    cluster.run(scenario())


class SlowDisk:
    """Workers that get nowhere until they may."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def run(self, work: Callable[[], Any]) -> Any:
        await self.may_go_on.wait()
        return work()


@pytest.mark.parametrize("slow", [1, 3])  # who led before, and who followed
def test_nobody_tells_a_new_leader_of_what_is_not_synced_yet(slow: int) -> None:
    cluster = three(**DURABLE)

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        node, disk = cluster.nodes[slow], SlowDisk()
        node.flusher = node.replication.flusher = Flusher(disk, SimClock(cluster.loop.time), Counters(), pytest.fail)
        end = cluster.nodes[1].append(b"b")
        await cluster.until(lambda: all(each.get().log.end_offset == end for each in cluster.nodes.values()))
        await cluster.until(lambda: cluster.nodes[2].get().reached_offset == end)
        cluster.elect(2)
        await asyncio.sleep(1.0)
        assert cluster.record().isr == (1, 2, 3)
        assert node.get().reached_offset == cluster.nodes[2].get().high_watermark == 1
        disk.may_go_on.set()
        await cluster.nodes[2].get().committed(end)
        assert node.get().reached_offset == end

    cluster.run(scenario())


def test_a_follower_that_falls_behind_leaves_the_in_sync_set_and_comes_back() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        cluster.cut(1, 3)
        await asyncio.sleep(0.6)
        await cluster.nodes[1].produce(b"a")  # is waited for until node 3 has left
        assert cluster.record().isr == (1, 2)
        cluster.heal()
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        await cluster.until(lambda: cluster.nodes[3].values() == cluster.nodes[1].values())

    cluster.run(scenario())


def test_a_follower_joins_while_writers_are_busy() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        cluster.cut(1, 3)
        await cluster.until(lambda: cluster.nodes[1].append(b"x") and cluster.record().isr == (1, 2))
        cluster.heal()
        # Every millisecond there is more.
        await cluster.until(lambda: cluster.nodes[1].append(b"x") and cluster.record().isr == (1, 2, 3))

    cluster.run(scenario())


def test_an_old_leader_cuts_what_was_never_acknowledged() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"kept")
        cluster.cut(1, 2)
        cluster.cut(1, 3)
        await asyncio.sleep(0.6)
        cluster.nodes[1].append(b"lost")
        cluster.elect(2)
        await cluster.nodes[2].produce(b"new")  # node 1 is in the set, and is told of its new leader
        cluster.heal()
        end = await cluster.nodes[2].produce(b"newer")
        await cluster.until(lambda: cluster.nodes[1].get().log.end_offset == end)
        assert [value for _, value in cluster.nodes[1].values()] == [b"kept", b"new", b"newer"]
        assert cluster.nodes[1].get().log.epochs.entries == cluster.nodes[2].get().log.epochs.entries

    cluster.run(scenario())


def test_who_waits_for_an_old_leader_is_sent_away() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        cluster.cut(1, 2)
        await asyncio.sleep(0.6)
        end = cluster.nodes[1].append(b"a")
        waiting = asyncio.ensure_future(cluster.nodes[1].get().committed(end))
        await asyncio.sleep(0)
        cluster.elect(2)
        with pytest.raises(ApiError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.not_leader_or_follower
        with pytest.raises(ApiError) as refused:
            cluster.nodes[1].append(b"b")
        assert refused.value.code is ErrorCode.not_leader_or_follower

    cluster.run(scenario())


def test_a_new_leader_knows_no_end_before_its_followers_have_fetched() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        cluster.cut(2, 3)
        cluster.cut(2, 1)
        cluster.elect(2)
        leader = cluster.nodes[2].get()
        assert not leader.offsets_are_known  # node 2 has the record, and was never told that it is committed
        cluster.heal()
        await cluster.until(lambda: leader.offsets_are_known)
        assert leader.high_watermark == 1

    cluster.run(scenario())


def test_a_replica_that_comes_late_starts_where_the_leader_does() -> None:
    cluster = ReplicaCluster(1, 2)
    cluster.make_topic((1,))

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        for _ in range(3):
            await leader.produce(b"a", b"b", b"c")
        leader.get().delete_before(4)  # within a batch
        record = cluster.record()
        grown = type(record)(TOPIC, 0, (1, 2), (1,), 1, record.leader_epoch, record.partition_epoch + 1, (2,))
        cluster.decide(grown)
        await cluster.until(lambda: cluster.record().isr == (1, 2))
        copy = cluster.nodes[2].get().log
        assert (copy.start_offset, copy.end_offset) == (4, 9)
        assert cluster.nodes[2].values() == leader.values()

    cluster.run(scenario())


def test_a_follower_forgets_what_its_leader_forgets() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        end = await cluster.nodes[1].produce(b"b")
        cluster.nodes[1].get().delete_before(1)
        await cluster.until(lambda: cluster.nodes[3].get().log.start_offset == 1)
        assert cluster.nodes[3].get().log.end_offset == end

    cluster.run(scenario())


@pytest.mark.parametrize("config", [{}, DURABLE])
def test_a_killed_follower_goes_on_where_it_was(config: dict[str, Any]) -> None:
    cluster = three(**config)

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        cluster.kill(3)
        await cluster.nodes[1].produce(b"b")  # node 3 is given up after its time
        assert cluster.record().isr == (1, 2)
        await cluster.restart(3)
        await cluster.until(lambda: cluster.record().isr == (1, 2, 3))
        assert cluster.nodes[3].values() == cluster.nodes[1].values()

    cluster.run(scenario())


def test_a_node_leads_nothing_before_it_is_registered() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        cluster.kill(1)
        node = type(cluster.nodes[1])(cluster, 1, cluster.nodes[1].files, 2)
        with pytest.raises(ApiError) as refused:
            node.append(b"b")
        assert refused.value.code is ErrorCode.not_leader_or_follower
        await node.partitions.registered()
        node.append(b"b")

    cluster.run(scenario())


def test_a_replica_that_moves_away_is_removed() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        record = cluster.record()
        cluster.decide(type(record)(TOPIC, 0, (1, 2), (1, 2), 1, 0, record.partition_epoch + 1))
        await cluster.nodes[3].partitions.settled()
        assert cluster.nodes[3].partitions.replica(TOPIC, 0) is None
        assert cluster.nodes[3].files.names("topics") == []
        await cluster.nodes[1].produce(b"b")

    cluster.run(scenario())


def test_who_waits_for_a_leader_that_was_moved_away_is_sent_to_the_next_one() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        cluster.cut(1, 2)
        end = cluster.nodes[1].append(b"b")
        waiting = cluster.nodes[1].get().committed(end)
        record = cluster.record()
        cluster.decide(type(record)(TOPIC, 0, (2, 3), (2, 3), 2, 1, record.partition_epoch + 1))
        with pytest.raises(ApiError) as moved:
            await waiting
        assert moved.value.code is ErrorCode.not_leader_or_follower, "the topic is there, elsewhere"

    cluster.run(scenario())


def test_a_damaged_batch_is_never_copied() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        follower = cluster.nodes[2].get()
        data = bytearray(next(iter([cluster.nodes[1].get().log.locate(0, 1000, 1)])).read())  # type: ignore[union-attr]
        data[7] = 1  # offset 1
        data[-1] ^= 1
        with pytest.raises(CorruptionError):
            follower.append_copied(bytes(data), 1)
        assert follower.log.end_offset == 1

    cluster.run(scenario())


def at_offset(offset: int, *values: bytes) -> bytes:
    """A batch as the leader of epoch 0 has it."""
    data = bytearray(batch.build([(None, value) for value in values], timestamp_ms=1))
    data[:8] = offset.to_bytes(8, "big")
    data[12:16] = (0).to_bytes(4, "big")
    return bytes(data)


def test_offsets_may_be_missing_only_in_what_is_committed() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        follower = cluster.nodes[2].get()
        for data in (at_offset(5, b"x"), at_offset(1, b"b") + at_offset(5, b"x")):
            with pytest.raises(ApiError, match="to 4 are missing and not committed"):
                follower.append_copied(data, 4)
            assert follower.log.end_offset == 1
        follower.append_copied(at_offset(1, b"b") + at_offset(5, b"x") + at_offset(6, b"y"), 5)
        assert [offset for offset, _ in cluster.nodes[2].values()] == [0, 1, 5, 6]

    cluster.run(scenario())


def test_a_replica_that_is_moved_here_comes_no_faster_than_it_may() -> None:
    cluster = ReplicaCluster(1, 2)
    cluster.make_topic((1,))

    async def scenario() -> None:
        await cluster.start()
        for _ in range(100):
            cluster.nodes[1].append(bytes(50_000))
        cluster.nodes[2].replication.throttle = Throttle(500_000)
        record = cluster.record()
        grown = type(record)(TOPIC, 0, (1, 2), (1,), 1, record.leader_epoch, record.partition_epoch + 1, (2,))
        begun = cluster.loop.time()
        cluster.decide(grown)
        await cluster.until(lambda: cluster.record().isr == (1, 2))
        assert 8 <= cluster.loop.time() - begun <= 12  # 5 MB at 0.5 MB/s, but for the last piece

    cluster.run(scenario())


def test_an_idle_cluster_does_not_ask_all_the_time() -> None:
    cluster = three()

    async def scenario() -> None:
        await cluster.start()
        await asyncio.sleep(1)
        before = cluster.fetches
        await asyncio.sleep(10)
        assert cluster.fetches - before <= 2 * 21

    cluster.run(scenario())


def test_what_is_set_aside_never_replaces_what_was() -> None:
    cluster = ReplicaCluster(1, flush="ack")
    cluster.make_topic((1,))

    async def scenario() -> None:
        await cluster.start()
        files = cluster.nodes[1].files
        for content in (b"one", b"two", b"three"):
            files.store("topics/unknown-0/note", content)
            cluster.nodes[1].partitions.load(cluster.image)
        assert files.names("stray") == ["unknown-0", "unknown-0.2", "unknown-0.3"]
        assert [files.load(f"stray/{name}/note") for name in files.names("stray")] == [b"one", b"two", b"three"]

    cluster.run(scenario())


# A leader that came back shorter


async def all_down(cluster: ReplicaCluster, count: int = 10) -> list[tuple[int, bytes | None]]:
    """Everybody has so many records, knows that they are committed, and is killed; returns the records."""
    await cluster.start()
    for number in range(count):
        await cluster.nodes[1].produce(b"%d" % number)
    await cluster.until(lambda: all(node.get().high_watermark == count for node in cluster.nodes.values()))
    values = cluster.nodes[1].values()
    for node_id in list(cluster.nodes):
        cluster.kill(node_id)
        await cluster.nodes[node_id].stop()
    return values


def shorter(cluster: ReplicaCluster, node_id: int) -> None:
    """A node's log is lost, and nobody knows."""
    cluster.nodes[node_id].files = cluster.new_files()


@pytest.mark.parametrize("min_isr", [1, 2, 3])
def test_followers_keep_what_is_committed_when_their_leader_comes_back_empty(
    min_isr: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ReplicaCluster(1, 2, 3, flush="ack", min_insync_replicas=min_isr)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        values = await all_down(cluster)
        shorter(cluster, 1)
        cluster.elect(1)
        await cluster.start()
        await cluster.until(lambda: cluster.record().leader not in (1, -1))
        assert cluster.short_leaders[0].leader == 1 and cluster.short_leaders[0].committed_offset == 10
        await cluster.until(lambda: set(cluster.record().isr) == {1, 2, 3})
        assert all(node.values() == values for node in cluster.nodes.values())
        await cluster.nodes[cluster.record().leader].produce(b"more")

    cluster.run(scenario())
    assert "a leader lacks records that were committed" in caplog.text


def test_two_replicas_that_come_back_empty_take_nothing_from_the_third() -> None:
    cluster = ReplicaCluster(1, 2, 3, flush="ack", min_insync_replicas=2)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        values = await all_down(cluster)
        shorter(cluster, 1)
        shorter(cluster, 2)
        cluster.elect(1)
        await cluster.start()
        await cluster.until(lambda: cluster.record().leader == 3)
        await cluster.until(lambda: set(cluster.record().isr) == {1, 2, 3})
        assert all(node.values() == values for node in cluster.nodes.values())

    cluster.run(scenario())


def test_a_short_leader_without_another_candidate_leads_no_more_and_a_person_may_elect_who_has_more() -> None:
    cluster = ReplicaCluster(1, 2, 3, flush="ack")
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        values = await all_down(cluster)
        shorter(cluster, 1)
        cluster.elect(1, isr=(1,))
        await cluster.start()
        await cluster.until(lambda: cluster.record().leader == -1)
        assert cluster.record().last_known_elr[-1] == 1
        assert cluster.nodes[2].values() == cluster.nodes[3].values() == values
        cluster.decide(reassigning.elected(cluster.image, cluster.topic, 0, reassigning.UNCLEAN, cluster.policy))
        await cluster.until(lambda: set(cluster.record().isr) == {1, 2, 3})
        assert all(node.values() == values for node in cluster.nodes.values())

    cluster.run(scenario())


def test_after_an_unclean_election_followers_cut_even_what_they_knew_committed() -> None:
    cluster = ReplicaCluster(1, 2, 3, flush="ack", unclean_leader_election=True)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await all_down(cluster)
        shorter(cluster, 1)
        for node_id in (1, 2, 3):
            cluster.decide(*decisions.fence(cluster.image, node_id, cluster.policy))
        cluster.decide(*decisions.unfence(cluster.image, 1, cluster.policy))
        assert cluster.record().leader == 1
        assert cluster.record().unclean_epoch == cluster.record().leader_epoch
        await cluster.start()
        for node_id in (2, 3):
            cluster.decide(*decisions.unfence(cluster.image, node_id, cluster.policy))
        await cluster.until(lambda: set(cluster.record().isr) == {1, 2, 3})
        assert not cluster.short_leaders
        assert all(node.values() == [] for node in cluster.nodes.values())
        await cluster.nodes[1].produce(b"new")

    cluster.run(scenario())


def test_an_empty_log_is_not_begun_again_below_what_is_committed() -> None:
    cluster = ReplicaCluster(1, 2, 3, flush="ack", segment_bytes=200)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await cluster.start()
        for number in range(10):
            await cluster.nodes[1].produce(b"%d" % number * 50)
        cluster.nodes[1].get().delete_before(10)
        await cluster.until(lambda: all(node.get().log.start_offset == 10 for node in cluster.nodes.values()))
        for node_id in list(cluster.nodes):
            cluster.kill(node_id)
            await cluster.nodes[node_id].stop()
        shorter(cluster, 1)
        cluster.elect(1)
        await cluster.start()
        await cluster.until(lambda: set(cluster.record().isr) == {1, 2, 3} and cluster.record().leader != 1)
        assert all(node.get().log.end_offset == 10 for node in cluster.nodes.values())

    cluster.run(scenario())


def test_nothing_is_committed_with_too_few_in_sync() -> None:
    cluster = ReplicaCluster(1, 2, 3, min_insync_replicas=2)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"one")
        for node_id in (3, 2):
            cluster.kill(node_id)
            cluster.decide(*decisions.fence(cluster.image, node_id, cluster.policy))
        assert (cluster.record().isr, cluster.record().elr) == ((1,), (2,))
        cluster.nodes[1].append(b"two")
        await asyncio.sleep(5)
        assert cluster.nodes[1].get().high_watermark == 1
        await cluster.restart(2)
        cluster.decide(*decisions.unfence(cluster.image, 2, cluster.policy))
        await cluster.until(lambda: cluster.nodes[1].get().high_watermark == 2)
        assert cluster.record().elr == ()

    cluster.run(scenario())
