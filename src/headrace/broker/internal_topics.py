"""The topics that coordinators keep their records in, as the coordinators see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError

if TYPE_CHECKING:
    from headrace.broker.controller import Controller
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.broker.topics import Topics

OFFSETS_TOPIC = "__consumer_offsets"
SEGMENT_BYTES = 4 * 1024 * 1024


class InternalTopic:
    """One internal topic. It is made when it is first needed; partitions whose log is offline are None."""

    def __init__(
        self, name: str, count: int, *, controller: Controller, topics: Topics, partitions: Partitions
    ) -> None:
        self._name = name
        self._count = count
        self._controller = controller
        self._topics = topics
        self._partitions = partitions

    def find(self) -> list[Partition | None]:
        """Its partitions in order; none if there is no such topic yet."""
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
        await self._topics.ensure_one(NewTopic(self._name, self._count, configs=configs))
        await self._partitions.settled()
        return self.find()

    def _open(self, index: int) -> Partition | None:
        try:
            return self._partitions.get(self._name, index)
        except ApiError:
            return None
