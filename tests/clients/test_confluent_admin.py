"""confluent-kafka (librdkafka): the admin client, topics, configs and offsets."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE = 60


@pytest.fixture
def admin(headrace) -> AdminClient:
    return AdminClient({"bootstrap.servers": headrace.bootstrap_servers, "log_level": 0})


def outcome(futures) -> object:
    """What the only future says: its result, or its KafkaError's name."""
    [future] = futures.values()
    try:
        return future.result(PATIENCE)
    except KafkaException as error:
        return error.args[0].name()


def configs(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    return outcome(admin.describe_configs([resource]))


def fill(headrace, topic: str, count: int, start_ms: int = 1_700_000_000_000) -> None:
    client = Producer({"bootstrap.servers": headrace.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 1})
    for number in range(count):
        client.produce(topic, f"{number}", partition=0, timestamp=start_ms + number)
    assert client.flush(PATIENCE) == 0


def test_topics_are_created_listed_described_and_deleted(headrace, admin):
    name = headrace.name("life")
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "1000"})])[name].result(PATIENCE)
    listed = admin.list_topics(timeout=PATIENCE)
    assert sorted(listed.topics[name].partitions) == [0, 1, 2]
    assert listed.cluster_id
    described = outcome(admin.describe_topics(TopicCollection([name])))
    assert described.name == name
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert [part.leader.id for part in described.partitions] == [
        listed.orig_broker_id if listed.orig_broker_id > 0 else 1
    ] * 3
    assert not described.is_internal
    assert outcome(admin.delete_topics([name])) is None
    assert name not in admin.list_topics(timeout=PATIENCE).topics
    assert outcome(admin.delete_topics([name])) == "UNKNOWN_TOPIC_OR_PART"


def test_a_deleted_topic_can_be_created_anew_and_is_empty(headrace, admin):
    topic = headrace.topic()
    fill(headrace, topic, 5)
    before = outcome(admin.describe_topics(TopicCollection([topic]))).topic_id
    assert outcome(admin.delete_topics([topic])) is None
    assert outcome(admin.create_topics([NewTopic(topic, 1)])) is None
    after = outcome(admin.describe_topics(TopicCollection([topic]))).topic_id
    assert str(before) != str(after)
    client = Consumer({"bootstrap.servers": headrace.bootstrap_servers, "group.id": headrace.group()})
    assert client.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE) == (0, 0)
    client.close()


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"num_partitions": 0}, "INVALID_PARTITIONS"),
        ({"num_partitions": 50_000}, "INVALID_PARTITIONS"),
        ({"num_partitions": 1, "replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ({"num_partitions": 1, "config": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
        ({"num_partitions": 1, "config": {"no.such.config": "1"}}, "INVALID_CONFIG"),
        ({"num_partitions": 1, "config": {"cleanup.policy": "burn"}}, "INVALID_CONFIG"),
        ({"num_partitions": 1, "replica_assignment": [[9]]}, "INVALID_REPLICA_ASSIGNMENT"),
    ],
    ids=str,
)
def test_a_topic_that_cannot_be_is_refused_by_its_own_error(headrace, admin, wanted, error):
    name = headrace.name("bad")
    assert outcome(admin.create_topics([NewTopic(name, **wanted)])) == error
    assert name not in admin.list_topics(timeout=PATIENCE).topics


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a b", "ü", "x" * 250])
def test_topic_names_that_could_be_paths_are_refused(admin, name):
    assert outcome(admin.create_topics([NewTopic(name, 1)])) == "TOPIC_EXCEPTION"


def test_a_topic_cannot_be_created_twice_nor_by_a_rehearsal(headrace, admin):
    topic = headrace.topic()
    assert outcome(admin.create_topics([NewTopic(topic, 1)])) == "TOPIC_ALREADY_EXISTS"
    rehearsed = headrace.name("rehearsed")
    assert outcome(admin.create_topics([NewTopic(rehearsed, 1)], validate_only=True)) is None
    assert rehearsed not in admin.list_topics(timeout=PATIENCE).topics


def test_partitions_can_be_added_and_never_taken_away(headrace, admin):
    topic = headrace.topic(partitions=2)
    assert outcome(admin.create_partitions([NewPartitions(topic, 5)])) is None
    assert len(admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions) == 5
    assert outcome(admin.create_partitions([NewPartitions(topic, 4)])) == "INVALID_PARTITIONS"
    assert outcome(admin.create_partitions([NewPartitions(headrace.name("none"), 4)])) == "UNKNOWN_TOPIC_OR_PART"
    fill(headrace, topic, 1)


def test_topic_configs_are_described_with_their_sources(headrace, admin):
    topic = headrace.topic(configs={"retention.ms": "123456"})
    found = configs(admin, ConfigResource(ResourceType.TOPIC, topic))
    assert found["retention.ms"].value == "123456"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not found["retention.ms"].is_default
    assert found["cleanup.policy"].value == "delete"
    assert found["cleanup.policy"].source == ConfigSource.DEFAULT_CONFIG.value
    assert found["cleanup.policy"].is_default


def test_configs_are_altered_one_by_one(headrace, admin):
    topic = headrace.topic(configs={"retention.ms": "1000", "segment.bytes": "2000000"})

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> object:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return outcome(admin.incremental_alter_configs([resource]))

    assert alter("retention.ms", "777000", AlterConfigOpType.SET) is None
    assert alter("segment.bytes", None, AlterConfigOpType.DELETE) is None
    assert alter("cleanup.policy", "compact", AlterConfigOpType.APPEND) is None
    found = configs(admin, ConfigResource(ResourceType.TOPIC, topic))
    assert found["retention.ms"].value == "777000"
    assert found["segment.bytes"].is_default
    assert set(found["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    assert alter("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT) is None
    assert configs(admin, ConfigResource(ResourceType.TOPIC, topic))["cleanup.policy"].value == "delete"
    assert alter("retention.ms", "never", AlterConfigOpType.SET) == "INVALID_CONFIG"
    assert alter("no.such", "1", AlterConfigOpType.SET) == "INVALID_CONFIG"


def test_the_older_alter_replaces_everything(headrace, admin):
    topic = headrace.topic(configs={"retention.ms": "1000", "segment.bytes": "2000000"})
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "5000"})
    assert outcome(admin.alter_configs([resource])) is None
    found = configs(admin, ConfigResource(ResourceType.TOPIC, topic))
    assert found["retention.ms"].value == "5000"
    assert found["segment.bytes"].is_default


def test_broker_configs_are_described(admin):
    node_id = next(iter(admin.list_topics(timeout=PATIENCE).brokers))
    found = configs(admin, ConfigResource(ResourceType.BROKER, str(node_id)))
    assert found["message.max.bytes"].value
    assert found["node.id"].value == str(node_id)
    assert found["node.id"].is_read_only


def test_configs_of_what_is_not_there_are_errors(headrace, admin):
    missing = ConfigResource(ResourceType.TOPIC, headrace.name("missing"))
    assert outcome(admin.describe_configs([missing])) == "UNKNOWN_TOPIC_OR_PART"


def test_records_are_deleted_up_to_an_offset(headrace, admin):
    topic = headrace.topic()
    fill(headrace, topic, 20)
    [future] = admin.delete_records([TopicPartition(topic, 0, 12)]).values()
    assert future.result(PATIENCE).low_watermark == 12
    client = Consumer(
        {"bootstrap.servers": headrace.bootstrap_servers, "group.id": headrace.group(), "auto.offset.reset": "earliest"}
    )
    assert client.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE) == (12, 20)
    client.assign([TopicPartition(topic, 0, 3)])
    message = client.poll(PATIENCE)
    assert message.error() is None
    assert message.offset() == 12
    client.close()
    assert outcome(admin.delete_records([TopicPartition(topic, 0, 21)])) == "OFFSET_OUT_OF_RANGE"
    [future] = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
    assert future.result(PATIENCE).low_watermark == 20


def test_offsets_are_listed_by_place_and_by_time(headrace, admin):
    topic = headrace.topic()
    fill(headrace, topic, 20, start_ms=1_700_000_000_000)

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        found = outcome(
            admin.list_offsets({TopicPartition(topic, 0): spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        )
        return found.offset, found.timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.latest())[0] == 20
    assert listed(OffsetSpec.for_timestamp(1_700_000_000_007)) == (7, 1_700_000_000_007)
    assert listed(OffsetSpec.for_timestamp(1_700_000_001_000))[0] == -1
    assert listed(OffsetSpec.max_timestamp()) == (19, 1_700_000_000_019)


def test_the_cluster_is_described(headrace, admin):
    found = admin.describe_cluster().result(PATIENCE)
    assert found.cluster_id
    assert len(found.nodes) == 1
    assert found.controller.id == found.nodes[0].id
    assert f"{found.nodes[0].host}:{found.nodes[0].port}" == headrace.bootstrap_servers


def test_internal_topics_are_marked_and_guarded(headrace, admin):
    client = Consumer({"bootstrap.servers": headrace.bootstrap_servers, "group.id": headrace.group()})
    topic = headrace.topic()
    client.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    client.close()
    assert outcome(admin.describe_topics(TopicCollection(["__consumer_offsets"]))).is_internal
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": headrace.bootstrap_servers})
    producer.produce("__consumer_offsets", b"x", key=b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE) == 0
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.TOPIC_EXCEPTION
