"""Logs of this node that are offline: why, and what could bring them back.

Rules:
- Damaged, missing or older ones are copied anew once nobody counts on this node for them, and somebody else leads.
- Those for which there was no room are opened when there is some.
- Any other stays offline until the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import CorruptionError, DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from headrace.broker.image import Image, PartitionRecord

Place = tuple[str, int]  # topic and partition


class OfflineLogs:
    """By topic and partition."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
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
        elif isinstance(error, DiskFullError):
            self.starved[place] = None

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

    def may_copy_anew(self, record: PartitionRecord) -> bool:
        """Whether nobody counts on what this node has, and somebody else has it."""
        return self._node_id not in (*record.isr, *record.elr) and record.leader >= 0
