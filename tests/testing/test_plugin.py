"""The fixture that installing Headrace brings: used here as a stranger's test would use it."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from headrace.testing.plugin import Headrace

SEEN: list[str] = []


def test_a_topic_of_the_fixture_takes_and_gives_messages(headrace: Headrace):
    topic = headrace.topic("orders", partitions=2)
    SEEN.append(topic)
    producer = Producer({"bootstrap.servers": headrace.bootstrap_servers})
    producer.produce(topic, b"one", b"key")
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": headrace.bootstrap_servers,
            "group.id": headrace.group(),
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(60)
        assert message is not None
        assert (message.key(), message.value()) == (b"key", b"one")
    finally:
        consumer.close()


def test_another_test_gets_other_names(headrace: Headrace):
    names = {headrace.topic("orders"), headrace.group("orders"), headrace.name("orders")}
    assert len(names) == 3
    assert names.isdisjoint(SEEN)
