"""A disk that is full for a moment, or for a while, in the middle of an idempotent producer's stream."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace import Broker
from headrace.core.errors import DiskFullError
from headrace.runtime.disk import DiskFile
from headrace.storage.log import Log
from headrace.testing.plugin import Headrace

pytestmark = pytest.mark.process
COUNT = 400
FULL_AT = {100: 1, 150: 2, 200: 8, 300: 1}  # after so many records, so many writes of the topic find no space


class Disk:
    """Full for one topic for some writes; what was refused, and the epochs of producers that were seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic = "?"
        self.without_space = 0  # writes to come
        self.refused = 0
        self.epochs: set[int] = set()
        real_file, real_log = DiskFile.append, Log.append

        def append_to_file(file, parts):
            if self.without_space and self.topic in file.path:
                self.without_space -= 1
                self.refused += 1
                time.sleep(0.1)  # it holds up the broker: the client goes on sending
                raise DiskFullError("no space left on device")
            real_file(file, parts)

        def append_to_log(log, data, headers, **options):
            if self.topic in log.path:
                self.epochs.update(header.producer_epoch for header in headers)
            return real_log(log, data, headers, **options)

        monkeypatch.setattr(DiskFile, "append", append_to_file)
        monkeypatch.setattr(Log, "append", append_to_log)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_full_disk_costs_an_idempotent_producer_no_record_no_duplicate_and_no_epoch(
    monkeypatch, tmp_path, partitions
):
    disk = Disk(monkeypatch)
    with Broker(str(tmp_path)) as broker:
        disk.topic = topic = Headrace(broker, "full").topic(partitions=partitions)
        client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        writer = Producer({**client, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 5})
        errors = []
        for number in range(COUNT):
            disk.without_space += FULL_AT.get(number, 0)
            writer.produce(
                topic,
                str(number),
                partition=number % partitions,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
            writer.poll(0.005)
        assert writer.flush(60) == 0
        reader = Consumer({**client, "group.id": "reader", "enable.partition.eof": True})
        reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        found: dict[int, list[int]] = {index: [] for index in range(partitions)}
        ended = 0
        while ended < partitions and (message := reader.poll(60)) is not None:
            if message.error() is not None:
                ended += 1
            else:
                found[message.partition()].append(int(message.value()))
        reader.close()
    assert disk.refused == sum(FULL_AT.values())
    assert errors == []
    assert found == {index: list(range(index, COUNT, partitions)) for index in range(partitions)}
    assert disk.epochs == {0}
