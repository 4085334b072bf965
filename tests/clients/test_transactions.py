"""Transactions with confluent-kafka, aiokafka and kafka-python, against a real process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SECONDS = 60


def transactional(servers: str, name: str, **config) -> Producer:
    settings = {"bootstrap.servers": servers, "log_level": 0, "transactional.id": name}
    client = Producer(settings | {key.replace("_", "."): value for key, value in config.items()})
    client.init_transactions(SECONDS)
    return client


@contextmanager
def reader(servers: str, group: str, *, committed: bool = True) -> Iterator[Consumer]:
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "log_level": 0,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        yield client
    finally:
        client.close()


def await_decided(servers: str, topic: str, group: str, partitions: int) -> None:
    """Until no transaction is open: a commit is answered before its markers are written."""
    with reader(servers, group) as careful, reader(servers, group, committed=False) as careless:
        for place in (TopicPartition(topic, index) for index in range(partitions)):
            end = careless.get_watermark_offsets(place, SECONDS)[1]
            deadline = time.monotonic() + SECONDS
            while careful.get_watermark_offsets(place, SECONDS)[1] < end:
                assert time.monotonic() < deadline, f"{topic} has an open transaction"
                time.sleep(0.02)


def read(
    servers: str, topic: str, group: str, *, committed: bool = True, partitions: int = 1, decided: bool = True
) -> list[bytes]:
    """Every record up to the end of every partition, partition by partition; when all is decided, or at once."""
    if decided:
        await_decided(servers, topic, group, partitions)
    with reader(servers, group, committed=committed) as client:
        client.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
        ended: set[int] = set()
        while len(ended) < partitions:
            message = client.poll(SECONDS)
            assert message is not None, f"nothing came; so far: {found}"
            if message.error() is None:
                found[message.partition()].append(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
        return [value for index in range(partitions) for value in found[index]]


def test_committed_records_are_seen_and_aborted_ones_are_not(headrace) -> None:
    servers, topic = headrace.bootstrap_servers, headrace.topic(partitions=2)
    client = transactional(servers, headrace.name("t"))
    for number in range(6):
        client.begin_transaction()
        for partition in (0, 1):
            client.produce(topic, b"%d" % number, partition=partition)
        client.flush(SECONDS)
        if number % 2:
            client.abort_transaction(SECONDS)
        else:
            client.commit_transaction(SECONDS)
    assert read(servers, topic, headrace.group(), partitions=2) == [b"0", b"2", b"4"] * 2
    everything = read(servers, topic, headrace.group("all"), committed=False, partitions=2)
    assert everything == [b"%d" % number for number in range(6)] * 2


def test_an_open_transaction_holds_readers_of_committed_records_back(headrace) -> None:
    servers, topic = headrace.bootstrap_servers, headrace.topic()
    client = transactional(servers, headrace.name("t"))
    client.begin_transaction()
    client.produce(topic, b"open")
    assert client.flush(SECONDS) == 0
    plain = Producer({"bootstrap.servers": servers, "log_level": 0})
    plain.produce(topic, b"plain")
    assert plain.flush(SECONDS) == 0
    assert read(servers, topic, headrace.group(), decided=False) == []
    with reader(servers, headrace.group("marks")) as watching:
        assert watching.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (0, 0)
    client.commit_transaction(SECONDS)
    assert read(servers, topic, headrace.group()) == [b"open", b"plain"]


def test_offsets_move_with_the_transaction(headrace) -> None:
    servers, source, target = headrace.bootstrap_servers, headrace.topic("in"), headrace.topic("out")
    plain = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(5):
        plain.produce(source, b"%d" % number)
    assert plain.flush(SECONDS) == 0
    client = transactional(servers, headrace.name("t"))
    place = TopicPartition(source, 0)
    with reader(servers, headrace.group()) as taking:
        taking.subscribe([source])
        taken = 0
        while taken < 5:
            message = taking.poll(SECONDS)
            assert message is not None
            taken += message.error() is None
        for commit, expected in ((False, -1001), (True, 5)):
            client.begin_transaction()
            client.produce(target, b"bill")
            client.send_offsets_to_transaction(
                taking.position(taking.assignment()), taking.consumer_group_metadata(), SECONDS
            )
            with pytest.raises(KafkaException) as caught:  # librdkafka asks for stable offsets, again and again
                taking.committed([place], 0.3)
            assert caught.value.args[0].code() == KafkaError._TIMED_OUT
            if commit:
                client.commit_transaction(SECONDS)
            else:
                client.abort_transaction(SECONDS)
            assert taking.committed([place], SECONDS)[0].offset == expected
    assert read(servers, target, headrace.group("check")) == [b"bill"]


def test_a_group_without_members_keeps_a_marker_with_its_text(headrace) -> None:
    """How the Spark sink remembers which batch it has written."""
    servers, topic = headrace.bootstrap_servers, headrace.topic()
    client = transactional(servers, headrace.name("t"))
    group = headrace.group("marker")
    with reader(servers, group) as idle:
        for number in range(2):
            client.begin_transaction()
            client.produce(topic, b"%d" % number)
            mark = TopicPartition(topic, 0, number, metadata=f"batch {number}")
            client.send_offsets_to_transaction([mark], idle.consumer_group_metadata(), SECONDS)
            client.commit_transaction(SECONDS)
        (found,) = idle.committed([TopicPartition(topic, 0)], SECONDS)
        assert (found.offset, found.metadata) == (1, "batch 1")


def test_a_producer_that_was_replaced_is_fenced(headrace) -> None:
    servers, topic, name = headrace.bootstrap_servers, headrace.topic(), headrace.name("t")
    zombie = transactional(servers, name)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie")
    assert zombie.flush(SECONDS) == 0
    heir = transactional(servers, name)
    zombie.produce(topic, b"late")
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(SECONDS)
    assert caught.value.args[0].fatal()
    heir.begin_transaction()
    heir.produce(topic, b"heir")
    heir.commit_transaction(SECONDS)
    assert read(servers, topic, headrace.group()) == [b"heir"]


def test_a_transaction_that_takes_too_long_is_aborted_and_lets_readers_go_on(headrace) -> None:
    servers, topic = headrace.bootstrap_servers, headrace.topic()
    slow = transactional(servers, headrace.name("t"), transaction_timeout_ms=2000)
    slow.begin_transaction()
    slow.produce(topic, b"slow")
    assert slow.flush(SECONDS) == 0
    plain = Producer({"bootstrap.servers": servers, "log_level": 0})
    plain.produce(topic, b"plain")
    assert plain.flush(SECONDS) == 0
    with reader(servers, headrace.group()) as client:
        client.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + SECONDS
        while (message := client.poll(1)) is None or message.error() is not None:
            assert time.monotonic() < deadline, "the last stable offset does not move"
        assert message.value() == b"plain"
    with pytest.raises(KafkaException):
        slow.commit_transaction(SECONDS)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_on_after_the_broker_was_killed(tmp_path: Path, commit: bool) -> None:
    with BrokerProcess(tmp_path / "data", "--log-level", "warning") as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("out", 2)])["out"].result(SECONDS)
        client = transactional(servers, "t", reconnect_backoff_max_ms=200, retry_backoff_max_ms=200)
        client.begin_transaction()
        client.produce("out", b"a", partition=0)
        assert client.flush(SECONDS) == 0
        broker.kill()
        broker.start()
        client.produce("out", b"b", partition=1)
        client.produce("out", b"c", partition=0)
        assert client.flush(SECONDS) == 0
        if commit:
            client.commit_transaction(SECONDS)
        else:
            client.abort_transaction(SECONDS)
        broker.kill()
        broker.start()
        assert read(servers, "out", "g", partitions=2) == ([b"a", b"c", b"b"] if commit else [])


def test_aiokafka_commits_and_aborts(headrace) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    servers, topic, group = headrace.bootstrap_servers, headrace.topic(), headrace.group()

    async def work() -> list[bytes]:
        client = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=headrace.name("t"))
        await client.start()
        try:
            for number in range(4):
                await client.begin_transaction()
                await client.send_and_wait(topic, b"%d" % number)
                await client.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): number}, group)
                await (client.abort_transaction() if number % 2 else client.commit_transaction())
        finally:
            await client.stop()
        taking = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers, group_id=group, isolation_level="read_committed", enable_auto_commit=False
        )
        await taking.start()
        try:
            place = aiokafka.TopicPartition(topic, 0)
            taking.assign([place])
            assert await taking.committed(place) == 2
            taking.seek(place, 0)
            found: list[bytes] = []
            while len(found) < 2:
                batches = await taking.getmany(timeout_ms=1000)
                found += [message.value for messages in batches.values() for message in messages]
            return found
        finally:
            await taking.stop()

    assert asyncio.run(asyncio.wait_for(work(), 250)) == [b"0", b"2"]


def test_kafka_python_commits_and_aborts(headrace) -> None:
    kafka = pytest.importorskip("kafka")
    servers, topic = headrace.bootstrap_servers, headrace.topic()
    client = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=headrace.name("t"))
    client.init_transactions()
    for number in range(4):
        client.begin_transaction()
        client.send(topic, b"%d" % number)
        client.flush(SECONDS)
        if number % 2:
            client.abort_transaction()
        else:
            client.commit_transaction()
    client.close()
    assert read(servers, topic, headrace.group()) == [b"0", b"2"]
    taking = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    found = []
    for message in taking:
        found.append(message.value)
        if len(found) == 2:
            break
    taking.close()
    assert found == [b"0", b"2"]
