"""Classic assignors of kafka-python and aiokafka: members come and go, and every message is seen.

confluent-kafka's and the Java client's are in their own files.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import aiokafka
import kafka
import pytest
from aiokafka.coordinator.assignors import range as aio_range
from aiokafka.coordinator.assignors import roundrobin as aio_roundrobin
from aiokafka.coordinator.assignors.sticky import sticky_assignor as aio_sticky
from confluent_kafka import Consumer, KafkaException, Producer
from kafka.coordinator.assignors import cooperative_sticky, roundrobin
from kafka.coordinator.assignors import range as by_range
from kafka.coordinator.assignors.sticky import sticky_assignor

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PARTITIONS, EACH = 4, 60
KAFKA_PYTHON = {
    "range": by_range.RangePartitionAssignor,
    "roundrobin": roundrobin.RoundRobinPartitionAssignor,
    "sticky": sticky_assignor.StickyPartitionAssignor,
    "cooperative-sticky": cooperative_sticky.CooperativeStickyAssignor,
}
AIOKAFKA = {
    "range": aio_range.RangePartitionAssignor,
    "roundrobin": aio_roundrobin.RoundRobinPartitionAssignor,
    "sticky": aio_sticky.StickyPartitionAssignor,
}


@pytest.fixture
def topic(headrace) -> str:
    name = headrace.topic(partitions=PARTITIONS)
    client = Producer({"bootstrap.servers": headrace.bootstrap_servers, "log_level": 0})
    for offset in range(EACH):
        for partition in range(PARTITIONS):
            client.produce(name, f"{offset}", partition=partition)
    assert client.flush(60) == 0
    return name


def everything() -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)}


class Reader(threading.Thread):
    """A kafka-python consumer that commits what it has read, slowly enough for others to come."""

    def __init__(self, where: str, group: str, topic: str, assignor: type) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[int, int]] = []
        self.owned: set[int] = set()
        self.ending = threading.Event()
        self._client = kafka.KafkaConsumer(
            bootstrap_servers=where,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=5,
            heartbeat_interval_ms=100,
            session_timeout_ms=30_000,
            fetch_max_wait_ms=50,
            partition_assignment_strategy=[assignor],
        )
        self._client.subscribe([topic])

    def run(self) -> None:
        while not self.ending.is_set():
            found = self._client.poll(timeout_ms=50)
            self.owned = {place.partition for place in self._client.assignment()}
            self.seen += [(record.partition, record.offset) for records in found.values() for record in records]
            try:
                self._client.commit()
            except kafka.errors.KafkaError:
                pass  # a rebalance: somebody reads it again
        self._client.close()
        self.owned = set()


def wait(until: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("assignor", KAFKA_PYTHON)
def test_kafka_python(headrace, topic, assignor):
    group = headrace.group()

    def reader() -> Reader:
        made = Reader(headrace.bootstrap_servers, group, topic, KAFKA_PYTHON[assignor])
        made.start()
        return made

    first = second = reader()
    try:
        wait(lambda: len(first.owned) == PARTITIONS and len(first.seen) > 10, "the first reads everything")
        second = reader()
        wait(lambda: len(first.owned) == len(second.owned) == 2, "both have a half")
        wait(lambda: first.owned.isdisjoint(second.owned), "nothing has two owners")
        first.ending.set()
        wait(lambda: len(second.owned) == PARTITIONS, "the second has everything")
        wait(lambda: {*first.seen, *second.seen} == everything(), "every message is seen")
    finally:
        first.ending.set()
        second.ending.set()
        first.join(20)
        second.join(20)


@pytest.mark.parametrize("assignor", KAFKA_PYTHON)
def test_kafka_python_beside_a_member_of_the_new_protocol(headrace, topic, assignor):
    group = headrace.group()
    classic = Reader(headrace.bootstrap_servers, group, topic, KAFKA_PYTHON[assignor])
    classic.start()
    config = {"bootstrap.servers": headrace.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    new = Consumer(config | {"auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0})
    seen: set[tuple[int, int]] = set()

    def step() -> None:
        message = new.poll(0.02)
        if message is not None and message.error() is None:
            seen.add((message.partition(), message.offset()))
            try:
                new.commit(message, asynchronous=False)
            except KafkaException:
                pass  # a rebalance: somebody reads it again

    def shared() -> bool:
        step()
        mine = {place.partition for place in new.assignment()}
        return len(mine) == len(classic.owned) == 2 and mine.isdisjoint(classic.owned)

    def alone() -> bool:
        step()
        return len(new.assignment()) == PARTITIONS and {*seen, *classic.seen} == everything()

    try:
        wait(lambda: len(classic.owned) == PARTITIONS and len(classic.seen) > 10, "the classic member reads everything")
        new.subscribe([topic])
        wait(shared, "both have a half")
        classic.ending.set()
        wait(alone, "the new member reads the rest")
    finally:
        classic.ending.set()
        classic.join(20)
        new.close()


@pytest.mark.parametrize("assignor", AIOKAFKA)
def test_aiokafka(headrace, topic, assignor):
    group = headrace.group()

    async def read(client, seen: set[tuple[int, int]]) -> None:
        found = await client.getmany(timeout_ms=50, max_records=5)
        seen |= {(record.partition, record.offset) for records in found.values() for record in records}
        try:
            await client.commit()
        except aiokafka.errors.KafkaError:
            pass  # a rebalance: somebody reads it again

    async def open_() -> aiokafka.AIOKafkaConsumer:
        client = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=headrace.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=30_000,
            fetch_max_wait_ms=50,
            partition_assignment_strategy=[AIOKAFKA[assignor]],
        )
        await client.start()
        return client

    async def main() -> None:
        seen: set[tuple[int, int]] = set()
        first = await open_()
        while len(seen) < 20:
            await read(first, seen)
        assert len(first.assignment()) == PARTITIONS
        second = await open_()
        while not len(first.assignment()) == len(second.assignment()) == 2:
            await asyncio.gather(read(first, seen), read(second, seen))
        assert first.assignment().isdisjoint(second.assignment())
        await first.stop()
        while seen != everything() or len(second.assignment()) != PARTITIONS:
            await read(second, seen)
        await second.stop()

    asyncio.run(asyncio.wait_for(main(), 250))
