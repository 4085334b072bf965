"""Counts what images change, for the metrics page: in-sync sets that shrank or grew, and leaders that changed.

Rule: a node counts partitions that it leads after the change, so that the sum over all nodes counts each change once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.image import Image, PartitionRecord
    from headrace.core.counters import ClusterCounters


class Tally:
    """See the module. `changed` is subscribed to the controller."""

    def __init__(self, node_id: int, counters: ClusterCounters) -> None:
        self._node_id = node_id
        self._counters = counters

    def changed(self, old: Image, new: Image) -> None:
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            # An image shares what a change did not touch.
            if before is topic or before is None or before.topic_id != topic.topic_id:
                continue
            for was, record in zip(before.partitions, topic.partitions, strict=False):
                if record is not was and record.leader == self._node_id:
                    self._count(was, record)

    def _count(self, was: PartitionRecord, record: PartitionRecord) -> None:
        counters = self._counters
        if record.leader != was.leader:
            counters.leaders_gained += 1
        counters.in_sync_shrinks += any(node not in record.isr for node in was.isr)
        counters.in_sync_expands += any(node not in was.isr for node in record.isr)
