"""AlterConfigs: a resource gets exactly what is named."""

from __future__ import annotations

import pytest

from headrace.apis.alter_configs import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)
TOPIC, BROKER = 2, 4


def resource(kind, name, **configs):
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"resource_type": kind, "resource_name": name, "configs": rows}


def codes(answer):
    return [(result.resource_type, result.resource_name, result.error_code) for result in answer.responses]


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (33, (0, 2))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_named_is_dropped_and_what_is_wrong_is_refused(admin, version):
    admin.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    answer = admin.call(
        API,
        version,
        resources=[
            resource(TOPIC, "orders", segment_ms="5000"),
            resource(TOPIC, "absent", segment_ms="5000"),
            resource(BROKER, "1", log_retention_ms="7"),
            resource(BROKER, "", node_id="7"),
        ],
    )
    assert codes(answer) == [
        (TOPIC, "orders", ErrorCode.none),
        (TOPIC, "absent", ErrorCode.unknown_topic_or_partition),
        (BROKER, "1", ErrorCode.none),
        (BROKER, "", ErrorCode.invalid_request),
    ]
    assert "dynamically" in answer.responses[3].error_message
    assert admin.image.topics["orders"].configs == {"segment.ms": "5000"}
    assert admin.image.broker_configs == {"1": {"log.retention.ms": "7"}}


@pytest.mark.parametrize("version", VERSIONS)
def test_validate_only_changes_nothing(admin, version):
    admin.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    answer = admin.call(API, version, resources=[resource(TOPIC, "orders")], validate_only=True)
    assert codes(answer) == [(TOPIC, "orders", ErrorCode.none)]
    assert admin.image.topics["orders"].configs == {"retention.ms": "1000"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dead_disk_is_an_error_of_each_resource(admin, version):
    admin.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    admin.service.log.broken = True
    answer = admin.call(API, version, resources=[resource(TOPIC, "orders")])
    assert codes(answer) == [(TOPIC, "orders", ErrorCode.kafka_storage_error)]
