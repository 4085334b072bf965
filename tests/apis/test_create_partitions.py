"""CreatePartitions: one answer per topic."""

from __future__ import annotations

import pytest

from headrace.apis.create_partitions import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)


def wanted(name, count, assignments=None):
    rows = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
    return {"name": name, "count": count, "assignments": rows}


def codes(answer):
    return {topic.name: topic.error_code for topic in answer.results}


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (37, (0, 3))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_topic_grows_or_has_its_own_error(make_admin, version):
    admin = make_admin(brokers=2)
    names = ("grows", "assigned", "same", "fewer", "few-rows", "stranger", "twice")
    admin.create(*(NewTopic(name, 2) for name in names))
    answer = admin.call(
        API,
        version,
        topics=[
            wanted("grows", 4),
            wanted("assigned", 3, [[2]]),
            wanted("same", 2),
            wanted("fewer", 1),
            wanted("few-rows", 4, [[1]]),
            wanted("stranger", 3, [[9]]),
            wanted("twice", 3),
            wanted("twice", 4),
            wanted("absent", 3),
        ],
    )
    assert codes(answer) == {
        "grows": ErrorCode.none,
        "assigned": ErrorCode.none,
        "same": ErrorCode.invalid_partitions,
        "fewer": ErrorCode.invalid_partitions,
        "few-rows": ErrorCode.invalid_replica_assignment,
        "stranger": ErrorCode.invalid_replica_assignment,
        "twice": ErrorCode.invalid_request,
        "absent": ErrorCode.unknown_topic_or_partition,
    }
    counts = {name: len(topic.partitions) for name, topic in admin.image.topics.items()}
    assert counts == {**dict.fromkeys(names, 2), "grows": 4, "assigned": 3}
    assert admin.image.topics["assigned"].partitions[2].replicas == (2,)


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_only_grows_nothing(admin, version):
    admin.create(NewTopic("orders"))
    assert codes(admin.call(API, version, topics=[wanted("orders", 2)], validate_only=True)) == {
        "orders": ErrorCode.none
    }
    assert len(admin.image.topics["orders"].partitions) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dead_disk_is_an_error_of_each_topic(admin, version):
    admin.create(NewTopic("orders"))
    admin.service.log.broken = True
    assert codes(admin.call(API, version, topics=[wanted("orders", 2)])) == {"orders": ErrorCode.kafka_storage_error}
