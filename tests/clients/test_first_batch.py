"""The first batch of an idempotent producer in a partition, refused while others are under way behind it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace import Broker
from headrace.apis import produce
from headrace.testing.plugin import Headrace

pytestmark = pytest.mark.process
COUNT = 40


def test_a_first_batch_that_is_refused_is_written_before_those_behind_it(monkeypatch):
    """librdkafka takes an acknowledged batch for the acknowledgement of all before it."""
    real, asked = produce.few_in_sync, []

    def few_at_first(partition):
        if (partition.topic, partition.index) != (topic, 0):
            return real(partition)
        asked.append(partition)
        if len(asked) == 1:
            time.sleep(1.0)  # it holds up the broker: the client goes on sending
        return len(asked) == 1 or real(partition)

    with Broker() as broker:
        topic = Headrace(broker, "first").topic(partitions=2)
        client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        monkeypatch.setattr(produce, "few_in_sync", few_at_first)
        delivered = {}
        writer = Producer({**client, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 5})
        writer.produce(topic, b"warm", partition=1)  # before that, librdkafka sends one request at a time
        assert writer.flush(60) == 0
        for number in range(COUNT):
            told = lambda error, message, number=number: delivered.update({number: (error, message.offset())})  # noqa: E731
            writer.produce(topic, str(number), partition=0, on_delivery=told)
            writer.poll(0.003)
        assert writer.flush(60) == 0
        reader = Consumer({**client, "group.id": "reader", "enable.partition.eof": True})
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found = []
        while (message := reader.poll(60)) is not None and message.error() is None:
            found.append(int(message.value()))
        reader.close()
    assert found == list(range(COUNT))
    assert delivered == {number: (None, number) for number in range(COUNT)}
