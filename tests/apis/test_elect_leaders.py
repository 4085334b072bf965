"""ElectLeaders: nothing ever needs an election on one node."""

from __future__ import annotations

import pytest

from headrace.apis.elect_leaders import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)


def codes(answer):
    return {
        (topic.topic, part.partition_id): part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (43, (0, 2))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_partition_answers_for_itself(admin, version):
    admin.create(NewTopic("orders", 2))
    asked = [{"topic": "orders", "partitions": [0, 1, 2]}, {"topic": "absent", "partitions": [0]}]
    assert codes(admin.call(API, version, topic_partitions=asked)) == {
        ("orders", 0): ErrorCode.election_not_needed,
        ("orders", 1): ErrorCode.election_not_needed,
        ("orders", 2): ErrorCode.unknown_topic_or_partition,
        ("absent", 0): ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_asking_for_all_leaves_out_what_needs_no_election(admin, version):
    admin.create(NewTopic("orders", 2))
    assert codes(admin.call(API, version, topic_partitions=None)) == {}


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_an_unknown_election_type_is_refused(admin, version):
    admin.create(NewTopic("orders"))
    asked = [{"topic": "orders", "partitions": [0]}]
    answer = admin.call(API, version, topic_partitions=asked, election_type=9)
    assert answer.error_code is ErrorCode.invalid_request
    assert codes(answer) == {("orders", 0): ErrorCode.invalid_request}
