"""confluent-kafka (librdkafka): produce and consume."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def producer(headrace, **config) -> Producer:
    settings = {
        "bootstrap.servers": headrace.bootstrap_servers,
        "log_level": 0,
        "message.timeout.ms": 60_000,
        "linger.ms": 2,
    }
    return Producer(settings | {name.replace("_", "."): value for name, value in config.items()})


def consumer(headrace, **config) -> Consumer:
    settings = {
        "bootstrap.servers": headrace.bootstrap_servers,
        "log_level": 0,
        "group.id": headrace.group(),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 10,
    }
    return Consumer(settings | {name.replace("_", "."): value for name, value in config.items()})


def send(client: Producer, topic: str, *messages: dict) -> list[KafkaError | Message]:
    """Produce, wait; the outcome of each message in the order of the calls."""
    outcomes: dict[int, KafkaError | Message] = {}
    for number, message in enumerate(messages):
        client.produce(
            topic, on_delivery=lambda error, sent, at=number: outcomes.update({at: error or sent}), **message
        )
        client.poll(0)
    assert client.flush(90) == 0, "messages are still on their way"
    return [outcomes[number] for number in range(len(messages))]


def take(client: Consumer, count: int, seconds: float = 60.0) -> list[Message]:
    """The next `count` messages of what the consumer is assigned."""
    found: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        message = client.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    return found


def read(headrace, topic: str, count: int, *, partition: int = 0, offset: int = OFFSET_BEGINNING, **config):
    client = consumer(headrace, **config)
    try:
        client.assign([TopicPartition(topic, partition, offset)])
        return take(client, count)
    finally:
        client.close()


@pytest.mark.parametrize("config", [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}], ids=str)
def test_what_is_produced_is_consumed_in_order(headrace, config):
    topic = headrace.topic()
    outcomes = send(producer(headrace, **config), topic, *({"value": f"v{n}", "key": f"k{n}"} for n in range(300)))
    found = read(headrace, topic, 300)
    assert [message.value() for message in found] == [f"v{n}".encode() for n in range(300)]
    assert [message.offset() for message in found] == list(range(300))
    if config != {"acks": 0}:
        assert [outcome.offset() for outcome in outcomes] == list(range(300))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back(headrace, codec):
    topic = headrace.topic()
    values = [f"{codec} {n} ".encode() * 20 for n in range(500)]
    send(producer(headrace, compression_type=codec), topic, *({"value": value} for value in values))
    assert [message.value() for message in read(headrace, topic, 500)] == values


def test_keys_values_and_headers_come_back_as_they_were(headrace):
    topic = headrace.topic()
    sent = [
        {"key": None, "value": b"no key"},
        {"key": b"no value", "value": None},
        {"key": b"", "value": b""},
        {
            "key": b"k",
            "value": b"v",
            "headers": [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("ü", b"\0\xff")],
        },
        {"key": None, "value": None},
    ]
    send(producer(headrace), topic, *sent)
    found = read(headrace, topic, len(sent))
    assert [(message.key(), message.value()) for message in found] == [(each["key"], each["value"]) for each in sent]
    assert found[3].headers() == sent[3]["headers"]
    assert found[0].headers() is None


def test_a_large_message_passes(headrace):
    topic = headrace.topic()
    value = bytes(range(256)) * (900 * 4)
    send(producer(headrace), topic, {"value": value}, {"value": b"after"})
    found = read(headrace, topic, 2, max_partition_fetch_bytes=1000, fetch_max_bytes=1_000_000)
    assert [message.value() for message in found] == [value, b"after"]


def test_a_message_over_the_topics_limit_is_refused_and_others_pass(headrace):
    topic = headrace.topic(configs={"max.message.bytes": "20000"})
    outcomes = send(producer(headrace, linger_ms=0), topic, {"value": b"x" * 19_000})
    outcomes += send(producer(headrace, message_max_bytes=4_000_000), topic, {"value": b"x" * 21_000})
    assert outcomes[0].offset() == 0
    assert outcomes[1].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_message_over_the_brokers_limit_is_refused(headrace):
    topic = headrace.topic()
    client = producer(headrace, message_max_bytes=4_000_000)
    [outcome] = send(client, topic, {"value": b"x" * 1_200_000})
    assert outcome.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_create_times_are_kept_and_found(headrace):
    topic = headrace.topic()
    times = [1_700_000_000_000 + n * 1000 for n in range(20)]
    client = producer(headrace, linger_ms=0)
    for at in times:
        send(client, topic, {"value": b"v", "timestamp": at})
    found = read(headrace, topic, 20)
    assert [message.timestamp() for message in found] == [(TIMESTAMP_CREATE_TIME, at) for at in times]
    reader = consumer(headrace)

    def offset_at(at: int) -> int:
        return reader.offsets_for_times([TopicPartition(topic, 0, at)], timeout=60)[0].offset

    assert offset_at(times[7]) == 7
    assert offset_at(times[7] + 1) == 8
    assert offset_at(0) == 0
    assert offset_at(times[-1] + 1) == -1  # librdkafka's "end"
    reader.close()


def test_a_time_inside_a_batch_finds_its_very_record(headrace):
    topic = headrace.topic()
    times = [1_700_000_000_000 + n * 1000 for n in range(50)]
    client = producer(headrace, linger_ms=200, compression_type="lz4")
    send(client, topic, *({"value": b"v", "timestamp": at} for at in times))
    reader = consumer(headrace)
    found = reader.offsets_for_times([TopicPartition(topic, 0, times[33] - 5)], timeout=60)
    assert found[0].offset == 33
    reader.close()


def test_a_log_append_time_topic_stamps_the_brokers_time(headrace):
    topic = headrace.topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    send(producer(headrace), topic, {"value": b"v", "timestamp": 1_000_000})
    [message] = read(headrace, topic, 1)
    kind, at = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= at <= int(time.time() * 1000)


def test_a_topic_comes_into_being_when_it_is_produced_to(headrace):
    topic = headrace.name("auto")
    [outcome] = send(producer(headrace), topic, {"value": b"first"})
    assert (outcome.partition(), outcome.offset()) == (0, 0)
    assert [message.value() for message in read(headrace, topic, 1)] == [b"first"]


def test_a_consumer_may_ask_not_to_create_topics(headrace):
    client = consumer(headrace, allow_auto_create_topics=False)
    client.subscribe([headrace.name("missing")])
    error = None
    deadline = time.monotonic() + 60
    while error is None and time.monotonic() < deadline:
        message = client.poll(0.1)
        error = message.error() if message is not None else None
    client.close()
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize("name", ["has space", "sla/sh", "..", "ü", "x" * 250])
def test_an_invalid_topic_name_is_refused_by_its_own_error(headrace, name):
    [outcome] = send(producer(headrace), name, {"value": b"v"})
    assert isinstance(outcome, KafkaError)
    assert outcome.code() == KafkaError.TOPIC_EXCEPTION


def test_an_unknown_partition_is_refused(headrace):
    topic = headrace.topic(partitions=2)
    [outcome] = send(producer(headrace, message_timeout_ms=30_000), topic, {"value": b"v", "partition": 7})
    assert isinstance(outcome, KafkaError)
    assert outcome.code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_a_compacted_topic_wants_keys(headrace):
    topic = headrace.topic(configs={"cleanup.policy": "compact"})
    client = producer(headrace, linger_ms=0)
    [refused] = send(client, topic, {"value": b"v"})
    [taken] = send(client, topic, {"value": b"v", "key": b"k"})
    assert refused.code() == KafkaError.INVALID_RECORD
    assert taken.offset() == 0


@pytest.mark.parametrize("codec", CODECS)
def test_reading_can_begin_inside_a_batch(headrace, codec):
    topic = headrace.topic()
    send(producer(headrace, linger_ms=200, compression_type=codec), topic, *({"value": f"{n}"} for n in range(100)))
    found = read(headrace, topic, 63, offset=37)
    assert [(message.offset(), message.value()) for message in found] == [(n, f"{n}".encode()) for n in range(37, 100)]


def test_a_consumer_can_seek_pause_and_resume(headrace):
    topic = headrace.topic(partitions=2)
    client = producer(headrace)
    send(client, topic, *({"value": f"{n}", "partition": n % 2} for n in range(100)))
    reader = consumer(headrace)
    places = [TopicPartition(topic, index, OFFSET_BEGINNING) for index in (0, 1)]
    reader.assign(places)
    assert len(take(reader, 100)) == 100
    reader.pause(places[:1])
    send(client, topic, *({"value": b"more", "partition": index} for index in (0, 1)))
    assert [message.partition() for message in take(reader, 1)] == [1]
    assert take(reader, 1, 0.7) == []
    reader.resume(places[:1])
    assert [message.partition() for message in take(reader, 1)] == [0]
    reader.seek(TopicPartition(topic, 1, 45))
    assert [message.offset() for message in take(reader, 6)] == [45, 46, 47, 48, 49, 50]
    reader.close()


def test_an_offset_out_of_range_is_reported_or_reset(headrace):
    topic = headrace.topic()
    send(producer(headrace), topic, *({"value": f"{n}"} for n in range(5)))
    assert [message.offset() for message in read(headrace, topic, 5, offset=1000)] == [0, 1, 2, 3, 4]
    with pytest.raises((AssertionError, KafkaException), match="AUTO_OFFSET_RESET|out of range"):
        read(headrace, topic, 1, offset=1000, auto_offset_reset="error")


def test_small_fetches_reach_every_partition(headrace):
    topic = headrace.topic(partitions=6)
    client = producer(headrace, linger_ms=50)
    send(client, topic, *({"value": b"x" * 5000, "partition": n % 6} for n in range(120)))
    reader = consumer(headrace, fetch_max_bytes=20_000, max_partition_fetch_bytes=20_000, message_max_bytes=20_000)
    reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(6)])
    found = take(reader, 120)
    reader.close()
    assert {(message.partition(), message.offset()) for message in found} == {
        (p, o) for p in range(6) for o in range(20)
    }


def test_watermarks_are_the_logs_ends(headrace):
    topic = headrace.topic()
    send(producer(headrace), topic, *({"value": f"{n}"} for n in range(9)))
    reader = consumer(headrace)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=60) == (0, 9)
    reader.close()
