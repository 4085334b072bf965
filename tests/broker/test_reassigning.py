"""Rebalancing: where replicas go when nodes come, go, or are drained."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.broker import placement, reassigning
from headrace.broker.commands import Rebalance
from headrace.broker.decisions import Standard
from headrace.broker.image import BrokerRecord
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError

OFFSETS = "__consumer_offsets"


def nodes(cluster, *changed: BrokerRecord) -> None:
    cluster.run(cluster.controller.propose(changed))


@pytest.fixture
def three(make_cluster):
    cluster = make_cluster(brokers=0)
    nodes(cluster, *(BrokerRecord(node, f"h{node}", 9092, epoch=1) for node in (1, 2, 3)))
    return cluster


def make(cluster, *topics: NewTopic) -> None:
    outcomes = cluster.run(cluster.topics.ensure(topics))
    assert [outcome.error for outcome in outcomes] == [None] * len(topics)


def finish(cluster) -> None:
    """As if all added replicas had caught up."""
    records = []
    for topic in cluster.image.topics.values():
        for record in topic.partitions:
            target = tuple(node for node in record.replicas if node not in record.removing)
            leader = record.leader if record.leader in target else target[0]
            records.append(replace(record, replicas=target, isr=target, adding=(), removing=(), leader=leader))
    cluster.run(cluster.controller.propose(records))


class TwoInSync(Standard):
    def min_insync(self, topic, image) -> int:
        return 2


def rebalance(cluster, *, dry_run: bool = False, fewer: bool = False, leaving: tuple[int, ...] = (), policy=None):
    command = Rebalance(dry_run, fewer, leaving)
    return cluster.run(reassigning.rebalance(cluster.controller, command, policy or Standard())).moves


def test_a_cluster_in_balance_stays_as_it_is(three):
    make(three, NewTopic("orders", 6, 2))
    assert rebalance(three) == ()


def test_a_newcomer_gets_its_share(three):
    make(three, NewTopic("orders", 12, 2))
    nodes(three, BrokerRecord(4, "h4", 9092, epoch=1))
    planned = rebalance(three, dry_run=True)
    assert not any(record.adding for record in three.image.topics["orders"].partitions)
    assert rebalance(three) == planned
    adding = [record.adding for record in three.image.topics["orders"].partitions if record.adding]
    assert set(adding) == {(4,)}
    assert 5 <= len(adding) <= 7
    finish(three)
    assert rebalance(three) == ()


def test_a_draining_node_is_emptied(three):
    make(three, NewTopic("orders", 6, 2))
    nodes(three, replace(three.image.brokers[3], draining=True))
    rebalance(three)
    finish(three)
    assert not any(3 in record.replicas for record in three.image.topics["orders"].partitions)


def test_nobody_is_given_anything_while_a_node_is_down(three):
    make(three, NewTopic("orders", 6, 2))
    nodes(three, replace(three.image.brokers[2], fenced=True))
    with pytest.raises(ApiError, match="node 2 is down"):
        rebalance(three)


def test_a_dead_node_that_is_draining_is_replaced(three):
    make(three, NewTopic("orders", 6, 2))
    nodes(three, replace(three.image.brokers[2], fenced=True, draining=True))
    rebalance(three)
    finish(three)
    assert not any(2 in record.replicas for record in three.image.topics["orders"].partitions)


def test_the_last_node_cannot_be_emptied(make_cluster):
    cluster = make_cluster(brokers=0)
    nodes(cluster, BrokerRecord(1, "h1", 9092, epoch=1, draining=True))
    with pytest.raises(ApiError, match="no node is left"):
        rebalance(cluster)


def drain(cluster, *numbers: int) -> None:
    nodes(cluster, *(replace(cluster.image.brokers[number], draining=True) for number in numbers))


def test_a_topic_loses_no_replica_unless_that_was_asked_for(three):
    make(three, NewTopic("orders", 6, 3))
    before = three.image.topics["orders"].partitions
    drain(three, 3)
    with pytest.raises(ApiError, match="2 nodes would be left for orders, which has 3 replicas"):
        rebalance(three)
    assert three.image.topics["orders"].partitions == before
    rebalance(three, fewer=True)
    assert [len(record.replicas) for record in three.image.topics["orders"].partitions] == [2] * 6


def test_no_topic_is_left_with_fewer_replicas_than_a_write_needs(three):
    make(three, NewTopic("orders", 6, 3))
    before = three.image.topics["orders"].partitions
    drain(three, 2)
    with pytest.raises(ApiError, match="1 node would be left for orders, whose min.insync.replicas is 2"):
        rebalance(three, fewer=True, leaving=(3,), dry_run=True, policy=TwoInSync())
    drain(three, 3)
    with pytest.raises(ApiError, match="1 node would be left for orders, whose min.insync.replicas is 2"):
        rebalance(three, fewer=True, policy=TwoInSync())
    assert three.image.topics["orders"].partitions == before


def test_a_topic_that_never_had_what_its_writes_need_may_move(three):
    make(three, NewTopic("orders", 6, 1))
    drain(three, 2, 3)
    rebalance(three, policy=TwoInSync())
    assert all(record.replicas[0] == 1 for record in three.image.topics["orders"].partitions)


def test_the_coordinators_topics_have_as_many_replicas_as_there_are_nodes_for(three):
    make(three, NewTopic(OFFSETS, 4, 3))
    drain(three, 3)
    rebalance(three, policy=TwoInSync())
    assert [len(record.replicas) for record in three.image.topics[OFFSETS].partitions] == [2] * 4


def test_what_is_copied_at_a_time_is_bounded_and_the_rest_follows(three, monkeypatch):
    monkeypatch.setattr(reassigning, "COPIES_AT_ONCE", 5)
    make(three, NewTopic("orders", 40, 2), NewTopic("bills", 20, 3))
    nodes(three, *(BrokerRecord(node, f"h{node}", 9092, epoch=1) for node in (4, 5, 6)))
    drain(three, 1, 2)
    whole = rebalance(three, dry_run=True)
    copied = 0
    for _ in range(100):
        planned = rebalance(three)
        rebalance(three)  # asked again too early, it begins nothing more
        moving = [r for topic in three.image.topics.values() for r in topic.partitions if r.adding]
        assert len(moving) <= 5
        for record in moving:  # added before anything is removed
            assert set(record.isr) <= set(record.replicas) - set(record.adding)
            assert len(record.isr) == (2 if record.topic == "orders" else 3)
        if not planned:
            break
        copied += len(moving)
        finish(three)
    assert not planned
    assert copied <= 1.2 * len(whole)
    assert all(not {1, 2} & set(r.replicas) for topic in three.image.topics.values() for r in topic.partitions)


def test_internal_topics_grow_with_the_cluster(make_cluster):
    cluster = make_cluster(brokers=0)
    nodes(cluster, BrokerRecord(1, "h1", 9092, epoch=1))
    make(cluster, NewTopic(OFFSETS, 4), NewTopic("orders", 2))
    nodes(cluster, *(BrokerRecord(node, f"h{node}", 9092, epoch=1) for node in (2, 3, 4)))
    assert cluster.run(reassigning.grow_internal_topics(cluster.controller, Standard())) == 4
    assert cluster.run(reassigning.grow_internal_topics(cluster.controller, Standard())) == 0  # it is on its way
    finish(cluster)
    records = cluster.image.topics[OFFSETS].partitions
    assert [len(record.replicas) for record in records] == [3] * 4
    held = [sum(node in record.replicas for record in records) for node in (2, 3, 4)]
    assert max(held) - min(held) <= 1
    assert placement.growth(cluster.image) == []
    assert [len(record.replicas) for record in cluster.image.topics["orders"].partitions] == [1, 1]
