"""What becomes of the transactions that compaction meets on its way through a log.

Rules (Kafka's):
- Batches of an aborted transaction may go at once; those of a committed one are records like all others.
- A marker may go once nothing is left of its transaction, and not before `delete.retention.ms` have passed since then:
  a reader that has seen some of the records must be able to see the marker.
- Nothing at or above the last stable offset is ever asked about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.wire.batch import is_transactional

if TYPE_CHECKING:
    from headrace.wire.batch import BatchHeader


class Fates:
    """Asked about every batch of a log, in order."""

    __slots__ = ("_aborting", "_coming", "_seen")

    def __init__(self, aborted: Iterable[tuple[int, int, int]]) -> None:
        """`aborted` are (first offset, marker's offset, producer id)."""
        self._coming = deque(sorted(aborted))
        self._aborting: dict[int, int] = {}  # producer id -> offset of the marker that is to come
        self._seen: set[int] = set()  # producers of whose transaction something is left

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch that is no marker belongs to an aborted transaction."""
        if not is_transactional(header):
            return False
        self._go_on(header)
        producer_id = header.producer_id
        self._seen.add(producer_id)
        return header.base_offset < self._aborting.get(producer_id, -1)

    def ends_nothing(self, marker: BatchHeader) -> bool:
        """Whether nothing is left of the transaction that a marker ends."""
        self._go_on(marker)
        producer_id = marker.producer_id
        self._aborting.pop(producer_id, None)
        if producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        return False

    def _go_on(self, header: BatchHeader) -> None:
        coming = self._coming
        last_offset = header.base_offset + header.last_offset_delta
        while coming and coming[0][0] <= last_offset:
            _, marker_offset, producer_id = coming.popleft()
            if marker_offset >= header.base_offset:
                self._aborting[producer_id] = marker_offset
