"""Which nodes hold the replicas of partitions: the image, as the ring wants it.

Rules:
- New replicas go to nodes that are up and not draining.
- A plan for the whole cluster begins with what is. It is made only while all nodes are up but those that are draining:
  otherwise it would give replicas to the dead, or take from them what they hold.
- A plan takes no replica from a topic for which there are too few nodes, unless that was asked for. It never leaves a
  topic with fewer replicas than its `min.insync.replicas`: it was promised that many.
- The coordinators' topics have three replicas, or as many as there are nodes: those that were made when the cluster was
  smaller grow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from headrace.broker.decisions import eligible
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import INTERNAL_TOPICS
from headrace.ring.node import Node
from headrace.ring.placement import place as place_on_ring
from headrace.ring.plan import Move, plan

if TYPE_CHECKING:
    from headrace.broker.image import Image, PartitionRecord, TopicImage

Replicas = tuple[int, ...]

INTERNAL_REPLICATION_FACTOR: Final = 3


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


def moves(
    image: Image,
    min_insync: Callable[[TopicImage], int],
    *,
    fewer: bool = False,
    also_leaving: Collection[int] = (),
) -> list[Move]:
    """What would bring the replicas into balance, away from draining nodes. Raises ApiError.

    `fewer`: a topic may lose replicas, though never below its `min_insync`.
    """
    nodes = [Node(node.node_id, node.rack) for node in image.brokers.values() if node.epoch > 0]
    leaving = [node.node_id for node in image.brokers.values() if node.draining or node.node_id in also_leaving]
    down = [node.node_id for node in image.brokers.values() if node.fenced and node.node_id not in leaving]
    down = [node for node in down if image.brokers[node].epoch > 0]
    if down:
        names = ", ".join(map(str, down))
        raise ApiError(ErrorCode.invalid_request, f"node {names} is down: wait until it is back, or drain it")
    if all(node.node_id in leaving for node in nodes):
        raise ApiError(ErrorCode.invalid_request, "no node is left to hold replicas")
    grown = {(move.topic, move.index): move.after for move in growth(image)}
    current: Mapping[tuple[str, int], Replicas] = {
        (topic.name, record.index): grown.get((topic.name, record.index), _target(record))
        for topic in image.topics.values()
        for record in topic.partitions
    }
    planned = {(move.topic, move.index): move.after for move in plan(current, nodes, leaving=leaving)}
    found = [
        Move(topic, index, before, after)
        for (topic, index), wanted in current.items()
        for before in (_target(image.topics[topic].partitions[index]),)
        if (after := planned.get((topic, index), wanted)) != before
    ]
    _check_enough(image, found, min_insync, fewer, len(nodes) - len(leaving))
    return found


def _check_enough(
    image: Image, found: list[Move], min_insync: Callable[[TopicImage], int], fewer: bool, staying: int
) -> None:
    """Refuse to take replicas that topics need. The coordinators' topics have as many as there are nodes for them."""
    for move in found:
        if move.missing <= 0:
            continue
        least = min_insync(image.topics[move.topic])
        if len(move.after) < least:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"{staying} node{'s' * (staying != 1)} would be left for {move.topic}, whose min.insync.replicas is "
                f"{least}: it could not be kept; add nodes, drain fewer, or lower min.insync.replicas first",
            )
        if not fewer and move.topic not in INTERNAL_TOPICS:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"{staying} node{'s' * (staying != 1)} would be left for {move.topic}, which has {len(move.before)} "
                "replicas: add nodes, drain fewer, or say that it may have fewer",
            )


def growth(image: Image) -> list[Move]:
    """Replicas that the coordinators' topics lack, on the nodes that hold least of them."""
    nodes = [image.brokers[node] for node in sorted(eligible(image))]
    factor = min(INTERNAL_REPLICATION_FACTOR, len(nodes))
    found = []
    for name in sorted(INTERNAL_TOPICS):
        topic = image.topics.get(name)
        if topic is None:
            continue
        held = {node.node_id: 0 for node in nodes}
        for record in topic.partitions:
            for replica in record.replicas:
                held[replica] = held.get(replica, 0) + 1
        for record in topic.partitions:
            before = after = _target(record)
            while len(after) < factor:
                racks = {image.brokers[node].rack for node in after if node in image.brokers}
                free = [node for node in nodes if node.node_id not in after]
                best = min(free, key=lambda node: (node.rack is not None and node.rack in racks, held[node.node_id]))
                held[best.node_id] += 1
                after = (*after, best.node_id)
            if after != before:
                found.append(Move(name, record.index, before, after))
    return found


def _target(record: PartitionRecord) -> Replicas:
    return tuple(node for node in record.replicas if node not in record.removing)
