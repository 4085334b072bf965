"""IncrementalAlterConfigs: set, delete, append, subtract."""

from __future__ import annotations

import pytest

from headrace.apis.incremental_alter_configs import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(kind, name, *changes):
    rows = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
    return {"resource_type": kind, "resource_name": name, "configs": rows}


def codes(answer):
    return [result.error_code for result in answer.responses]


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (44, (0, 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_configs_change_one_by_one(admin, version):
    admin.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    changes = (
        ("segment.ms", SET, "5000"),
        ("retention.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
    )
    assert codes(admin.call(API, version, resources=[resource(TOPIC, "orders", *changes)])) == [ErrorCode.none]
    assert admin.image.topics["orders"].configs == {"segment.ms": "5000", "cleanup.policy": "delete,compact"}
    taken = ("cleanup.policy", SUBTRACT, "delete")
    assert codes(admin.call(API, version, resources=[resource(TOPIC, "orders", taken)])) == [ErrorCode.none]
    assert admin.image.topics["orders"].configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_resource_changes_whole_or_has_its_own_error(admin, version):
    admin.create(*(NewTopic(name) for name in "abcd"))
    good = ("retention.ms", SET, "1")
    answer = admin.call(
        API,
        version,
        resources=[
            resource(TOPIC, "a", good, ("segment.ms", SET, "soon")),
            resource(TOPIC, "b", good, ("retention.ms", APPEND, "1")),
            resource(TOPIC, "c", ("retention.ms", APPEND, "1")),
            resource(BROKER, "", ("no.such", SET, "1")),
            resource(TOPIC, "d", good),
        ],
    )
    assert codes(answer) == [
        ErrorCode.invalid_config,
        ErrorCode.invalid_request,
        ErrorCode.invalid_config,
        ErrorCode.invalid_config,
        ErrorCode.none,
    ]
    assert {name: dict(topic.configs) for name, topic in admin.image.topics.items() if topic.configs} == {
        "d": {"retention.ms": "1"}
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_only_changes_nothing(admin, version):
    admin.create(NewTopic("orders"))
    wanted = resource(TOPIC, "orders", ("retention.ms", SET, "1"))
    assert codes(admin.call(API, version, resources=[wanted], validate_only=True)) == [ErrorCode.none]
    assert admin.image.topics["orders"].configs == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dead_disk_is_an_error_of_each_resource(admin, version):
    admin.create(NewTopic("orders"))
    admin.service.log.broken = True
    wanted = resource(TOPIC, "orders", ("retention.ms", SET, "1"))
    assert codes(admin.call(API, version, resources=[wanted])) == [ErrorCode.kafka_storage_error]
