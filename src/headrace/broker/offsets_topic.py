"""The topic `__consumer_offsets`: how it is found, how it is made.

Rules:
- It is compacted by key and always synced before an acknowledgement, whatever other topics do.
- It has small segments, so that what a rewrite leaves behind can be dropped soon.
- The number of its partitions never changes: it decides where each group lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError

if TYPE_CHECKING:
    from headrace.broker.image import Image
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.broker.topics import Topics
    from headrace.group.settings import GroupSettings

NAME: Final = "__consumer_offsets"
SEGMENT_BYTES_MIN: Final = 1024 * 1024


class StoredOffsetsTopic:
    """See the module."""

    def __init__(
        self, settings: GroupSettings, image: Callable[[], Image], topics: Topics, partitions: Partitions
    ) -> None:
        self._settings = settings
        self._image = image
        self._topics = topics
        self._partitions = partitions

    def find(self) -> list[Partition | None]:
        topic = self._image().topics.get(NAME)
        return [] if topic is None else [self._partition(record.index) for record in topic.partitions]

    async def ensure(self) -> list[Partition | None]:
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "headrace.flush": "ack",
            "segment.bytes": str(max(SEGMENT_BYTES_MIN, self._settings.compact_after_bytes // 4)),
        }
        await self._topics.ensure_one(NewTopic(NAME, self._settings.offsets_partitions, -1, configs=configs))
        return self.find()

    def _partition(self, index: int) -> Partition | None:
        try:
            return self._partitions.get(NAME, index)
        except ApiError:
            return None
