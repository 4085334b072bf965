"""confluent-kafka (librdkafka): transactions, by the older protocol."""

from __future__ import annotations

import math
import time

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE = 60


def producer(headrace, name: str, **config) -> Producer:
    settings = {
        "bootstrap.servers": headrace.bootstrap_servers,
        "log_level": 0,
        "transactional.id": name,
        "linger.ms": 0,
        "retry.backoff.ms": 20,
    }
    client = Producer(settings | {key.replace("_", "."): value for key, value in config.items()})
    client.init_transactions(PATIENCE)
    return client


def consumer(headrace, isolation: str = "read_committed", **config) -> Consumer:
    settings = {
        "bootstrap.servers": headrace.bootstrap_servers,
        "log_level": 0,
        "group.id": headrace.group(),
        "isolation.level": isolation,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
    }
    return Consumer(settings | {key.replace("_", "."): value for key, value in config.items()})


def read(
    headrace, topic: str, *, partitions: int = 1, isolation: str = "read_committed", settled: bool = True
) -> list[bytes]:
    """All values up to the end that such a reader sees. A commit is answered before its markers are written."""
    for index in range(partitions if settled else 0):
        settle(headrace, topic, index)
    client = consumer(headrace, isolation)
    client.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[bytes] = []
    left, deadline = partitions, time.monotonic() + PATIENCE
    while left:
        assert time.monotonic() < deadline, f"no end after {found}"
        message = client.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left -= 1
    client.close()
    return found


def end_offset(headrace, topic: str, isolation: str = "read_committed", partition: int = 0) -> int:
    client = consumer(headrace, isolation)
    end = client.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE)[1]
    client.close()
    return end


def settle(headrace, topic: str, partition: int = 0) -> int:
    """Wait until everything is decided; the end."""
    end = end_offset(headrace, topic, "read_uncommitted", partition)
    deadline = time.monotonic() + PATIENCE
    while end_offset(headrace, topic, partition=partition) < end:
        assert time.monotonic() < deadline, f"{topic} is not stable"
        time.sleep(0.02)
    return end_offset(headrace, topic, partition=partition)


def write(client: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        client.produce(topic, value)
    assert client.flush(PATIENCE) == 0


def test_committed_records_are_seen_and_aborted_ones_are_not(headrace):
    topic, other = headrace.topic(partitions=2), headrace.topic()
    client = producer(headrace, headrace.name("t"))
    for number in range(20):
        client.begin_transaction()
        value = b"%d" % number
        client.produce(topic, value, partition=number % 2)
        client.produce(other, value)
        if number % 3 == 2:
            client.abort_transaction(PATIENCE)
        else:
            client.commit_transaction(PATIENCE)
    expected = {b"%d" % number for number in range(20) if number % 3 != 2}
    assert sorted(read(headrace, topic, partitions=2)) == sorted(expected)
    assert set(read(headrace, other)) == expected


def test_many_records_in_many_batches_of_one_transaction(headrace):
    topic = headrace.topic(partitions=3)
    client = producer(headrace, headrace.name("t"), batch_num_messages=50, linger_ms=1)
    for commit in (True, False, True):
        client.begin_transaction()
        for number in range(3000):
            client.produce(topic, b"%d %d" % (commit, number), partition=number % 3)
            client.poll(0)
        (client.commit_transaction if commit else client.abort_transaction)(PATIENCE)
    found = read(headrace, topic, partitions=3)
    assert len(found) == 6000
    assert not any(value.startswith(b"0") for value in found)


def test_what_is_open_is_seen_by_readers_of_everything_only(headrace):
    topic = headrace.topic()
    client = producer(headrace, headrace.name("t"))
    client.begin_transaction()
    write(client, topic, b"open")
    plain = Producer({"bootstrap.servers": headrace.bootstrap_servers, "log_level": 0})
    write(plain, topic, b"behind it")
    assert end_offset(headrace, topic) == 0
    assert read(headrace, topic, settled=False) == []
    assert read(headrace, topic, isolation="read_uncommitted", settled=False) == [b"open", b"behind it"]
    client.commit_transaction(PATIENCE)
    assert read(headrace, topic) == [b"open", b"behind it"]
    assert settle(headrace, topic) == 3  # with the marker


def test_offsets_are_committed_with_the_records(headrace):
    source, target, group = headrace.topic(), headrace.topic(), headrace.group()
    plain = Producer({"bootstrap.servers": headrace.bootstrap_servers, "log_level": 0})
    write(plain, source, *(b"%d" % number for number in range(10)))
    reader = consumer(headrace, group_id=group, enable_partition_eof=False)
    reader.subscribe([source])
    client = producer(headrace, headrace.name("t"))
    admin = AdminClient({"bootstrap.servers": headrace.bootstrap_servers, "log_level": 0})
    taken: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    while len(taken) < 10 and time.monotonic() < deadline:
        messages = [message for message in reader.consume(3, 0.5) if message.error() is None]
        if not messages:
            continue
        client.begin_transaction()
        for message in messages:
            client.produce(target, message.value())
        taken += [message.value() for message in messages]
        place = TopicPartition(source, 0, messages[-1].offset() + 1)
        client.send_offsets_to_transaction([place], reader.consumer_group_metadata(), PATIENCE)
        client.commit_transaction(PATIENCE)
    assert read(headrace, target) == taken
    assert len(taken) == 10
    deadline = time.monotonic() + PATIENCE

    def committed() -> list[int]:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        return [place.offset for place in asked.result(PATIENCE).topic_partitions]

    while committed() != [10]:  # the marker of the group's offsets may be the last one that is written
        assert time.monotonic() < deadline, committed()
        time.sleep(0.02)
    reader.close()


def test_aborted_offsets_are_not_committed(headrace):
    source, group = headrace.topic(), headrace.group()
    reader = consumer(headrace, group_id=group)
    place = TopicPartition(source, 0)
    reader.commit(offsets=[TopicPartition(source, 0, 3)], asynchronous=False)
    client = producer(headrace, headrace.name("t"))
    client.begin_transaction()
    client.send_offsets_to_transaction([TopicPartition(source, 0, 7)], reader.consumer_group_metadata(), PATIENCE)
    client.abort_transaction(PATIENCE)
    assert reader.committed([place], PATIENCE)[0].offset == 3
    client.begin_transaction()
    client.send_offsets_to_transaction([TopicPartition(source, 0, 8)], reader.consumer_group_metadata(), PATIENCE)
    client.commit_transaction(PATIENCE)
    assert reader.committed([place], PATIENCE)[0].offset == 8
    reader.close()


def test_pending_offsets_are_unstable_until_the_end(headrace):
    source, group = headrace.topic(), headrace.group()
    careful, careless = (
        consumer(headrace, isolation, group_id=group) for isolation in ("read_committed", "read_uncommitted")
    )
    place = TopicPartition(source, 0)
    careless.commit(offsets=[TopicPartition(source, 0, 3)], asynchronous=False)
    client = producer(headrace, headrace.name("t"))
    client.begin_transaction()
    client.send_offsets_to_transaction([TopicPartition(source, 0, 7)], careless.consumer_group_metadata(), PATIENCE)
    assert careless.committed([place], PATIENCE)[0].offset == 3
    with pytest.raises(KafkaException):
        careful.committed([place], 0.5)
    client.commit_transaction(PATIENCE)
    assert careful.committed([place], PATIENCE)[0].offset == 7
    for reader in (careful, careless):
        reader.close()


def test_a_second_instance_fences_the_first_and_aborts_what_it_left(headrace):
    topic, name = headrace.topic(), headrace.name("t")
    first = producer(headrace, name)
    first.begin_transaction()
    write(first, topic, b"first")
    second = producer(headrace, name)
    assert settle(headrace, topic) == 2
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(PATIENCE)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert refused.value.args[0].fatal()
    second.begin_transaction()
    write(second, topic, b"second")
    second.commit_transaction(PATIENCE)
    assert read(headrace, topic) == [b"second"]


def test_a_transaction_that_takes_too_long_is_aborted_by_the_coordinator(headrace):
    begun, timeout_s = -math.inf, 1
    while time.monotonic() >= begun + timeout_s:  # written in time; a slow machine needs more of it
        timeout_s *= 2
        topic = headrace.topic()
        client = producer(headrace, headrace.name("t"), transaction_timeout_ms=timeout_s * 1000)
        begun = time.monotonic()
        client.begin_transaction()
        write(client, topic, b"slow")
    assert settle(headrace, topic) == 2
    with pytest.raises(KafkaException) as refused:
        client.commit_transaction(PATIENCE)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert read(headrace, topic) == []


def test_a_timeout_above_the_longest_is_refused(headrace):
    with pytest.raises(KafkaException) as refused:
        producer(headrace, headrace.name("t"), transaction_timeout_ms=16 * 60_000)
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_an_empty_transaction_ends_at_once(headrace):
    topic = headrace.topic()
    client = producer(headrace, headrace.name("t"))
    for end in (client.commit_transaction, client.abort_transaction) * 3:
        client.begin_transaction()
        end(PATIENCE)
    assert end_offset(headrace, topic) == 0


def test_transactions_of_many_producers_side_by_side(headrace):
    topic = headrace.topic()
    clients = [producer(headrace, headrace.name("t")) for _ in range(8)]
    for number in range(5):
        for index, client in enumerate(clients):
            client.begin_transaction()
            client.produce(topic, b"%d %d" % (index, number))
        for client in clients:
            client.flush(PATIENCE)
        for index, client in reversed(list(enumerate(clients))):
            (client.abort_transaction if index % 2 else client.commit_transaction)(PATIENCE)
    found = read(headrace, topic)
    assert sorted(found) == sorted(b"%d %d" % (index, number) for number in range(5) for index in range(0, 8, 2))


def test_the_admin_sees_both_ends(headrace):
    topic = headrace.topic()
    client = producer(headrace, headrace.name("t"))
    client.begin_transaction()
    write(client, topic, b"a", b"b")
    admin = AdminClient({"bootstrap.servers": headrace.bootstrap_servers, "log_level": 0})
    place = TopicPartition(topic, 0)
    ends = {
        level: admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(PATIENCE).offset
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    }
    assert ends == {IsolationLevel.READ_COMMITTED: 0, IsolationLevel.READ_UNCOMMITTED: 2}
    client.abort_transaction(PATIENCE)
