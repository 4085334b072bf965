"""Producer, Consumer, Reader: against a broker."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import confluent_kafka
import pytest

from headrace.client import (
    Admin,
    ClientError,
    Connection,
    Consumer,
    Groups,
    Producer,
    Range,
    Reader,
    UnreachableError,
    groups,
)
from headrace.client.connection import addresses, connection
from headrace.core.errors import ConfigError


@pytest.fixture
def bootstrap(headrace):
    return Connection(headrace.bootstrap_servers, timeout_s=60)  # a busy machine may take its time


def _fill(bootstrap, topic, count=5):
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number), partition=0)


def test_a_receipt_tells_where_a_message_landed(headrace, bootstrap):
    topic = headrace.topic("receipts")
    with Producer(bootstrap) as producer:
        first = producer.send_and_wait(topic, {"id": 1}, key="k", headers={"a": "1"})
        second = producer.send(topic, b"bytes", partition=0, timestamp_ms=1_700_000_000_000)
        assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
        assert second.result(60).offset == 1
        assert second.result(0).timestamp_ms == 1_700_000_000_000
    with Consumer(topic, bootstrap=bootstrap, until_end=True) as consumer:
        one, two = list(consumer)
    assert (one.json(), one.key_text, one.header("a")) == ({"id": 1}, "k", b"1")
    assert (two.value, two.key, two.timestamp_ms) == (b"bytes", None, 1_700_000_000_000)


def test_a_refused_message_fails_its_delivery(headrace, bootstrap):
    topic = headrace.topic("refusal", configs={"max.message.bytes": "100"})
    with Producer(bootstrap) as producer:
        delivery = producer.send(topic, "x" * 1000)
        assert isinstance(delivery.exception(60), ClientError)
        with pytest.raises(ClientError, match=f"cannot deliver to {topic}"):
            delivery.result()


def test_the_end_of_the_block_waits_for_everything_sent(headrace, bootstrap):
    topic = headrace.topic("block")
    with Producer(bootstrap, linger_ms=60_000, delivery_s=120) as producer:  # nobody else sends them in time
        deliveries = [producer.send(topic, str(number)) for number in range(100)]
        assert not deliveries[-1].done()
    assert all(delivery.done() for delivery in deliveries)


def test_a_failing_body_gets_its_message_again_and_a_finished_one_does_not(headrace, bootstrap):
    topic, group = headrace.topic("again"), headrace.group()
    _fill(bootstrap, topic)

    def read_until_two_fails() -> None:
        with Consumer(topic, group=group, bootstrap=bootstrap) as consumer:
            for message in consumer:
                if message.text == "2":
                    raise RuntimeError("cannot handle this")

    with pytest.raises(RuntimeError):
        read_until_two_fails()
    with Consumer(topic, group=group, bootstrap=bootstrap) as consumer:
        for message in consumer:
            assert message.text == "2"
            break
    with Consumer(topic, group=group, bootstrap=bootstrap, until_end=True) as consumer:
        assert [message.text for message in consumer] == ["3", "4"]


def test_auto_commits_before_the_body_has_run(headrace, bootstrap):
    topic, group = headrace.topic("atmost"), headrace.group()
    _fill(bootstrap, topic, 3)

    def fail_at_once() -> None:
        with Consumer(topic, group=group, bootstrap=bootstrap, commit="auto") as consumer:
            for _ in consumer:
                raise RuntimeError("lost")

    with pytest.raises(RuntimeError):
        fail_at_once()
    with Consumer(topic, group=group, bootstrap=bootstrap, until_end=True) as consumer:
        assert [message.text for message in consumer] == ["1", "2"]


def test_manual_commits_nothing_by_itself(headrace, bootstrap):
    topic, group = headrace.topic("manual"), headrace.group()
    _fill(bootstrap, topic, 3)
    with Consumer(topic, group=group, bootstrap=bootstrap, commit="manual", until_end=True) as consumer:
        messages = list(consumer)
        consumer.commit(messages[0])
    with Consumer(topic, group=group, bootstrap=bootstrap, until_end=True) as consumer:
        assert [message.text for message in consumer] == ["1", "2"]


def test_seek_goes_back(headrace, bootstrap):
    topic = headrace.topic("seek")
    _fill(bootstrap, topic, 3)
    with Consumer(topic, bootstrap=bootstrap, until_end=True) as consumer:
        assert [message.offset for message in consumer] == [0, 1, 2]
        consumer.seek(topic, 0, 1)
        assert [message.offset for message in consumer] == [1, 2]


def test_latest_starts_at_the_end(headrace, bootstrap):
    topic = headrace.topic("latest")
    _fill(bootstrap, topic, 3)
    with Consumer(topic, bootstrap=bootstrap, start="latest", until_end=True) as consumer:
        assert list(consumer) == []


def test_a_reader_reads_exactly_its_ranges(headrace, bootstrap):
    topic = headrace.topic("ranges", partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.send(topic, str(number // 2), partition=number % 2)
    wanted = [Range(topic, 0, 3, 6), Range(topic, 1, 8, 10)]
    with Reader(wanted, bootstrap=bootstrap) as reader:
        found = sorted((message.partition, message.offset) for message in reader)
        assert reader.exhausted
    assert found == [(0, 3), (0, 4), (0, 5), (1, 8), (1, 9)]
    with Reader([Range(topic, 0, 5, 5)], bootstrap=bootstrap) as reader:
        assert list(reader) == []


def test_an_unknown_topic_is_an_error_not_a_wait(headrace, bootstrap):
    with (
        pytest.raises(ClientError) as caught,
        Consumer(headrace.name("never"), group="g", bootstrap=bootstrap) as consumer,
    ):
        for _ in consumer:
            pass
    assert caught.value.code == "UNKNOWN_TOPIC_OR_PART"


def test_a_missing_broker_is_an_error_at_once():
    for make in (lambda: Producer("127.0.0.1:1"), lambda: Consumer("t", bootstrap="127.0.0.1:1")):
        with pytest.raises(UnreachableError, match="127.0.0.1:1"):
            make()


def test_a_bad_property_is_a_configuration_error(headrace):
    with pytest.raises(ConfigError, match=r"no\.such"):
        Producer(headrace.bootstrap_servers, properties={"no.such": "1"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://h:5", [("h", 5)]),
    ],
)
def test_addresses_are_read_as_kafka_clients_read_them(text, found):
    assert addresses(text) == found


@pytest.mark.parametrize("text", ["", ",", ":1", "a:b", "a:0", "a:70000"])
def test_bad_addresses_are_refused(text):
    with pytest.raises(ConfigError):
        addresses(text)


def test_properties_win_over_everything(monkeypatch):
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "elsewhere:1")
    assert Connection().address == "elsewhere:1"
    mine = Connection("here:2", {"client.id": "me"}, 7.0)
    assert mine.config(acks="1")["client.id"] == "me"
    assert connection(mine, {"acks": "0"}) == Connection("here:2", {"client.id": "me", "acks": "0"}, 7.0)


@pytest.fixture
def pending(headrace, bootstrap):
    """A group with offset 3, and a transaction of the producer's that is to make it 7."""
    topic, group = headrace.topic("pending"), headrace.group()
    Groups(bootstrap).set_offsets(group, {(topic, 0): 3})
    client = {"bootstrap.servers": headrace.bootstrap_servers}
    producer = confluent_kafka.Producer({**client, "transactional.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = confluent_kafka.Consumer({**client, "group.id": group})
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    producer.send_offsets_to_transaction([confluent_kafka.TopicPartition(topic, 0, 7)], metadata, 60)
    return topic, group, producer


def test_offsets_of_a_transaction_that_ends_are_waited_for(bootstrap, pending, monkeypatch):
    """Its commit is answered before they can be read."""
    topic, group, producer = pending
    ends = [lambda: producer.commit_transaction(60)]
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: ends.pop()() if ends else None)
    monkeypatch.setattr(groups, "time", clock)
    assert Groups(bootstrap).commits(group, stable=True) == {(topic, 0): (7, "")}
    assert not ends, "it did not wait"


def test_offsets_of_a_transaction_that_stays_open_are_not_waited_for_in_vain(bootstrap, pending, monkeypatch):
    topic, group, producer = pending
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * 40.0, sleep=lambda _: None)
    monkeypatch.setattr(groups, "time", clock)
    assert Groups(bootstrap).commits(group, stable=True) == {(topic, 0): (3, "")}
    assert next(ticks) == 3  # looks at the clock
    producer.abort_transaction(60)


def test_a_topic_that_is_deleted_while_topics_are_listed_does_not_hide_the_others(headrace, bootstrap, monkeypatch):
    stays, goes = headrace.topic("stays"), headrace.topic("goes")
    _fill(bootstrap, stays, 3)
    admin = Admin(bootstrap)
    real = admin._metadata

    def slow():
        found = real()
        admin.delete_topic(goes)
        return found

    monkeypatch.setattr(admin, "_metadata", slow)
    found = {view.name: view.partitions[0] for view in admin.topics()}
    assert (found[stays].end_offset, found[goes].end_offset) == (3, -1)
