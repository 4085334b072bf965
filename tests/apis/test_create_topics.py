"""CreateTopics: every version, every refusal, and never a null where Java wants an array."""

from __future__ import annotations

import pytest

from headrace.apis.create_topics import API
from headrace.broker.configs import Source
from headrace.core.errors import ErrorCode
from headrace.storage.topic_config import TOPIC_CONFIGS

VERSIONS = range(API.versions[0], API.versions[1] + 1)


def wanted(name, partitions=1, factor=1, assignments=(), **configs):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in assignments],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (19, (2, 7))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_created_and_described(admin, version):
    answer = admin.call(API, version, topics=[wanted("orders", 3, 1, retention_ms="1000")])
    [topic] = answer.topics
    assert (topic.name, topic.error_code, topic.error_message) == ("orders", ErrorCode.none, None)
    made = admin.image.topics["orders"]
    assert len(made.partitions) == 3
    if version >= 5:
        assert (topic.num_partitions, topic.replication_factor) == (3, 1)
        assert [config.name for config in topic.configs] == sorted(TOPIC_CONFIGS)
        own = next(config for config in topic.configs if config.name == "retention.ms")
        assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("1000", Source.TOPIC, False, False)
        assert topic.topic_config_error_code == 0
    if version >= 7:
        assert topic.topic_id == made.topic_id


@pytest.mark.parametrize("version", VERSIONS)
def test_each_topic_has_its_own_error_and_configs_are_never_null(make_admin, version):
    admin = make_admin(brokers=2)
    admin.call(API, version, topics=[wanted("old")])
    answer = admin.call(
        API,
        version,
        topics=[
            wanted("good"),
            wanted("old"),
            wanted("a/b"),
            wanted("none", partitions=0),
            wanted("absurd", partitions=2**31 - 1),
            wanted("many", factor=3),
            wanted("bad.value", retention_ms="soon"),
            wanted("bad.key", no_such="1"),
            wanted("null.value", retention_ms=None),
            wanted("both", assignments=[(0, [1])]),
            wanted("gap", -1, -1, assignments=[(1, [1])]),
            wanted("stranger", -1, -1, assignments=[(0, [1, 9])]),
            wanted("twice"),
            wanted("twice"),
            wanted("__cluster_metadata"),
        ],
    )
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "good": ErrorCode.none,
        "old": ErrorCode.topic_already_exists,
        "a/b": ErrorCode.invalid_topic_exception,
        "none": ErrorCode.invalid_partitions,
        "absurd": ErrorCode.invalid_partitions,
        "many": ErrorCode.invalid_replication_factor,
        "bad.value": ErrorCode.invalid_config,
        "bad.key": ErrorCode.invalid_config,
        "null.value": ErrorCode.invalid_config,
        "both": ErrorCode.invalid_request,
        "gap": ErrorCode.invalid_replica_assignment,
        "stranger": ErrorCode.invalid_replica_assignment,
        "twice": ErrorCode.invalid_request,
        "__cluster_metadata": ErrorCode.invalid_request,
    }
    assert all(topic.error_message for topic in answer.topics if topic.error_code)
    assert sorted(admin.image.topics) == ["good", "old"]
    if version >= 5:
        assert all(topic.configs is not None for topic in answer.topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_only_creates_nothing(admin, version):
    answer = admin.call(API, version, topics=[wanted("orders")], validate_only=True)
    assert answer.topics[0].error_code is ErrorCode.none
    assert admin.image.topics == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_fill_in_what_is_left_to_the_broker(make_admin, version):
    admin = make_admin(brokers=2, num_partitions=4, default_replication_factor=2)
    admin.call(API, version, topics=[wanted("orders", -1, -1)])
    assert [len(record.replicas) for record in admin.image.topics["orders"].partitions] == [2, 2, 2, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dead_disk_is_an_error_of_each_topic(admin, version):
    admin.service.log.broken = True
    answer = admin.call(API, version, topics=[wanted("a"), wanted("b")])
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.kafka_storage_error] * 2
