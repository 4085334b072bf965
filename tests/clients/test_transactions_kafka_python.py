"""kafka-python: transactions, and its tools to look at them."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("kafka", reason="kafka-python is not installed")

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import AbortTransactionSpec
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE = 60


@pytest.fixture
def producer(headrace):
    """Makes producers, and closes them in the end."""
    clients = []

    def make(name: str, **config) -> KafkaProducer:
        settings = {"transactional_id": name, "retry_backoff_ms": 20} | config
        client = KafkaProducer(bootstrap_servers=headrace.bootstrap_servers, **settings)
        clients.append(client)
        client.init_transactions()
        return client

    yield make
    for client in clients:
        client.close(timeout=1)


@pytest.fixture
def admin(headrace):
    client = KafkaAdminClient(bootstrap_servers=headrace.bootstrap_servers)
    yield client
    client.close()


def reader(headrace, isolation: str) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=headrace.bootstrap_servers,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    )


def high_watermark(headrace, topic: str) -> int:
    client = reader(headrace, "read_uncommitted")
    place = TopicPartition(topic, 0)
    try:
        return client.end_offsets([place])[place]
    finally:
        client.close()


def read(headrace, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All values up to the end, which a reader of committed records may have to wait for."""
    end = high_watermark(headrace, topic)
    client = reader(headrace, isolation)
    try:
        place = TopicPartition(topic, 0)
        client.assign([place])
        client.seek(place, 0)
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE
        while client.position(place) < end:
            assert time.monotonic() < deadline, f"{client.position(place)} of {end}, {found}"
            for records in client.poll(timeout_ms=100).values():
                found += [record.value for record in records]
        return found
    finally:
        client.close()


def test_committed_records_are_seen_and_aborted_ones_are_not(headrace, producer):
    topic, other = headrace.topic(), headrace.topic()
    client = producer(headrace.name("t"))
    for number in range(10):
        client.begin_transaction()
        for place in (topic, other):
            client.send(place, b"%d" % number)
        (client.abort_transaction if number % 3 == 2 else client.commit_transaction)()
    expected = [b"%d" % number for number in range(10) if number % 3 != 2]
    assert read(headrace, topic) == read(headrace, other) == expected


def test_offsets_are_committed_with_the_transaction_only(headrace, producer, admin):
    topic, group = headrace.topic(), headrace.group()
    client = producer(headrace.name("t"))
    place = TopicPartition(topic, 0)
    for offset, end in ((4, client.commit_transaction), (9, client.abort_transaction)):
        client.begin_transaction()
        client.send(topic, b"v")
        offsets = {place: OffsetAndMetadata(offset, "about it", -1)}
        client.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))
        end()
    group_reader = KafkaConsumer(bootstrap_servers=headrace.bootstrap_servers, group_id=group)
    found = group_reader.committed(place, metadata=True)
    group_reader.close()
    assert (found.offset, found.metadata) == (4, "about it")


def test_a_second_instance_fences_the_first(headrace, producer):
    topic, name = headrace.topic(), headrace.name("t")
    first = producer(name)
    first.begin_transaction()
    first.send(topic, b"first").get(PATIENCE)
    second = producer(name)
    with pytest.raises(errors.KafkaError, match="Fenced|InvalidProducerEpoch"):
        first.commit_transaction()
    second.begin_transaction()
    second.send(topic, b"second")
    second.commit_transaction()
    assert read(headrace, topic) == [b"second"]


def test_transactions_can_be_listed_and_described(headrace, producer, admin):
    topic, name = headrace.topic(partitions=2), headrace.name("t")
    client = producer(name, transaction_timeout_ms=30_000)
    client.begin_transaction()
    client.send(topic, b"v", partition=1).get(PATIENCE)
    listed = {one.transactional_id: one for found in admin.list_transactions().values() for one in found}
    assert listed[name].state == "Ongoing"
    described = admin.describe_transactions([name])[name]
    assert described.state == "Ongoing"
    assert described.producer_id == listed[name].producer_id
    assert described.transaction_timeout_ms == 30_000
    assert abs(described.transaction_start_time_ms - time.time() * 1000) < 60_000
    assert set(described.topic_partitions) == {TopicPartition(topic, 1)}
    place = TopicPartition(topic, 1)
    [active] = admin.describe_producers([place])[place].active_producers
    assert (active.producer_id, active.current_transaction_start_offset) == (described.producer_id, 0)
    client.commit_transaction()
    deadline = time.monotonic() + PATIENCE
    while admin.describe_transactions([name])[name].state != "CompleteCommit":
        assert time.monotonic() < deadline
    assert admin.describe_producers([place])[place].active_producers[0].current_transaction_start_offset == -1
    ongoing = admin.list_transactions(state_filters=["Ongoing"])
    assert name not in {one.transactional_id for found in ongoing.values() for one in found}


def test_unknown_transactional_ids_have_no_description(headrace, producer, admin):
    producer(headrace.name("t"))
    with pytest.raises(errors.TransactionalIdNotFoundError):
        admin.describe_transactions([headrace.name("nobody")])


def test_a_client_cannot_write_markers(headrace, producer, admin):
    topic = headrace.topic()
    client = producer(headrace.name("t"))
    client.begin_transaction()
    client.send(topic, b"whole").get(PATIENCE)
    place = TopicPartition(topic, 0)
    [active] = admin.describe_producers([place])[place].active_producers
    with pytest.raises(errors.ClusterAuthorizationFailedError):
        admin.abort_transaction(AbortTransactionSpec(place, active.producer_id, active.producer_epoch, 0))
    client.commit_transaction()
    assert read(headrace, topic) == [b"whole"]


def test_a_timeout_above_the_longest_is_refused(headrace, producer):
    with pytest.raises(errors.KafkaError, match="InvalidTransactionTimeout"):
        producer(headrace.name("t"), transaction_timeout_ms=16 * 60_000)
