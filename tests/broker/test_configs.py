"""Configs of topics and brokers: where values come from, and what may be changed."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from headrace.broker.configs import Alteration, Configs, Op, ResourceType, Source
from headrace.broker.image import BrokerRecord, EligiblePartitionRecord, TopicRecord
from headrace.broker.levels import LEVEL
from headrace.broker.topics import NewTopic
from headrace.core.config import ConfigType
from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.topic_config import TOPIC_CONFIGS

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


@pytest.fixture
def orders(cluster):
    cluster.run(cluster.topics.create([NewTopic("orders", configs={"retention.ms": "1000"})]))
    return cluster


def alter(cluster, *alterations, **options):
    return [error and error.code for error in cluster.run(cluster.configs.alter(alterations, **options))]


def set_to(kind, name, **values):
    return Alteration(kind, name, [(key.replace("_", "."), Op.SET, value) for key, value in values.items()])


def change(kind, name, key, op, value=None):
    return Alteration(kind, name, [(key, op, value)])


def described(cluster, kind, name):
    return {entry.name: entry for entry in cluster.configs.describe(kind, name)}


def sources(entry):
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


def test_a_topic_shows_every_config_with_value_type_and_documentation(orders):
    entries = described(orders, TOPIC, "orders")
    assert entries.keys() == TOPIC_CONFIGS.keys()
    assert all(entry.doc and not entry.read_only and entry.type for entry in entries.values())
    assert entries["cleanup.policy"].value == "delete"
    assert entries["cleanup.policy"].type is ConfigType.LIST
    assert entries["cleanup.policy"].source is Source.DEFAULT


def test_a_topics_own_value_comes_before_what_the_broker_gives(orders):
    own = described(orders, TOPIC, "orders")["retention.ms"]
    assert (own.value, own.source) == ("1000", Source.TOPIC)
    assert sources(own) == [
        ("retention.ms", "1000", Source.TOPIC),
        ("log.retention.ms", "604800000", Source.DEFAULT),
    ]


def test_every_source_is_listed_the_strongest_first(make_cluster):
    cluster = make_cluster()
    storage = replace(cluster.settings.storage, retention_ms=4000)
    cluster.configs = Configs(cluster.controller, replace(cluster.settings, storage=storage))
    cluster.run(cluster.topics.create([NewTopic("orders", configs={"retention.ms": "1000"})]))
    codes = alter(
        cluster,
        set_to(BROKER, "1", log_retention_ms="2000"),
        set_to(BROKER, "", log_retention_ms="3000"),
    )
    assert codes == [None, None]
    expected = [
        ("log.retention.ms", "2000", Source.DYNAMIC_BROKER),
        ("log.retention.ms", "3000", Source.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "4000", Source.STATIC_BROKER),
        ("log.retention.ms", "604800000", Source.DEFAULT),
    ]
    topic = described(cluster, TOPIC, "orders")["retention.ms"]
    assert sources(topic) == [("retention.ms", "1000", Source.TOPIC), *expected]
    broker = described(cluster, BROKER, "1")["log.retention.ms"]
    assert sources(broker) == expected
    assert (broker.value, broker.source, broker.read_only) == ("2000", Source.DYNAMIC_BROKER, False)


def test_values_in_effect_follow_the_same_order_as_the_description(cluster):
    image = cluster.image
    assert cluster.configs.topic_config({}, image).retention_ms == 604800000
    for name, value in (("", "3000"), ("1", "2000")):
        assert alter(cluster, set_to(BROKER, name, log_retention_ms=value)) == [None]
        assert cluster.configs.topic_config({}, cluster.image).retention_ms == int(value)
    assert cluster.configs.topic_config({"retention.ms": "1"}, cluster.image).retention_ms == 1
    assert cluster.configs.topic_config({}, image).retention_ms == 604800000


def test_a_static_min_insync_replicas_reaches_the_topics(make_cluster):
    cluster = make_cluster(min_insync_replicas=2)
    assert cluster.configs.topic_config({}, cluster.image).min_insync_replicas == 2
    cluster.run(cluster.topics.create([NewTopic("orders")]))
    entry = described(cluster, TOPIC, "orders")["min.insync.replicas"]
    assert (entry.value, entry.source) == ("2", Source.STATIC_BROKER)


def test_a_broker_shows_its_settings_and_which_of_them_can_be_changed(make_cluster):
    cluster = make_cluster(num_partitions=7)
    entries = described(cluster, BROKER, "1")
    partitions = entries["num.partitions"]
    assert (partitions.value, partitions.source, partitions.read_only) == ("7", Source.STATIC_BROKER, True)
    assert entries["node.id"].source is Source.DEFAULT
    assert not entries["log.cleanup.policy"].read_only
    assert entries["log.dirs"].read_only


def test_the_cluster_default_shows_only_what_was_set(cluster):
    assert described(cluster, BROKER, "") == {}
    alter(cluster, set_to(BROKER, "", log_retention_ms="3000"))
    entry = described(cluster, BROKER, "")["log.retention.ms"]
    assert sources(entry) == [("log.retention.ms", "3000", Source.DYNAMIC_DEFAULT_BROKER)]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "absent", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "a/b", ErrorCode.invalid_topic_exception),
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "one", ErrorCode.invalid_request),
        (BROKER, "01", ErrorCode.invalid_request),
        (ResourceType.BROKER_LOGGER, "", ErrorCode.invalid_request),
        (ResourceType.GROUP, "g", ErrorCode.invalid_request),
        (99, "x", ErrorCode.invalid_request),
    ],
)
def test_what_does_not_exist_cannot_be_described(cluster, kind, name, code):
    with pytest.raises(ApiError) as refused:
        cluster.configs.describe(kind, name)
    assert refused.value.code is code


def test_loggers_have_no_configs(cluster):
    assert cluster.configs.describe(ResourceType.BROKER_LOGGER, "1") == []


def test_a_config_is_set_and_deleted(orders):
    assert alter(orders, set_to(TOPIC, "orders", segment_ms="5000")) == [None]
    assert orders.image.topics["orders"].configs == {"retention.ms": "1000", "segment.ms": "5000"}
    assert alter(orders, change(TOPIC, "orders", "retention.ms", Op.DELETE)) == [None]
    assert orders.image.topics["orders"].configs == {"segment.ms": "5000"}
    assert alter(orders, change(TOPIC, "orders", "retention.ms", Op.DELETE)) == [None]


@pytest.mark.parametrize(
    ("first", "op", "value", "result"),
    [
        (None, Op.APPEND, "compact", "delete,compact"),
        (None, Op.APPEND, "delete", "delete"),
        ("compact,delete", Op.SUBTRACT, "compact", "delete"),
        ("compact", Op.APPEND, "delete,compact", "compact,delete"),
        ("compact", Op.SUBTRACT, "delete", "compact"),
    ],
)
def test_lists_are_appended_to_and_subtracted_from(orders, first, op, value, result):
    if first is not None:
        alter(orders, change(TOPIC, "orders", "cleanup.policy", Op.SET, first))
    assert alter(orders, change(TOPIC, "orders", "cleanup.policy", op, value)) == [None]
    assert described(orders, TOPIC, "orders")["cleanup.policy"].value == result


@pytest.mark.parametrize("op", [Op.APPEND, Op.SUBTRACT])
@pytest.mark.parametrize("key", ["retention.ms", "no.such"])
def test_only_lists_can_be_appended_to(orders, op, key):
    assert alter(orders, change(TOPIC, "orders", key, op, "1")) == [ErrorCode.invalid_config]


def test_replacing_drops_what_is_not_named(orders):
    assert alter(orders, set_to(TOPIC, "orders", segment_ms="5000"), replace=True) == [None]
    assert orders.image.topics["orders"].configs == {"segment.ms": "5000"}
    assert alter(orders, Alteration(TOPIC, "orders", []), replace=True) == [None]
    assert orders.image.topics["orders"].configs == {}


@pytest.mark.parametrize(
    ("alteration", "code"),
    [
        (set_to(TOPIC, "orders", no_such="1"), ErrorCode.invalid_config),
        (set_to(TOPIC, "orders", retention_ms="soon"), ErrorCode.invalid_config),
        (set_to(TOPIC, "orders", cleanup_policy="burn"), ErrorCode.invalid_config),
        (set_to(TOPIC, "absent", retention_ms="1"), ErrorCode.unknown_topic_or_partition),
        (set_to(TOPIC, "", retention_ms="1"), ErrorCode.invalid_request),
        (set_to(TOPIC, "a/b", retention_ms="1"), ErrorCode.invalid_topic_exception),
        (change(TOPIC, "orders", "retention.ms", Op.SET, None), ErrorCode.invalid_request),
        (change(TOPIC, "orders", "retention.ms", 9, "1"), ErrorCode.invalid_request),
        (Alteration(TOPIC, "orders", [("retention.ms", 0, "1")] * 2), ErrorCode.invalid_request),
        (set_to(TOPIC, "orders", headrace_storage="memory"), ErrorCode.invalid_config),
        (set_to(BROKER, "1", no_such="1"), ErrorCode.invalid_config),
        (set_to(BROKER, "1", num_partitions="9"), ErrorCode.invalid_request),
        (set_to(BROKER, "", log_dirs="/etc"), ErrorCode.invalid_request),
        (set_to(BROKER, "1", storage_kind="memory"), ErrorCode.invalid_request),
        (set_to(BROKER, "1", log_retention_ms="soon"), ErrorCode.invalid_request),
        (set_to(BROKER, "2", log_retention_ms="1"), ErrorCode.invalid_request),
        (set_to(BROKER, "x", log_retention_ms="1"), ErrorCode.invalid_request),
        (set_to(ResourceType.BROKER_LOGGER, "1", root="DEBUG"), ErrorCode.invalid_request),
        (set_to(ResourceType.GROUP, "g", a="1"), ErrorCode.invalid_request),
        (set_to(0, "x", a="1"), ErrorCode.invalid_request),
    ],
)
@pytest.mark.parametrize("replace_all", [False, True])
def test_a_bad_change_is_refused_and_changes_nothing(orders, alteration, code, replace_all):
    before = orders.image
    if replace_all:
        alteration = replace(alteration, changes=[(k, op if op == 9 else Op.SET, v) for k, op, v in alteration.changes])
    assert alter(orders, alteration, replace=replace_all) == [code]
    assert orders.image is before


def test_a_resource_that_appears_twice_is_refused_and_the_others_are_changed(orders):
    codes = alter(
        orders,
        set_to(TOPIC, "orders", retention_ms="1"),
        set_to(BROKER, "", log_retention_ms="2"),
        set_to(TOPIC, "orders", segment_ms="3"),
    )
    assert codes == [ErrorCode.invalid_request, None, ErrorCode.invalid_request]
    assert orders.image.topics["orders"].configs == {"retention.ms": "1000"}
    assert orders.image.broker_configs == {"": {"log.retention.ms": "2"}}


def test_validate_only_tells_and_does_nothing(orders):
    before = orders.image
    codes = alter(
        orders,
        set_to(TOPIC, "orders", retention_ms="1"),
        set_to(BROKER, "", log_retention_ms="x"),
        validate_only=True,
    )
    assert codes == [None, ErrorCode.invalid_request]
    assert orders.image is before


def test_all_changes_of_a_request_are_one_entry_of_the_log(orders):
    before = orders.controller.applied_index
    alter(orders, set_to(TOPIC, "orders", retention_ms="1"), set_to(BROKER, "", log_retention_ms="2"))
    assert orders.controller.applied_index == before + 1


@pytest.mark.parametrize(
    "wanted", [set_to(TOPIC, "orders", min_insync_replicas="1"), set_to(BROKER, "", min_insync_replicas="1")]
)
def test_fewer_replicas_wanted_in_sync_end_the_eligibility_of_others_in_the_same_entry(make_cluster, wanted):
    cluster = make_cluster(brokers=0, min_insync_replicas=2)
    nodes = [BrokerRecord(n, f"h{n}", 9092, epoch=1, level=LEVEL) for n in (1, 2, 3)]
    record = EligiblePartitionRecord("orders", 0, (1, 2, 3), (1,), 1, 0, elr=(2, 3))
    cluster.run(cluster.controller.propose([*nodes, TopicRecord("orders", UUID(int=7)), record]))
    assert alter(cluster, set_to(TOPIC, "orders", retention_ms="1")) == [None]
    assert cluster.image.partition("orders", 0).elr == (2, 3)
    before = cluster.controller.applied_index
    assert alter(cluster, wanted) == [None]
    assert cluster.image.partition("orders", 0).elr == ()
    assert cluster.controller.applied_index == before + 1


def test_a_broker_default_that_contradicts_a_topic_is_refused(orders):
    assert alter(orders, change(TOPIC, "orders", "max.compaction.lag.ms", Op.SET, "5")) == [None]
    wanted = change(BROKER, "", "log.cleaner.min.compaction.lag.ms", Op.SET, "10")
    assert alter(orders, wanted) == [ErrorCode.invalid_request]
    assert orders.configs.topic_config(orders.image.topics["orders"].configs, orders.image).min_compaction_lag_ms == 0


def test_two_changes_that_contradict_only_together_are_not_both_made(orders):
    codes = alter(
        orders,
        change(TOPIC, "orders", "max.compaction.lag.ms", Op.SET, "5"),
        change(BROKER, "", "log.cleaner.min.compaction.lag.ms", Op.SET, "10"),
    )
    assert codes == [None, ErrorCode.invalid_request]


def test_a_new_topic_is_checked_against_the_brokers_dynamic_defaults(cluster):
    alter(cluster, change(BROKER, "", "log.cleaner.min.compaction.lag.ms", Op.SET, "10"))
    wanted = NewTopic("orders", configs={"max.compaction.lag.ms": "5"})
    [outcome] = cluster.run(cluster.topics.create([wanted]))
    assert outcome.error.code is ErrorCode.invalid_config
