"""DescribeTopicPartitions: pages that cover everything once, and arrays that are never null."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.apis import describe_topic_partitions
from headrace.apis.describe_topic_partitions import API
from headrace.broker.image import EligiblePartitionRecord
from headrace.broker.levels import LEVEL
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode


def named(*names):
    return [{"name": name} for name in names]


def pages(admin, limit, topics=()):
    """All answers, by following the cursor."""
    cursor = None
    while True:
        answer = admin.call(API, 0, topics=list(topics), response_partition_limit=limit, cursor=cursor)
        yield answer
        if answer.next_cursor is None:
            return
        next_cursor = answer.next_cursor
        cursor = {"topic_name": next_cursor.topic_name, "partition_index": next_cursor.partition_index}


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (75, (0, 0))


def test_partitions_are_described_with_empty_arrays_not_nulls(admin):
    admin.create(NewTopic("orders", 2))
    [topic] = admin.call(API, 0, topics=named("orders")).topics
    assert (topic.name, topic.error_code) == ("orders", ErrorCode.none)
    assert topic.topic_id == admin.image.topics["orders"].topic_id
    assert topic.topic_authorized_operations == 3576
    for partition in topic.partitions:
        assert partition.eligible_leader_replicas == ()
        assert partition.last_known_elr == ()
        assert partition.offline_replicas == ()
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))


def test_eligible_leader_replicas_are_told(admin):
    admin.create(NewTopic("orders"))
    record = EligiblePartitionRecord("orders", 0, (1, 2, 3), (), -1, 4, elr=(2, 3), last_known_elr=(1,))
    admin.propose(*(replace(node, level=LEVEL) for node in admin.image.brokers.values()))
    admin.propose(record)
    [topic] = admin.call(API, 0, topics=named("orders")).topics
    [partition] = topic.partitions
    assert (partition.leader_id, partition.isr_nodes) == (-1, ())
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((2, 3), (1,))


def test_unknown_and_invalid_names_have_their_errors(admin):
    admin.create(NewTopic("orders"), NewTopic("__consumer_offsets"))
    answer = admin.call(API, 0, topics=named("orders", "absent", "a/b", "__consumer_offsets"))
    assert {topic.name: (topic.error_code, topic.is_internal) for topic in answer.topics} == {
        "orders": (ErrorCode.none, False),
        "absent": (ErrorCode.unknown_topic_or_partition, False),
        "a/b": (ErrorCode.invalid_topic_exception, False),
        "__consumer_offsets": (ErrorCode.none, True),
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), limit=st.integers(1, 8), listed=st.booleans())
def test_pages_cover_every_partition_once_and_keep_their_limit(make_admin, sizes, limit, listed):
    admin = make_admin()
    admin.create(*(NewTopic(f"t{number}", size) for number, size in enumerate(sizes)))
    asked = named(*admin.image.topics) if listed else []
    seen = []
    for answer in pages(admin, limit, asked):
        shown = [(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions]
        assert 1 <= len(shown) <= limit
        seen += shown
    assert seen == [(f"t{number}", index) for number, size in enumerate(sizes) for index in range(size)]


def test_the_brokers_own_limit_holds_whatever_is_asked(admin, monkeypatch):
    monkeypatch.setattr(describe_topic_partitions, "PARTITIONS_PER_ANSWER", 3)
    admin.create(NewTopic("orders", 10))
    for limit, expected in ((100, 3), (0, 1), (-5, 1)):
        answer = admin.call(API, 0, topics=[], response_partition_limit=limit)
        assert len(answer.topics[0].partitions) == expected


def test_a_cursor_whose_topic_was_deleted_goes_on_with_the_next(admin):
    admin.create(NewTopic("a"), NewTopic("c", 3))
    cursor = {"topic_name": "b", "partition_index": 2}
    answer = admin.call(API, 0, topics=[], cursor=cursor)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("c", 3)]


@pytest.mark.parametrize(
    "cursor", [{"topic_name": "other", "partition_index": 0}, {"topic_name": "orders", "partition_index": -1}]
)
def test_a_bad_cursor_is_refused(admin, cursor):
    admin.create(NewTopic("orders"))
    answer = admin.call(API, 0, topics=named("orders"), cursor=cursor)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]
