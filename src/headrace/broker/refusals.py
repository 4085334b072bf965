"""Batches that were refused for a passing reason: what their producers sent behind them must not be taken first.

A log takes a producer that it does not know at any sequence, since it may have forgotten it. So the first batch of a
producer may be refused (its leader is just being elected), and the one behind it taken: the first would then be out of
order for ever, and clients that trust the order of acknowledgements (librdkafka) would take it for written.

Rules:
- Noted is the lowest sequence that was refused, by producer, epoch and partition. Until it has come again, higher ones
  are out of order: clients send all of them again, in order.
- It ends when the log knows the producer: from then on the log is the judge. And it ends after a minute: this is about
  requests that are under way, not about producers that were forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.wire.batch import BatchHeader

Place = tuple[str, "UUID | None", int]  # as requests name it: topic, topic id, partition

PASSING: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
MOST: Final = 1000
LASTING_S: Final = 60.0


class Refusals:
    """See the module."""

    def __init__(self) -> None:
        # And when it was refused last; the oldest comes first.
        self._lowest: dict[tuple[Place, int, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._lowest)

    def note(self, place: Place, header: BatchHeader, now_s: float) -> None:
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        self._forget(now_s)
        key = (place, header.producer_id, header.producer_epoch)
        lowest, _ = self._lowest.pop(key, (header.base_sequence, now_s))
        self._lowest[key] = min(lowest, header.base_sequence), now_s
        if len(self._lowest) > MOST:
            del self._lowest[next(iter(self._lowest))]

    def check(self, place: Place, header: BatchHeader, now_s: float, *, is_known: bool) -> None:
        """Before a batch is appended. Raises ApiError."""
        self._forget(now_s)
        key = (place, header.producer_id, header.producer_epoch)
        noted = self._lowest.get(key)
        if noted is None:
            return
        lowest, _ = noted
        if not is_known and header.base_sequence > lowest:
            raise ApiError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, but {lowest} was refused before",
            )
        del self._lowest[key]

    def _forget(self, now_s: float) -> None:
        """What is too old. In quiet times nothing is left, and a Produce need not ask."""
        while self._lowest:
            key, (_, noted_s) = next(iter(self._lowest.items()))
            if now_s - noted_s <= LASTING_S:
                return
            del self._lowest[key]
