"""Rebalancing: where replicas go when nodes come, go, or are drained."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.broker import placement, reassigning
from headrace.broker.commands import Rebalance
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


def rebalance(cluster, *, dry_run: bool = False):
    return cluster.run(reassigning.rebalance(cluster.controller, Rebalance(dry_run))).moves


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


def test_internal_topics_grow_with_the_cluster(make_cluster):
    cluster = make_cluster(brokers=0)
    nodes(cluster, BrokerRecord(1, "h1", 9092, epoch=1))
    make(cluster, NewTopic(OFFSETS, 4), NewTopic("orders", 2))
    nodes(cluster, *(BrokerRecord(node, f"h{node}", 9092, epoch=1) for node in (2, 3, 4)))
    assert cluster.run(reassigning.grow_internal_topics(cluster.controller)) == 4
    assert cluster.run(reassigning.grow_internal_topics(cluster.controller)) == 0  # it is on its way
    finish(cluster)
    records = cluster.image.topics[OFFSETS].partitions
    assert [len(record.replicas) for record in records] == [3] * 4
    held = [sum(node in record.replicas for record in records) for node in (2, 3, 4)]
    assert max(held) - min(held) <= 1
    assert placement.growth(cluster.image) == []
    assert [len(record.replicas) for record in cluster.image.topics["orders"].partitions] == [1, 1]
