"""What images change is counted once, by the leader."""

from __future__ import annotations

from uuid import UUID

from headrace.broker.image import Image, PartitionRecord, TopicRecord, apply
from headrace.broker.tally import Tally
from headrace.core.counters import ClusterCounters

NAME, TOPIC_ID = "orders", UUID(int=1)


def record(isr: tuple[int, ...], leader: int, epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(NAME, 0, (1, 2, 3), isr, leader, epoch)


def counted(*steps: PartitionRecord, node_id: int = 1) -> ClusterCounters:
    counters = ClusterCounters()
    tally = Tally(node_id, counters)
    image = apply(Image(), [TopicRecord(NAME, TOPIC_ID), steps[0]])
    tally.changed(Image(), image)
    for step in steps[1:]:
        before, image = image, apply(image, [step])
        tally.changed(before, image)
    return counters


def test_in_sync_sets_that_shrink_and_grow_are_counted_by_their_leader_only():
    steps = record((1, 2, 3), 1), record((1, 2), 1), record((1,), 1), record((1, 2, 3), 1)
    assert counted(*steps) == ClusterCounters(in_sync_shrinks=2, in_sync_expands=1)
    assert counted(*steps, node_id=2) == ClusterCounters()


def test_a_failover_is_counted_by_the_new_leader():
    steps = record((1, 2, 3), 1), record((2, 3), 2, 1)
    assert counted(*steps, node_id=2) == ClusterCounters(in_sync_shrinks=1, leaders_gained=1)
    assert counted(*steps, node_id=1) == ClusterCounters()


def test_a_new_topic_is_no_change():
    assert counted(record((1, 2, 3), 1)) == ClusterCounters()
