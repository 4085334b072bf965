"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders where there are nodes to choose from."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.apis import alter_partition_reassignments, elect_leaders, list_partition_reassignments
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

ALTER = alter_partition_reassignments.API
LIST = list_partition_reassignments.API
ELECT = elect_leaders.API
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def four(make_admin):
    admin = make_admin(brokers=4)
    admin.create(NewTopic("orders", assignments=[(0, (1, 2)), (1, (2, 3))]))
    return admin


def move(admin, index, replicas, *, version=1, topic="orders", **fields):
    partitions = [{"partition_index": index, "replicas": replicas}]
    answer = admin.call(ALTER, version, topics=[{"name": topic, "partitions": partitions}], timeout=1000, **fields)
    assert answer.error_code is ErrorCode.none
    [result] = answer.responses[0].partitions
    return result.error_code


def moving(admin, topics=None):
    return {
        (topic.name, part.partition_index): (part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in admin.call(LIST, 0, topics=topics, timeout=1000).topics
        for part in topic.partitions
    }


def record(admin, index=0):
    return admin.image.topics["orders"].partitions[index]


@pytest.mark.parametrize("version", [0, 1])
def test_a_move_begins_and_is_listed(four, version):
    assert move(four, 0, [3, 4], version=version) is ErrorCode.none
    assert moving(four) == {("orders", 0): ((3, 4, 1, 2), (3, 4), (1, 2))}
    assert moving(four, [{"name": "orders", "partition_indexes": [1]}]) == {}
    assert record(four).leader == 1


def test_a_move_is_cancelled_with_null(four):
    assert move(four, 0, None) is ErrorCode.no_reassignment_in_progress
    move(four, 0, [3, 4])
    assert move(four, 0, None) is ErrorCode.none
    assert moving(four) == {}
    assert sorted(record(four).replicas) == [1, 2]


def test_a_move_to_replicas_that_are_in_sync_is_done_at_once(four):
    assert move(four, 0, [2]) is ErrorCode.none
    assert moving(four) == {}
    assert (record(four).replicas, record(four).leader, record(four).leader_epoch) == ((2,), 2, 1)


@pytest.mark.parametrize(
    ("replicas", "code"),
    [([], "invalid_replica_assignment"), ([9], "invalid_replica_assignment"), ([3, 3], "invalid_replica_assignment")],
)
def test_an_impossible_target_is_refused(four, replicas, code):
    assert move(four, 0, replicas) is ErrorCode[code]


def test_what_does_not_exist_is_not_moved(four):
    assert move(four, 7, [1]) is ErrorCode.unknown_topic_or_partition
    assert move(four, 0, [1], topic="absent") is ErrorCode.unknown_topic_or_partition


def test_the_replication_factor_can_be_held(four):
    refused = move(four, 0, [3], allow_replication_factor_change=False)
    assert refused is ErrorCode.invalid_replication_factor
    assert move(four, 0, [3, 4], allow_replication_factor_change=False) is ErrorCode.none


def elect(admin, kind, partitions=(0,), version=2):
    asked = None if partitions is None else [{"topic": "orders", "partitions": list(partitions)}]
    answer = admin.call(ELECT, version, topic_partitions=asked, election_type=kind, timeout=1000)
    return {
        part.partition_id: part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


def test_a_preferred_leader_gets_its_place_back(four):
    four.propose(replace(record(four), leader=2, leader_epoch=1))
    assert elect(four, PREFERRED, None) == {0: ErrorCode.none}
    assert (record(four).leader, record(four).leader_epoch) == (1, 2)
    assert elect(four, PREFERRED) == {0: ErrorCode.election_not_needed}


def test_a_preferred_leader_that_is_not_in_sync_does_not_lead(four):
    four.propose(replace(record(four), leader=2, isr=(2,), leader_epoch=1))
    assert elect(four, PREFERRED) == {0: ErrorCode.preferred_leader_not_available}


def test_an_unclean_election_takes_whoever_is_up(four):
    four.propose(
        replace(four.image.brokers[1], fenced=True), replace(record(four), leader=-1, isr=(1,), leader_epoch=1)
    )
    assert elect(four, UNCLEAN, (0, 1)) == {0: ErrorCode.none, 1: ErrorCode.election_not_needed}
    assert (record(four).leader, record(four).isr) == (2, (2,))


def test_an_unclean_election_needs_somebody(four):
    four.propose(
        replace(four.image.brokers[1], fenced=True),
        replace(four.image.brokers[2], fenced=True),
        replace(record(four), leader=-1, isr=(1,), leader_epoch=1),
    )
    assert elect(four, UNCLEAN) == {0: ErrorCode.eligible_leaders_not_available}
