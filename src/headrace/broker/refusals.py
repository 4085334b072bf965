"""Batches that were refused for a passing reason: the batches behind them must be refused for the same reason.

An idempotent producer has up to five batches under way. If one of them is refused for a reason that passes (the disk is
full for a second, the leader is just being elected) and the reason has passed when the next one arrives, that one is
out of order. Two things would go wrong:
- A log that does not know the producer accepts any sequence, since it may have forgotten it. The refused batch would be
  out of order for ever, and clients that trust the order of acknowledgements (librdkafka) would take it for written.
- A log that knows the producer answers OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then begins a new epoch in all
  partitions and sends again what may have been appended.
Refused for the same reason, all of them are sent again, in order.

Rules:
- Noted is the lowest sequence that was refused, by producer, epoch and partition, with the reason. A batch that the log
  has already is not noted.
- The log stays the judge of producers that it knows: what it accepts is accepted. Its OUT_OF_ORDER_SEQUENCE_NUMBER is
  replaced by the reason of the noted refusal.
- A refusal excuses as many batches behind it as can have been under way with it. A further one says that the producer
  was told of the refusal and has given up what was refused: then the log decides, and the producer begins a new epoch.
  So nobody waits for a batch that never comes.
- A note ends when its batch arrives again, and after a minute. There is a fixed number of notes; the oldest goes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.producers import BATCHES_KEPT, SEQUENCE_MASK

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.storage.producers import Producers
    from headrace.wire.batch import BatchHeader

Place = tuple[str, "UUID | None", int]  # as requests name it: topic, topic id, partition
Key = tuple[Place, int, int]  # and producer id, producer epoch

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
UNDER_WAY_BEHIND: Final = BATCHES_KEPT - 1  # Kafka's clients have at most five requests in flight
MOST: Final = 10_000
LASTING_S: Final = 60.0


class BehindRefusedError(ApiError):
    """A batch is refused because one before it was. Not a reason of its own: it is never noted."""


class _Note:
    """One refused batch."""

    __slots__ = ("behind", "code", "noted_s", "reason", "sequence")

    def __init__(self, sequence: int, error: ApiError, noted_s: float) -> None:
        self.sequence = sequence  # the lowest that was refused
        self.code = error.code
        self.reason = error.message or error.code.name
        self.noted_s = noted_s  # when it was refused last
        self.behind = 0  # batches that were refused because of it, since then


class Refusals:
    """The refused batches that are waited for. False while there are none: then a Produce need not ask."""

    def __init__(self) -> None:
        self._notes: dict[Key, _Note] = {}  # in the order of `noted_s`

    def __len__(self) -> int:
        return len(self._notes)

    def note(
        self, place: Place, header: BatchHeader, error: ApiError, now_s: float, producers: Producers | None = None
    ) -> None:
        """A batch was refused for a passing reason. `producers`: those of the partition's log, if it is here."""
        if header.producer_id < 0 or header.base_sequence < 0 or isinstance(error, BehindRefusedError):
            return
        self._forget(now_s)
        if producers is not None and _has(producers, header):
            return
        key = (place, header.producer_id, header.producer_epoch)
        known = self._notes.get(key)
        if known is not None and _is_behind(header.base_sequence, known.sequence):
            return  # refused in its own right, but the one before it is waited for
        self._notes.pop(key, None)
        self._notes[key] = _Note(header.base_sequence, error, now_s)
        if len(self._notes) > MOST:
            del self._notes[next(iter(self._notes))]

    def check(self, place: Place, header: BatchHeader, now_s: float, *, is_known: bool) -> None:
        """Before a batch is appended. `is_known`: the log knows the producer, and is the judge of its sequences.

        Raises BehindRefusedError.
        """
        self._forget(now_s)
        key = (place, header.producer_id, header.producer_epoch)
        note = self._notes.get(key)
        if note is not None and note.sequence == header.base_sequence:
            del self._notes[key]
        elif not is_known and (reason := self._reason(key, header)) is not None:
            raise reason

    def reason_of(self, place: Place, header: BatchHeader, now_s: float) -> ApiError | None:
        """Why a batch that is out of order is refused; None: there is no other reason."""
        self._forget(now_s)
        return self._reason((place, header.producer_id, header.producer_epoch), header)

    def _reason(self, key: Key, header: BatchHeader) -> BehindRefusedError | None:
        note = self._notes.get(key)
        if note is None or not _is_behind(header.base_sequence, note.sequence):
            return None
        if note.behind == UNDER_WAY_BEHIND:
            del self._notes[key]  # given up
            return None
        note.behind += 1
        return BehindRefusedError(
            note.code,
            f"producer {header.producer_id} sent sequence {header.base_sequence} before {note.sequence} was accepted, "
            f"which was refused: {note.reason}",
        )

    def _forget(self, now_s: float) -> None:
        """Drop notes that are too old."""
        while self._notes:
            key, note = next(iter(self._notes.items()))
            if now_s - note.noted_s <= LASTING_S:
                return
            del self._notes[key]


def _is_behind(sequence: int, other: int) -> bool:
    """Whether a batch comes after another; sequences begin again at 0."""
    return 0 < (sequence - other) & SEQUENCE_MASK <= SEQUENCE_MASK // 2


def _has(producers: Producers, header: BatchHeader) -> bool:
    """Whether the log has a batch already: a copy that arrives late, and is not waited for."""
    known = producers.get(header.producer_id)
    if known is None or known.epoch != header.producer_epoch or known.next_sequence < 0:
        return False
    return _is_behind(known.next_sequence, header.base_sequence)
