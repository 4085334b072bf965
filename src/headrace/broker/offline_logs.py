"""Logs of this node that are offline: why, and what could bring them back.

Rules:
- Damaged, missing or older ones are copied anew once nobody counts on this node for them, and somebody else leads.
- Those for which there was no space, or no file descriptor, are tried again until they open; that is said once.
- Any other stays offline until the next start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.broker.retry import Retry
from headrace.core.errors import CorruptionError, PassingError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from headrace.broker.image import Image, PartitionRecord

logger = logging.getLogger(__name__)

Place = tuple[str, int]  # topic and partition


class OfflineLogs:
    """By topic and partition."""

    def __init__(self, node_id: int, open_starved: Callable[[], None]) -> None:
        self._node_id = node_id
        self._retry = Retry(open_starved)
        self._known_starved: dict[Place, None] = {}  # that were said to be, and have not been opened since
        self._why: dict[Place, str] = {}
        self.lost: dict[Place, None] = {}  # another replica could mend them
        self.starved: dict[Place, None] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._why

    def why(self, place: Place) -> str | None:
        return self._why.get(place)

    @property
    def sentences(self) -> list[str]:
        return [f"{topic}-{index}: {why}" for (topic, index), why in self._why.items()]

    def of_topic(self, name: str) -> list[Place]:
        return [place for place in self._why if place[0] == name]

    def add(self, place: Place, error: StorageError, *, is_lost: bool = False) -> None:
        self._why[place] = str(error)
        if is_lost or isinstance(error, CorruptionError):
            self.lost[place] = None
        elif isinstance(error, PassingError):
            self.starved[place] = None

    def failed(self, place: Place, error: StorageError) -> None:
        """It could not be opened."""
        self.add(place, error)
        if place not in self._known_starved:
            about = {"topic": place[0], "partition": place[1], "reason": str(error)}
            logger.error("a partition is offline", extra=about)
        if place in self.starved:
            self._known_starved[place] = None
            self._retry.later()

    def opened(self, place: Place) -> None:
        if place in self._known_starved:
            del self._known_starved[place]
            self._retry.succeeded()
            logger.warning("a partition is online again", extra={"topic": place[0], "partition": place[1]})

    def stop(self) -> None:
        self._retry.stop()

    def reopen(self, place: Place) -> None:
        """It is about to be opened again; whether it is copied anew is known until `take_lost`."""
        self._why.pop(place, None)
        self.starved.pop(place, None)

    def take_lost(self, place: Place) -> bool:
        if place not in self.lost:
            return False
        del self.lost[place]
        return True

    def forget(self, place: Place) -> None:
        self.reopen(place)
        self.lost.pop(place, None)
        self._known_starved.pop(place, None)

    # Who counts on them

    def counted_on(self, image: Image, unsure: Iterable[Place]) -> tuple[tuple[UUID, int], ...]:
        """Lost ones (and `unsure` ones) for which the cluster counts on this node though it could count on others."""
        return tuple(
            (image.topics[name].topic_id, index)
            for name, index in dict.fromkeys((*self.lost, *unsure))
            if self.is_one_of_several(image.partition(name, index))
        )

    def is_one_of_several(self, record: PartitionRecord | None) -> bool:
        """Whether this node has everything that is committed, by what was decided, and others have, too."""
        candidates = () if record is None else (*record.isr, *record.elr)
        return self._node_id in candidates and len(candidates) > 1

    def may_open(self, place: Place, record: PartitionRecord) -> bool:
        """Whether what is offline can be tried again."""
        return place in self.starved or (place in self.lost and self.may_copy_anew(record))

    def may_copy_anew(self, record: PartitionRecord) -> bool:
        """Whether nobody counts on what this node has, and somebody else has it."""
        return self._node_id not in (*record.isr, *record.elr) and record.leader >= 0
