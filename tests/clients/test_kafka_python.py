"""kafka-python: produce, consume, groups, admin."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

pytest.importorskip("kafka", reason="kafka-python is not installed")

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.structs import OffsetAndMetadata

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

CODECS = {None: lambda: True, "gzip": has_gzip, "snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}
PATIENCE = 60


def send(headrace, topic: str, *messages: dict, **config):
    """Produce and wait; what became of each message."""
    client = KafkaProducer(bootstrap_servers=headrace.bootstrap_servers, **config)
    try:
        futures = [client.send(topic, **message) for message in messages]
        client.flush(PATIENCE)
        return [future.get(PATIENCE) for future in futures]
    finally:
        client.close(timeout=2)


def reader(headrace, *topics: str, **config) -> KafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 50}
    return KafkaConsumer(*topics, bootstrap_servers=headrace.bootstrap_servers, **(settings | config))


def take(client: KafkaConsumer, count: int, seconds: float = PATIENCE) -> list:
    found: list = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for records in client.poll(timeout_ms=100, max_records=count - len(found)).values():
            found += records
    return found


def read(headrace, topic: str, count: int, *, offset: int = 0, **config) -> list:
    client = reader(headrace, **config)
    try:
        place = TopicPartition(topic, 0)
        client.assign([place])
        client.seek(place, offset)
        return take(client, count)
    finally:
        client.close()


@pytest.fixture
def admin(headrace):
    client = KafkaAdminClient(bootstrap_servers=headrace.bootstrap_servers)
    yield client
    client.close()


@pytest.mark.parametrize(
    "config",
    [
        {"acks": 0, "enable_idempotence": False},
        {"acks": 1, "enable_idempotence": False},
        {"acks": "all", "enable_idempotence": False},
        {"enable_idempotence": True},
    ],
    ids=str,
)
def test_what_is_produced_is_consumed_in_order(headrace, config):
    topic = headrace.topic()
    sent = send(headrace, topic, *({"value": b"%d" % n, "key": b"k"} for n in range(200)), **config)
    assert [record.value for record in read(headrace, topic, 200)] == [b"%d" % n for n in range(200)]
    if config.get("acks") != 0:
        assert [each.offset for each in sent] == list(range(200))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back(headrace, codec):
    if not CODECS[codec]():
        pytest.skip(f"kafka-python has no library for {codec} here")
    topic = headrace.topic()
    values = [f"{codec} {n}".encode() * 20 for n in range(200)]
    send(headrace, topic, *({"value": value} for value in values), compression_type=codec, linger_ms=20)
    assert [record.value for record in read(headrace, topic, 200)] == values
    assert [record.offset for record in read(headrace, topic, 80, offset=120)] == list(range(120, 200))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_compressed_can_be_read(headrace, codec):
    if not CODECS[None if codec == "none" else codec]():
        pytest.skip(f"kafka-python has no library for {codec} here")
    from confluent_kafka import Producer

    topic = headrace.topic()
    client = Producer({"bootstrap.servers": headrace.bootstrap_servers, "compression.type": codec, "linger.ms": 50})
    for number in range(100):
        client.produce(topic, b"%d" % number * 10)
    assert client.flush(PATIENCE) == 0
    assert [record.value for record in read(headrace, topic, 100)] == [b"%d" % number * 10 for number in range(100)]


def test_keys_values_and_headers_come_back_as_they_were(headrace):
    topic = headrace.topic()
    sent = [
        {"key": None, "value": b"no key"},
        {"key": b"no value", "value": None},
        {"key": b"", "value": b""},
        {"key": b"k", "value": b"v", "headers": [("a", b"1"), ("a", b"2"), ("empty", b"")]},
    ]
    send(headrace, topic, *sent)
    found = read(headrace, topic, 4)
    assert [(record.key, record.value) for record in found] == [(each["key"], each["value"]) for each in sent]
    assert list(found[3].headers) == sent[3]["headers"]


def test_a_large_message_passes_and_a_larger_one_is_refused(headrace):
    topic = headrace.topic(configs={"max.message.bytes": "950000"})
    value = bytes(900_000)
    send(headrace, topic, {"value": value}, max_request_size=3_000_000)
    assert read(headrace, topic, 1)[0].value == value
    with pytest.raises(errors.MessageSizeTooLargeError):
        send(
            headrace, topic, {"value": bytes(960_000)}, max_request_size=3_000_000, retries=0, enable_idempotence=False
        )


def test_times_are_kept_and_found(headrace):
    topic = headrace.topic()
    start = 1_700_000_000_000
    send(headrace, topic, *({"value": b"v", "timestamp_ms": start + n * 1000} for n in range(20)))
    assert [record.timestamp for record in read(headrace, topic, 20)] == [start + n * 1000 for n in range(20)]
    client = reader(headrace)
    place = TopicPartition(topic, 0)
    assert client.offsets_for_times({place: start + 6500})[place].offset == 7
    assert client.beginning_offsets([place]) == {place: 0}
    assert client.end_offsets([place]) == {place: 20}
    client.close()


def test_a_log_append_time_topic_stamps_the_brokers_time(headrace):
    topic = headrace.topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    [sent] = send(headrace, topic, {"value": b"v", "timestamp_ms": 1000})
    [record] = read(headrace, topic, 1)
    assert record.timestamp_type == 1
    assert before <= record.timestamp <= int(time.time() * 1000)
    assert sent.timestamp == record.timestamp


def test_a_topic_comes_into_being_when_it_is_produced_to(headrace):
    topic = headrace.name("auto")
    send(headrace, topic, {"value": b"first"})
    assert [record.value for record in read(headrace, topic, 1)] == [b"first"]


def test_an_invalid_topic_name_is_refused(headrace):
    with pytest.raises((errors.InvalidTopicError, errors.KafkaTimeoutError, ValueError)):
        send(headrace, "a..b" + "x" * 250, {"value": b"v"}, max_block_ms=5000)


def test_a_consumer_can_seek_pause_and_resume(headrace):
    topic = headrace.topic(partitions=2)
    send(headrace, topic, *({"value": b"%d" % n, "partition": n % 2} for n in range(20)))
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    client = reader(headrace)
    client.assign(places)
    client.pause(places[0])
    assert {record.partition for record in take(client, 10)} == {1}
    assert take(client, 1, 0.5) == []
    client.resume(places[0])
    assert {record.partition for record in take(client, 10)} == {0}
    client.seek(places[1], 5)
    assert [record.offset for record in take(client, 5)] == [5, 6, 7, 8, 9]
    client.close()


class Member(threading.Thread):
    """Takes, remembers and commits until it is told to stop."""

    def __init__(self, headrace, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[int, int]] = []
        self.owned = 0
        self.ending = threading.Event()
        self.failure: Exception | None = None
        self.client = reader(
            headrace, topic, group_id=group, heartbeat_interval_ms=200, session_timeout_ms=30_000, max_poll_records=5
        )

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                found = self.client.poll(timeout_ms=50)
                self.owned = len(self.client.assignment())
                for records in found.values():
                    self.seen += [(record.partition, record.offset) for record in records]
                    self.client.commit()
                    time.sleep(0.005)
        except Exception as error:
            self.failure = error
        finally:
            self.client.close()


def wait(until, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def test_members_come_and_go_and_every_message_is_seen_once(headrace):
    topic, group = headrace.topic(partitions=4), headrace.group()
    send(headrace, topic, *({"value": b"%d" % n, "partition": n % 4} for n in range(200)))
    first = Member(headrace, group, topic)
    first.start()
    wait(lambda: len(first.seen) > 20)
    second = Member(headrace, group, topic)
    second.start()
    wait(lambda: first.owned == second.owned == 2)
    send(headrace, topic, *({"value": b"%d" % n, "partition": n % 4} for n in range(400)))
    wait(lambda: len(second.seen) > 20)
    first.ending.set()
    first.join(60)
    wait(lambda: len(first.seen) + len(second.seen) >= 600)
    second.ending.set()
    second.join(60)
    assert first.failure is None
    assert second.failure is None
    counted = Counter(first.seen + second.seen)
    assert set(counted) == {(partition, offset) for partition in range(4) for offset in range(150)}
    assert max(counted.values()) == 1


def test_committed_offsets_and_their_metadata_come_back(headrace, admin):
    topic, group = headrace.topic(partitions=2), headrace.group()
    client = reader(headrace, group_id=group)
    place = TopicPartition(topic, 1)
    client.assign([place])
    client.commit({place: OffsetAndMetadata(7, "seven", -1)})
    assert client.committed(place) == 7
    assert client.committed(TopicPartition(topic, 0)) is None
    client.close()
    [found] = admin.list_group_offsets({group: None}).values()
    assert found[place].offset == 7
    assert found[place].metadata == "seven"


def test_admin_changes_topics_and_configs(headrace, admin):
    name = headrace.name("life")
    admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000"}}})
    assert name in admin.list_topics()
    admin.create_partitions({name: 5})
    [described] = admin.describe_topics([name])
    assert len(described["partitions"]) == 5
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    with pytest.raises(errors.InvalidConfigurationError):
        admin.create_topics({headrace.name("bad"): {"num_partitions": 1, "configs": {"retention.ms": "soon"}}})
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "777000"})])
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all")
    assert "777000" in str(found)
    admin.delete_topics([name])
    assert name not in admin.list_topics()


def test_admin_deletes_records_and_lists_offsets(headrace, admin):
    topic = headrace.topic()
    place = TopicPartition(topic, 0)
    send(headrace, topic, *({"value": b"v", "timestamp_ms": 1_700_000_000_000 + n} for n in range(10)))
    admin.delete_records({place: 4})
    assert admin.list_partition_offsets({place: OffsetSpec.EARLIEST})[place].offset == 4
    assert admin.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset == 10
    assert admin.list_partition_offsets({place: OffsetSpec.MAX_TIMESTAMP})[place].offset == 9


def test_admin_sees_resets_and_deletes_groups(headrace, admin):
    topic, group = headrace.topic(), headrace.group()
    send(headrace, topic, *({"value": b"v"} for n in range(10)))
    member = Member(headrace, group, topic)
    member.start()
    wait(lambda: len(member.seen) == 10)
    described = admin.describe_groups([group])[group]
    assert described["group_state"] == "Stable"
    assert len(described["members"]) == 1
    member.ending.set()
    member.join(60)
    assert admin.describe_groups([group])[group]["group_state"] == "Empty"
    assert group in {each["group_id"] for each in admin.list_groups()}
    place = TopicPartition(topic, 0)
    assert admin.reset_group_offsets(group, {place: OffsetSpec.EARLIEST})[place]["offset"] == 0
    assert admin.list_group_offsets({group: [place]})[group][place].offset == 0
    admin.delete_groups([group])
    assert group not in {each["group_id"] for each in admin.list_groups()}


def test_the_cluster_is_described(admin):
    found = admin.describe_cluster()
    assert found["cluster_id"]
    assert len(found["brokers"]) == 1
