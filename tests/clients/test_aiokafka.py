"""aiokafka: produce, consume, groups, admin."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is not installed")

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.structs import OffsetAndMetadata

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE = 60


def runs(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 250))

    return run


@contextlib.asynccontextmanager
async def running(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def producer(headrace, **config):
    return running(AIOKafkaProducer(bootstrap_servers=headrace.bootstrap_servers, **config))


def consumer(headrace, *topics: str, **config):
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 50}
    return running(AIOKafkaConsumer(*topics, bootstrap_servers=headrace.bootstrap_servers, **(settings | config)))


def administrator(headrace):
    return running(AIOKafkaAdminClient(bootstrap_servers=headrace.bootstrap_servers))


async def send(headrace, topic: str, *messages: dict, **config) -> list:
    async with producer(headrace, **config) as client:
        futures = [await client.send(topic, **message) for message in messages]
        await client.flush()
        return [await future for future in futures]


async def take(client, count: int, seconds: float = PATIENCE) -> list:
    found: list = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for records in (await client.getmany(timeout_ms=100, max_records=count - len(found))).values():
            found += records
    return found


async def read(headrace, topic: str, count: int, *, offset: int = 0, **config) -> list:
    async with consumer(headrace, **config) as client:
        place = TopicPartition(topic, 0)
        client.assign([place])
        client.seek(place, offset)
        return await take(client, count)


@pytest.mark.parametrize("config", [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}], ids=str)
@runs
async def test_what_is_produced_is_consumed_in_order(headrace, config):
    topic = headrace.topic()
    sent = await send(headrace, topic, *({"value": b"%d" % n} for n in range(200)), **config)
    assert [record.value for record in await read(headrace, topic, 200)] == [b"%d" % n for n in range(200)]
    if config != {"acks": 0}:
        assert [each.offset for each in sent] == list(range(200))


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@runs
async def test_every_codec_comes_back(headrace, codec):
    topic = headrace.topic()
    values = [f"{codec} {n}".encode() * 20 for n in range(200)]
    await send(headrace, topic, *({"value": value} for value in values), compression_type=codec, linger_ms=20)
    assert [record.value for record in await read(headrace, topic, 200)] == values
    assert [record.offset for record in await read(headrace, topic, 80, offset=120)] == list(range(120, 200))


@runs
async def test_keys_values_and_headers_come_back_as_they_were(headrace):
    topic = headrace.topic()
    sent = [
        {"key": None, "value": b"no key"},
        {"key": b"no value", "value": None},
        {"key": b"", "value": b""},
        {"key": b"k", "value": b"v", "headers": [("a", b"1"), ("a", b"2"), ("empty", b"")]},
    ]
    await send(headrace, topic, *sent)
    found = await read(headrace, topic, 4)
    assert [(record.key, record.value) for record in found] == [(each["key"], each["value"]) for each in sent]
    assert list(found[3].headers) == sent[3]["headers"]


@runs
async def test_a_large_message_passes_and_a_larger_one_is_refused(headrace):
    topic = headrace.topic(configs={"max.message.bytes": "950000"})
    await send(headrace, topic, {"value": bytes(900_000)}, max_request_size=3_000_000)
    assert len((await read(headrace, topic, 1))[0].value) == 900_000
    with pytest.raises(MessageSizeTooLargeError):
        await send(headrace, topic, {"value": bytes(960_000)}, max_request_size=3_000_000)


@runs
async def test_times_are_kept_and_found(headrace):
    topic = headrace.topic()
    start = 1_700_000_000_000
    await send(headrace, topic, *({"value": b"v", "timestamp_ms": start + n * 1000} for n in range(20)))
    assert [record.timestamp for record in await read(headrace, topic, 20)] == [start + n * 1000 for n in range(20)]
    async with consumer(headrace) as client:
        place = TopicPartition(topic, 0)
        assert (await client.offsets_for_times({place: start + 6500}))[place].offset == 7
        assert await client.beginning_offsets([place]) == {place: 0}
        assert await client.end_offsets([place]) == {place: 20}


@runs
async def test_a_log_append_time_topic_stamps_the_brokers_time(headrace):
    topic = headrace.topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    [sent] = await send(headrace, topic, {"value": b"v", "timestamp_ms": 1000})
    [record] = await read(headrace, topic, 1)
    assert record.timestamp_type == 1
    assert before <= record.timestamp <= int(time.time() * 1000)
    assert sent.timestamp == record.timestamp


@runs
async def test_a_topic_comes_into_being_when_it_is_produced_to(headrace):
    topic = headrace.name("auto")
    await send(headrace, topic, {"value": b"first"})
    assert [record.value for record in await read(headrace, topic, 1)] == [b"first"]


@runs
async def test_an_invalid_topic_name_is_refused(headrace):
    with pytest.raises(KafkaError):  # aiokafka asks again until its patience ends
        await send(headrace, "x" * 250, {"value": b"v"}, request_timeout_ms=1000)


@runs
async def test_a_consumer_can_seek_pause_and_resume(headrace):
    topic = headrace.topic(partitions=2)
    await send(headrace, topic, *({"value": b"%d" % n, "partition": n % 2} for n in range(20)))
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    async with consumer(headrace) as client:
        client.assign(places)
        client.pause(places[0])
        await client.seek_to_beginning(*places)
        assert {record.partition for record in await take(client, 10)} == {1}
        assert await take(client, 1, 0.5) == []
        client.resume(places[0])
        assert {record.partition for record in await take(client, 10)} == {0}
        client.seek(places[1], 5)
        assert [record.offset for record in await take(client, 5)] == [5, 6, 7, 8, 9]


async def member(headrace, group: str, topic: str, seen: list, owned: list[int], ending: asyncio.Event) -> None:
    """Takes, remembers and commits until it is told to stop."""
    settings = {"group_id": group, "heartbeat_interval_ms": 200, "session_timeout_ms": 30_000, "max_poll_records": 5}
    async with consumer(headrace, topic, **settings) as client:
        while not ending.is_set():
            for records in (await client.getmany(timeout_ms=50)).values():
                seen += [(record.partition, record.offset) for record in records]
            owned[:] = [len(client.assignment())]
            if client.assignment():
                with contextlib.suppress(KafkaError):  # a rebalance: somebody reads it again
                    await client.commit()
            await asyncio.sleep(0.005)


@runs
async def test_members_come_and_go_and_every_message_is_seen(headrace):
    topic, group = headrace.topic(partitions=4), headrace.group()
    await send(headrace, topic, *({"value": b"%d" % n, "partition": n % 4} for n in range(200)))
    first_seen: list = []
    second_seen: list = []
    first_owned: list[int] = []
    second_owned: list[int] = []
    first_ends, second_ends = asyncio.Event(), asyncio.Event()

    async def wait(until) -> None:
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline, (len(first_seen), len(second_seen))
            await asyncio.sleep(0.02)

    first = asyncio.create_task(member(headrace, group, topic, first_seen, first_owned, first_ends))
    await wait(lambda: len(first_seen) > 20)
    second = asyncio.create_task(member(headrace, group, topic, second_seen, second_owned, second_ends))
    await wait(lambda: first_owned == second_owned == [2])
    await send(headrace, topic, *({"value": b"%d" % n, "partition": n % 4} for n in range(400)))
    await wait(lambda: len(second_seen) > 20)
    first_ends.set()
    await first
    await wait(lambda: len(set(first_seen + second_seen)) >= 600)
    second_ends.set()
    await second
    counted = Counter(first_seen + second_seen)
    assert set(counted) == {(partition, offset) for partition in range(4) for offset in range(150)}


@runs
async def test_committed_offsets_and_their_metadata_come_back(headrace):
    topic, group = headrace.topic(partitions=2), headrace.group()
    place = TopicPartition(topic, 1)
    async with consumer(headrace, group_id=group) as client:
        client.assign([place])
        await client.commit({place: OffsetAndMetadata(7, "seven")})
        assert await client.committed(place) == 7
        assert await client.committed(TopicPartition(topic, 0)) is None
    async with administrator(headrace) as admin:
        assert (await admin.list_consumer_group_offsets(group))[place] == OffsetAndMetadata(7, "seven")


@runs
async def test_admin_changes_topics_configs_and_records(headrace):
    name = headrace.name("life")
    async with administrator(headrace) as admin:
        created = await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "1000"})])
        assert created.topic_errors[0][1] == 0
        again = await admin.create_topics([NewTopic(name, 2, 1)])
        assert again.topic_errors[0][1] == 36
        assert name in await admin.list_topics()
        await admin.create_partitions({name: NewPartitions(5)})
        [described] = await admin.describe_topics([name])
        assert len(described["partitions"]) == 5
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "777000"})])
        found = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        assert "777000" in str(found[0].resources)
        await send(headrace, name, *({"value": b"v", "partition": 0} for _ in range(10)), acks="all")
        place = TopicPartition(name, 0)
        assert await admin.delete_records({place: RecordsToDelete(4)}) == {place: 4}
        assert (await admin.delete_topics([name])).topic_error_codes[0][1] == 0
        assert name not in await admin.list_topics()


@runs
async def test_admin_sees_groups(headrace):
    topic, group = headrace.topic(), headrace.group()
    seen: list = []
    ending = asyncio.Event()
    await send(headrace, topic, {"value": b"v"})
    task = asyncio.create_task(member(headrace, group, topic, seen, [], ending))
    async with administrator(headrace) as admin:
        while not seen:
            await asyncio.sleep(0.02)
        [described] = await admin.describe_consumer_groups([group])
        assert described.groups[0][2] == "Stable"
        assert (group, "consumer") in await admin.list_consumer_groups()
        assert (await admin.describe_cluster())["cluster_id"]
    ending.set()
    await task
