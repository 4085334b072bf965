"""The topics that coordinators keep their records in, as the coordinators see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.controller import Controller
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.broker.topics import Topics

OFFSETS_TOPIC = "__consumer_offsets"
REPLICAS = 3
SEGMENT_BYTES = 4 * 1024 * 1024


class InternalTopic:
    """One internal topic. It is made when it is first needed, with three replicas if there are so many nodes."""

    def __init__(
        self, name: str, count: int, *, controller: Controller, topics: Topics, partitions: Partitions
    ) -> None:
        self._name = name
        self._count = count
        self._controller = controller
        self._topics = topics
        self._partitions = partitions

    @property
    def alone(self) -> bool:
        """Whether there is no other node."""
        return len(self._controller.image.brokers) <= 1

    def leader_of(self, index: int) -> int:
        """The node that leads a partition; -1 if none does."""
        record = self._controller.image.partition(self._name, index)
        return -1 if record is None else record.leader

    def absence(self, index: int) -> ApiError:
        """Why this node does not have a partition's records."""
        if self.leader_of(index) in (-1, self._partitions.node_id):
            return ApiError(ErrorCode.coordinator_not_available, f"{self._name}-{index} is offline.")
        return ApiError(ErrorCode.not_coordinator, f"Another node leads {self._name}-{index}.")

    def find(self) -> list[Partition | None]:
        """Its partitions in order, None for those that this node does not lead; none if there is no such topic yet."""
        topic = self._controller.image.topics.get(self._name)
        return [] if topic is None else [self._open(record.index) for record in topic.partitions]

    async def ensure(self) -> list[Partition | None]:
        """The same, after making the topic if need be. Raises ApiError."""
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "headrace.flush": "ack",  # what coordinators decided is always synced
            "segment.bytes": str(SEGMENT_BYTES),  # small, so that a rewrite frees space
        }
        living = sum(not node.fenced for node in self._controller.image.brokers.values())
        factor = max(1, min(REPLICAS, living))
        await self._topics.ensure_one(NewTopic(self._name, self._count, factor, configs=configs))
        await self._partitions.settled()
        return self.find()

    def _open(self, index: int) -> Partition | None:
        try:
            return self._partitions.get(self._name, index)
        except ApiError:
            return None
