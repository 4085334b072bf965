"""aiokafka: transactions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is not installed")

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
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
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(client.stop(), 20)


def producer(headrace, name: str, **config):
    return running(AIOKafkaProducer(bootstrap_servers=headrace.bootstrap_servers, transactional_id=name, **config))


def reader(headrace, isolation: str = "read_committed", **config):
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 50}
    settings |= {"isolation_level": isolation}
    return running(AIOKafkaConsumer(bootstrap_servers=headrace.bootstrap_servers, **(settings | config)))


async def high_watermark(headrace, topic: str) -> int:
    place = TopicPartition(topic, 0)
    async with reader(headrace, "read_uncommitted") as client:
        return (await client.end_offsets([place]))[place]


async def read(headrace, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All values up to the end, which a reader of committed records may have to wait for."""
    end = await high_watermark(headrace, topic)
    place = TopicPartition(topic, 0)
    async with reader(headrace, isolation) as client:
        client.assign([place])
        client.seek(place, 0)
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE
        while await client.position(place) < end:
            assert time.monotonic() < deadline, f"{await client.position(place)} of {end}, {found}"
            for records in (await client.getmany(timeout_ms=100)).values():
                found += [record.value for record in records]
        return found


async def fail_in_transaction(client: AIOKafkaProducer, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async with client.transaction():
        await work()
        raise ZeroDivisionError


@runs
async def test_committed_records_are_seen_and_aborted_ones_are_not(headrace):
    topic, other = headrace.topic(), headrace.topic()
    async with producer(headrace, headrace.name("t")) as client:
        for number in range(10):
            await client.begin_transaction()
            for place in (topic, other):
                await client.send(place, b"%d" % number)
            if number % 3 == 2:
                await client.flush()
                await client.abort_transaction()
            else:
                await client.commit_transaction()
    expected = [b"%d" % number for number in range(10) if number % 3 != 2]
    assert await read(headrace, topic) == await read(headrace, other) == expected


@runs
async def test_a_block_that_fails_is_aborted(headrace):
    topic = headrace.topic()
    async with producer(headrace, headrace.name("t")) as client:
        async with client.transaction():
            await client.send_and_wait(topic, b"good")
        with pytest.raises(ZeroDivisionError):
            await fail_in_transaction(client, lambda: client.send_and_wait(topic, b"bad"))
        async with client.transaction():
            await client.send_and_wait(topic, b"good again")
    assert await read(headrace, topic) == [b"good", b"good again"]
    assert await read(headrace, topic, "read_uncommitted") == [b"good", b"bad", b"good again"]


@runs
async def test_offsets_are_committed_with_the_transaction_only(headrace):
    topic, group = headrace.topic(), headrace.group()
    place = TopicPartition(topic, 0)
    async with producer(headrace, headrace.name("t")) as client:
        async with client.transaction():
            await client.send(topic, b"v")
            await client.send_offsets_to_transaction({place: OffsetAndMetadata(4, "about it")}, group)
        offsets = {place: OffsetAndMetadata(9, "")}
        with pytest.raises(ZeroDivisionError):
            await fail_in_transaction(client, lambda: client.send_offsets_to_transaction(offsets, group))
    async with reader(headrace, group_id=group) as member:
        member.assign([place])
        assert await member.committed(place) == 4


@runs
async def test_a_second_instance_fences_the_first(headrace):
    topic, name = headrace.topic(), headrace.name("t")
    async with producer(headrace, name) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"first")
        async with producer(headrace, name) as second:
            with pytest.raises(ProducerFenced):
                await first.commit_transaction()
            async with second.transaction():
                await second.send_and_wait(topic, b"second")
    assert await read(headrace, topic) == [b"second"]


@runs
async def test_a_transaction_that_takes_too_long_is_aborted_by_the_coordinator(headrace):
    timeout_s = 1
    while not await is_aborted_in_time(headrace, headrace.topic(), timeout_s):
        timeout_s *= 2  # a slow machine needs more


async def is_aborted_in_time(headrace, topic: str, timeout_s: int) -> bool:
    """Whether a transaction was open long enough for its record to be written before it was aborted."""
    async with producer(headrace, headrace.name("t"), transaction_timeout_ms=timeout_s * 1000) as client:
        begun = time.monotonic()
        await client.begin_transaction()
        try:
            await client.send_and_wait(topic, b"slow")
        except KafkaError:
            assert time.monotonic() >= begun + timeout_s, "it was aborted too soon"
            return False
        deadline = time.monotonic() + PATIENCE
        while await high_watermark(headrace, topic) < 2:
            assert time.monotonic() < deadline, "there is no marker"
            await asyncio.sleep(0.1)
        assert time.monotonic() >= begun + timeout_s, "it was aborted too soon"
        with pytest.raises(ProducerFenced):
            await client.commit_transaction()
    assert await read(headrace, topic) == []
    return True
