"""A compacted topic shrinks within seconds, and real clients see the newest value of each key and no other offset."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from headrace.testing.process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

EAGER = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}
SECONDS = 100.0
SHRUNK_BYTES = 60_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("compaction") / "data", "--log-level", "warning") as broker:
        yield broker
        assert "Traceback" not in broker.log_tail(1000), broker.log_tail(60)


def make_topic(broker: BrokerProcess, **configs: str) -> str:
    topic = f"compacted-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1, config={**EAGER, **configs})])[topic].result(60)
    return topic


def produce(broker: BrokerProcess, topic: str, items: list[tuple[bytes, bytes | None]], **configs: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20, **configs})
    for key, value in items:
        producer.produce(topic, value, key, on_delivery=lambda error, _: error and pytest.fail(str(error)))
        producer.poll(0)
    assert producer.flush(60) == 0


def read_all(broker: BrokerProcess, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid4().hex,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "the consumer is stuck"
            if message.error() is not None:
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def log_bytes(broker: BrokerProcess, topic: str) -> int:
    folder = Path(broker.data_dir) / "topics" / f"{topic}-0"
    sizes = 0
    for path in folder.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # it has just been replaced
            sizes += path.stat().st_size
    return sizes


def wait_for(what: Callable[[], bool]) -> float:
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < SECONDS, "it did not happen within seconds"
        time.sleep(0.1)
    return time.monotonic() - begun


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_topic_shrinks_within_seconds(broker: BrokerProcess, codec: str) -> None:
    topic = make_topic(broker)
    count, keys = 30_000, 50
    items = [(b"k%d" % (n % keys), b"%d " % n * 12) for n in range(count)]
    produce(broker, topic, items, **{"compression.type": codec})
    time.sleep(0.6)
    produce(broker, topic, [(b"last", b"x")])  # and so the segment before it is sealed
    wait_for(lambda: len(read_all(broker, topic)) == keys + 1)
    wait_for(lambda: log_bytes(broker, topic) < SHRUNK_BYTES)
    found = read_all(broker, topic)
    assert found == [(n, *items[n]) for n in range(count - keys, count)] + [(count, b"last", b"x")]


def test_deleted_keys_vanish_and_idempotent_producers_go_on(broker: BrokerProcess) -> None:
    topic = make_topic(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for number in range(200):
        producer.produce(topic, b"%d" % number, b"gone")
    producer.produce(topic, None, b"gone")
    producer.produce(topic, b"1", b"kept")
    assert producer.flush(60) == 0
    expected: list[bytes] = [b"kept"]

    def is_gone() -> bool:
        producer.produce(topic, b"x", b"tick")
        assert producer.flush(60) == 0
        return {key for _, key, _ in read_all(broker, topic)} == {*expected, b"tick"}

    wait_for(is_gone)


def test_transactions_are_compacted(broker: BrokerProcess) -> None:
    topic = make_topic(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"t-{uuid4().hex}"})
    producer.init_transactions(30)
    for number in range(60):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, b"k%d" % (number % 3))
        producer.flush(60)
        producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)
    time.sleep(0.6)
    produce(broker, topic, [(b"last", b"x")])
    wait_for(lambda: len(read_all(broker, topic)) == 4)  # of the 31 that were committed
    found = {key: value for _, key, value in read_all(broker, topic)}
    assert found == {b"k0": b"54", b"k1": b"58", b"k2": b"56", b"last": b"x"}


def test_a_topic_becomes_a_compacted_one_while_it_is_used(broker: BrokerProcess) -> None:
    topic = make_topic(broker, **{"cleanup.policy": "delete"})
    produce(broker, topic, [(b"k", b"%d" % n * 20) for n in range(5000)])
    before = log_bytes(broker, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource("topic", topic, set_config={**EAGER, "cleanup.policy": "compact,delete"})
    admin.alter_configs([resource])[resource].result(60)
    time.sleep(0.6)
    produce(broker, topic, [(b"last", b"x")])
    wait_for(lambda: log_bytes(broker, topic) < before / 10)
    expected = [(4999, b"k", b"4999" * 20), (5000, b"last", b"x")]
    wait_for(lambda: read_all(broker, topic) == expected)  # a slow producer has filled more than one segment
