"""DescribeConfigs: sources, synonyms, types and documentation on the wire."""

from __future__ import annotations

import pytest

from headrace.apis.describe_configs import API
from headrace.broker.image import ConfigRecord
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode
from headrace.storage.topic_config import TOPIC_CONFIGS

VERSIONS = range(API.versions[0], API.versions[1] + 1)
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
DYNAMIC_TOPIC, DYNAMIC_DEFAULT, DEFAULT = 1, 3, 5
LONG = 5


def resource(kind, name, keys=None):
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (32, (1, 4))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asked", [True, False])
def test_a_topics_config_comes_with_source_synonyms_and_documentation(admin, version, asked):
    admin.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    admin.propose(ConfigRecord("broker", "", "log.retention.ms", "2000"))
    fields = {"include_documentation": asked} if version >= 3 else {}
    answer = admin.call(
        API,
        version,
        resources=[resource(TOPIC, "orders", ["retention.ms", "unknown"])],
        include_synonyms=asked,
        **fields,
    )
    [result] = answer.results
    [config] = result.configs
    assert (result.error_code, result.resource_type, result.resource_name) == (ErrorCode.none, TOPIC, "orders")
    assert (config.name, config.value, config.config_source) == ("retention.ms", "1000", DYNAMIC_TOPIC)
    assert not config.read_only
    assert not config.is_sensitive
    expected = (
        ("retention.ms", "1000", DYNAMIC_TOPIC),
        ("log.retention.ms", "2000", DYNAMIC_DEFAULT),
        ("log.retention.ms", "604800000", DEFAULT),
    )
    assert tuple((s.name, s.value, s.source) for s in config.synonyms) == (expected if asked else ())
    if version >= 3:
        assert config.config_type == LONG
        assert bool(config.documentation) is asked


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_ask_for_all(admin, version, keys):
    admin.create(NewTopic("orders"))
    answer = admin.call(API, version, resources=[resource(TOPIC, "orders", keys), resource(BROKER, "1", keys)])
    topic, broker = ({config.name for config in result.configs} for result in answer.results)
    assert topic == set(TOPIC_CONFIGS)
    assert {"node.id", "num.partitions", "log.retention.ms", "auto.create.topics.enable"} <= broker


@pytest.mark.parametrize("version", VERSIONS)
def test_each_resource_has_its_own_error(admin, version):
    answer = admin.call(
        API,
        version,
        resources=[
            resource(TOPIC, "absent"),
            resource(TOPIC, "a/b"),
            resource(BROKER, "7"),
            resource(BROKER, ""),
            resource(BROKER_LOGGER, "1"),
            resource(99, "x"),
        ],
    )
    assert [result.error_code for result in answer.results] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_request,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_request,
    ]
    assert all(result.configs == () for result in answer.results)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resource_is_described_once_in_a_request(admin, version):
    """Its name takes some bytes of the request, its configs some kilobytes of the answer."""
    admin.create(NewTopic("orders"))
    answer = admin.call(API, version, resources=[resource(TOPIC, "orders")] * 100)
    first, *others = answer.results
    assert first.error_code == ErrorCode.none and first.configs
    assert {(result.error_code, result.configs) for result in others} == {(ErrorCode.invalid_request, ())}
