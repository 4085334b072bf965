"""Which nodes hold the replicas of partitions: the image, as the ring wants it.

Rules:
- New replicas go to nodes that are up and not draining.
- A plan for the whole cluster begins with what is; nodes that are down keep what they have, unless they are draining.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.decisions import eligible
from headrace.core.errors import ApiError, ErrorCode
from headrace.ring.node import Node
from headrace.ring.placement import place as place_on_ring
from headrace.ring.plan import Move, plan

if TYPE_CHECKING:
    from headrace.broker.image import Image

Replicas = tuple[int, ...]


class Placing:
    """Places the partitions of one request, one topic after the other."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._nodes = [Node(node, image.brokers[node].rack) for node in sorted(eligible(image))]
        self._load: dict[int, int] | None = None
        self._leads: dict[int, int] = {}

    @property
    def size(self) -> int:
        """How many nodes may hold new replicas."""
        return len(self._nodes)

    def place(self, topic: str, partitions: range, factor: int) -> list[Replicas]:
        """Raises ApiError(invalid_replication_factor)."""
        if factor > self.size:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of "
                f"{factor} cannot be reached because only {self.size} broker(s) are registered.",
            )
        load = self._counted()
        placed = place_on_ring(topic, partitions, factor, self._nodes, load, self._leads)
        for replicas in placed:
            self._leads[replicas[0]] = self._leads.get(replicas[0], 0) + 1
            for node in replicas:
                load[node] = load.get(node, 0) + 1
        return placed

    def _counted(self) -> dict[int, int]:
        if self._load is None:
            self._load = {}
            if self.size > 1:
                _count(self._image, self._load, self._leads)
        return self._load


def _count(image: Image, load: dict[int, int], leads: dict[int, int]) -> None:
    for topic in image.topics.values():
        for record in topic.partitions:
            leads[record.leader] = leads.get(record.leader, 0) + 1
            for node in record.replicas:
                load[node] = load.get(node, 0) + 1


def moves(image: Image) -> list[Move]:
    """What would bring the replicas into balance, away from draining nodes. Raises ApiError."""
    nodes = [Node(node.node_id, node.rack) for node in image.brokers.values() if node.epoch > 0]
    leaving = [node.node_id for node in image.brokers.values() if node.draining]
    if len(leaving) >= len(nodes):
        raise ApiError(ErrorCode.invalid_request, "no node is left to hold replicas")
    current: Mapping[tuple[str, int], Replicas] = {
        (topic.name, record.index): tuple(node for node in record.replicas if node not in record.removing)
        for topic in image.topics.values()
        for record in topic.partitions
    }
    return plan(current, nodes, leaving=leaving)
