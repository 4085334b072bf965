"""What clients and other nodes are answered about partitions that have replicas."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from headrace.apis import delete_records, fetch, list_offsets, offset_for_leader_epoch, produce
from headrace.apis.api import Api, Context, Encoded
from headrace.core.errors import ErrorCode
from headrace.testing.replicas import TOPIC, TOPIC_ID, ReplicaCluster, ReplicaNode
from headrace.wire import batch, messages

READ_COMMITTED = 1


async def call(node: ReplicaNode, api: Api, version: int, fields: dict[str, Any], *, peer: int | None = None) -> Any:
    body = messages.encode_request(api.key, version, fields)
    decode = api.decode or (lambda version, data, offset: messages.decode_request(api.key, version, data, offset))
    context = Context(node.service, version, "", "", peer)
    answer = api.handle(context, decode(version, body, 0))
    if inspect.isawaitable(answer):
        answer = await answer
    if isinstance(answer, Encoded):
        return messages.decode_response(api.key, version, b"".join(bytes(part) for part in answer.parts))
    return messages.decode_response(api.key, version, messages.encode_answer(api.key, version, answer))


def fetch_fields(offset: int, *, replica: tuple[int, int] = (-1, -1), epoch: int = 0, last: int = -1) -> dict[str, Any]:
    part = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last,
        "log_start_offset": 0,
        "partition_max_bytes": 1_000_000,
    }
    return {
        "replica_state": {"replica_id": replica[0], "replica_epoch": replica[1]},
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": TOPIC_ID, "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


async def fetched(node: ReplicaNode, fields: dict[str, Any], *, peer: int | None = None) -> Any:
    answer = await call(node, fetch.API, 17, fields, peer=peer)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def quiet(*, min_insync: int = 1) -> ReplicaCluster:
    """Nobody copies: tests fetch as if they were nodes."""
    cluster = ReplicaCluster(1, 2, 3, min_insync_replicas=min_insync)
    cluster.make_topic((1, 2, 3))
    cluster.silent = True
    for one, other in ((1, 2), (1, 3), (2, 3)):
        cluster.cut(one, other)
    return cluster


def test_a_stranger_who_says_that_it_is_a_replica_is_refused() -> None:
    cluster = quiet()

    async def scenario() -> None:
        await cluster.start()
        for peer in (None, 3):
            answer = await call(cluster.nodes[1], fetch.API, 17, fetch_fields(0, replica=(2, 1)), peer=peer)
            assert answer.error_code == ErrorCode.cluster_authorization_failed
        answer = await call(cluster.nodes[1], fetch.API, 17, fetch_fields(0, replica=(2, 0)), peer=2)
        assert answer.error_code == ErrorCode.stale_broker_epoch

    cluster.run(scenario())


def test_followers_read_what_consumers_do_not_see_yet() -> None:
    cluster = quiet()

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        leader.append(b"a")
        consumer = await fetched(leader, fetch_fields(0))
        assert (consumer.records, consumer.high_watermark) == (b"", 0)
        follower = await fetched(leader, fetch_fields(0, replica=(2, 1)), peer=2)
        assert follower.records
        for node in (2, 3):
            await fetched(leader, fetch_fields(1, replica=(node, 1), last=0), peer=node)
        consumer = await fetched(leader, fetch_fields(0))
        assert (bool(consumer.records), consumer.high_watermark) == (True, 1)

    cluster.run(scenario())


def test_a_follower_whose_log_parts_is_told_where_and_does_not_count() -> None:
    cluster = quiet()

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        leader.append(b"a")
        cluster.elect(1)  # epoch 1
        leader.append(b"b")
        answer = await fetched(leader, fetch_fields(3, replica=(2, 1), epoch=1, last=0), peer=2)
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset, answer.records) == (0, 1, b"")
        replicas = leader.get().replicas
        assert replicas is not None
        follower = replicas.follower(2)
        assert follower is not None and follower.end_offset == -1

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch), (1, ErrorCode.none)]
)
def test_a_fetch_of_another_epoch_does_not_count(epoch: int, code: ErrorCode) -> None:
    cluster = quiet()

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        leader.append(b"a")
        cluster.elect(1)
        for node in (2, 3):
            answer = await fetched(leader, fetch_fields(1, replica=(node, 1), epoch=epoch, last=0), peer=node)
            assert answer.error_code == code
        assert leader.get().high_watermark == (1 if code is ErrorCode.none else 0)

    cluster.run(scenario())


def test_consumers_read_from_leaders_only() -> None:
    cluster = quiet()

    async def scenario() -> None:
        await cluster.start()
        answer = await fetched(cluster.nodes[2], fetch_fields(0))
        assert answer.error_code == ErrorCode.not_leader_or_follower

    cluster.run(scenario())


@pytest.mark.parametrize(("version", "code"), [(4, 5), (7, 78)])
def test_a_new_leader_does_not_tell_an_end_that_may_be_too_low(version: int, code: int) -> None:
    cluster = quiet()
    latest = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": TOPIC, "partitions": [latest]}]}

    async def ask(node: ReplicaNode) -> tuple[int, int]:
        answer = await call(node, list_offsets.API, version, fields)
        part = answer.topics[0].partitions[0]
        return int(part.error_code), part.offset

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        leader.append(b"a")
        cluster.elect(1)
        assert await ask(leader) == (code, -1)
        for node in (2, 3):
            await fetched(leader, fetch_fields(1, replica=(node, 1), epoch=1, last=0), peer=node)
        assert await ask(leader) == (0, 1)

    cluster.run(scenario())


def test_where_an_epoch_ended_is_told_even_if_nothing_was_written_since() -> None:
    cluster = quiet()

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        leader.append(b"a")
        for _ in range(3):
            cluster.elect(1)
        asked = {"partition": 0, "current_leader_epoch": 3, "leader_epoch": 2}
        fields = {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [asked]}]}
        answer = await call(leader, offset_for_leader_epoch.API, 4, fields)
        part = answer.topics[0].partitions[0]
        assert (part.leader_epoch, part.end_offset) == (0, 1)
        answer = await call(leader, offset_for_leader_epoch.API, 4, {**fields, "replica_id": 2})
        assert answer.topics[0].partitions[0].error_code == ErrorCode.cluster_authorization_failed

    cluster.run(scenario())


def one_record() -> dict[str, Any]:
    """A Produce request that waits for all that are in sync."""
    records = batch.build([(None, b"a")], timestamp_ms=1_767_225_600_000)
    topics = [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": topics}


def test_a_batch_that_too_few_replicas_got_is_not_acknowledged() -> None:
    cluster = quiet(min_insync=2)

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        writing = asyncio.ensure_future(call(leader, produce.API, 9, one_record()))
        await asyncio.sleep(0.1)
        assert not writing.done()
        record = cluster.record()
        cluster.decide(type(record)(TOPIC, 0, record.replicas, (1,), 1, 0, record.partition_epoch + 1))
        part = (await writing).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.not_enough_replicas_after_append
        part = (await call(leader, produce.API, 9, one_record())).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.not_enough_replicas

    cluster.run(scenario())


def test_a_topic_cannot_want_more_in_sync_than_it_has_replicas() -> None:
    cluster = ReplicaCluster(1, min_insync_replicas=2)
    cluster.make_topic((1,))

    async def scenario() -> None:
        await cluster.start()
        leader = cluster.nodes[1]
        part = (await call(leader, produce.API, 9, one_record())).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.none

    cluster.run(scenario())


async def delete(node: ReplicaNode, offset: int, timeout_ms: int) -> ErrorCode:
    node.service.flusher = node.flusher
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = await call(node, delete_records.API, 2, {"topics": topics, "timeout": timeout_ms})
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_what_was_deleted_does_not_come_back_with_the_next_leader() -> None:
    cluster = ReplicaCluster(1, 2, 3)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await cluster.start()
        for value in (b"a", b"b", b"c"):
            await cluster.nodes[1].produce(value)
        assert await delete(cluster.nodes[1], 2, timeout_ms=10_000) is ErrorCode.none
        cluster.kill(1)
        cluster.elect(2, isr=(2, 3))
        assert [cluster.nodes[node].get().log.start_offset for node in (2, 3)] == [2, 2]

    cluster.run(scenario())


def test_a_deletion_that_replicas_in_sync_do_not_hear_of_is_not_confirmed() -> None:
    cluster = ReplicaCluster(1, 2, 3)
    cluster.make_topic((1, 2, 3))

    async def scenario() -> None:
        await cluster.start()
        await cluster.nodes[1].produce(b"a")
        cluster.cut(1, 3)
        assert await delete(cluster.nodes[1], 1, timeout_ms=1000) is ErrorCode.request_timed_out
        deleting = asyncio.ensure_future(delete(cluster.nodes[1], 1, timeout_ms=60_000))
        await asyncio.sleep(0.5)
        cluster.elect(2)
        assert await deleting is ErrorCode.not_leader_or_follower

    cluster.run(scenario())
