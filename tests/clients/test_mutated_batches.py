"""Whatever is acknowledged with `headrace.record.validation=full`, librdkafka reads to its end."""

from __future__ import annotations

import random
import struct

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from crc32c import crc32c

from headrace import Broker
from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer
from headrace.wire import layout
from headrace.wire.batch import build
from headrace.wire.codecs import compress

pytestmark = pytest.mark.process
TOPIC = "mutated"
BATCHES = 600
NOW_MS = 1_700_000_000_000


def mutated(dice: random.Random) -> bytes:
    """A batch with some of its records' bytes and perhaps its count changed, and a right checksum."""
    codec, count = dice.randrange(5), dice.randrange(1, 6)
    items = [(dice.choice([None, b"key"]), dice.choice([None, b"", b"value" * 9])) for _ in range(count)]
    headers = dice.choice([(), (("name", b"value"), ("other", None))])
    data = bytearray(build(items, timestamp_ms=NOW_MS, headers=headers))
    records = data[layout.HEADER_BYTES :]
    for _ in range(dice.randrange(3)):
        records[dice.randrange(len(records))] = dice.randrange(256)
    count = max(1, count + dice.choice([0] * 8 + [-1, 1]))
    payload = bytearray(compress(codec, bytes(records)))
    if codec and dice.random() < 0.1:
        payload[dice.randrange(len(payload))] ^= 1 << dice.randrange(8)
    data[layout.HEADER_BYTES :] = payload
    struct.pack_into(">i", data, 8, len(data) - layout.LENGTH_OVERHEAD)
    struct.pack_into(">hi", data, layout.ATTRIBUTES_AT, codec, count - 1)
    struct.pack_into(">i", data, layout.HEADER_BYTES - 4, count)
    struct.pack_into(">I", data, layout.CRC_AT, crc32c(bytes(data[layout.ATTRIBUTES_AT :])))
    return bytes(data)


def test_librdkafka_reads_everything_that_was_acknowledged():
    dice = random.Random(7)
    with Broker(storage_retention_ms=-1, storage_record_validation="full") as broker:
        with Peer(broker.bootstrap_servers) as peer:
            wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": []}
            peer.call(19, 7, {"topics": [wanted], "timeout": 5000})
            codes: list[ErrorCode] = []
            end = 0
            for _ in range(BATCHES):
                data = mutated(dice)
                rows = [{"index": 0, "records": data}]
                request = {"acks": -1, "timeout": 5000, "topic_data": [{"name": TOPIC, "partition_data": rows}]}
                code = peer.call(0, 9, request).responses[0].partition_responses[0].error_code
                codes.append(code)
                if code == ErrorCode.none:
                    end += struct.unpack_from(">i", data, layout.HEADER_BYTES - 4)[0]
        reader = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "reader",
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        reader.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        offsets = []
        while (message := reader.poll(60)) is not None and message.error() is None:
            message.headers()
            offsets.append(message.offset())
        reader.close()
    assert {ErrorCode.none, ErrorCode.invalid_record, ErrorCode.corrupt_message} <= set(codes)
    assert codes.count(ErrorCode.none) > BATCHES // 10
    assert offsets == list(range(end))
