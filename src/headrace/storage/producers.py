"""What a log knows of its idempotent producers: the epoch and the last five batches of each.

Rules (Kafka 4's):
- A batch with the sequence range of one of the last five is a duplicate: it is answered with the first offsets.
- Otherwise a batch must go on where the last one ended (2^31 - 1 is followed by 0), or it is out of order. Duplicates
  older than the last five are out of order too: nothing tells them from a gap.
- A new epoch begins at sequence 0; an older epoch is fenced. A producer that the log does not know may begin anywhere,
  since its state may have expired.
- `check` changes nothing; `add` takes what was appended, and never refuses: the log is the truth.
- The state at an offset is rebuilt from a snapshot at or below it and the headers of the batches between.

Transactions are not followed yet. A control batch only moves the producer's epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from crc32c import crc32c

from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.wire.batch import BatchHeader

BATCHES_KEPT: Final = 5
_SEQUENCE_MASK: Final = 2**31 - 1
_CONTROL: Final = 0x20


class Sent(NamedTuple):
    """One batch that a producer sent."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Producer(msgspec.Struct, array_like=True):
    """One producer id in one log."""

    epoch: int
    next_sequence: int  # -1: none was sent in this epoch
    seen_ms: int
    batches: list[Sent]


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    producers: dict[int, Producer]


class Producers:
    """See the module."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, producer_id: int) -> Producer | None:
        return self._known.get(producer_id)

    def items(self) -> list[tuple[int, Producer]]:
        return list(self._known.items())

    def check(self, header: BatchHeader) -> Sent | None:
        """None if the batch may be appended, or the earlier one that it repeats. Raises ApiError."""
        known = self._known.get(header.producer_id)
        if known is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == known.epoch:
            if sequence == known.next_sequence:
                return None
            last_sequence = (sequence + header.last_offset_delta) & _SEQUENCE_MASK
            for sent in known.batches:
                if sent.first_sequence == sequence and sent.last_sequence == last_sequence:
                    return sent
            if known.next_sequence < 0:
                if sequence == 0:
                    return None
                raise _out_of_order(header, 0)
            raise _out_of_order(header, known.next_sequence)
        if epoch < known.epoch:
            raise ApiError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {epoch}, but epoch {known.epoch} was seen",
            )
        if sequence != 0:
            raise _out_of_order(header, 0)
        return None

    def check_all(self, headers: Sequence[BatchHeader]) -> tuple[Sent, Sent] | None:
        """`check` for several batches of one append: all are new, or all are duplicates."""
        found: list[Sent] = []
        before: dict[int, BatchHeader] = {}
        for header in headers:
            if header.producer_id < 0:
                if found:
                    raise _out_of_order(header, -1)
                continue
            sent = None
            previous = before.get(header.producer_id)
            if previous is None or found:
                sent = self.check(header)
            else:
                expected = (previous.base_sequence + previous.last_offset_delta + 1) & _SEQUENCE_MASK
                if header.producer_epoch != previous.producer_epoch or header.base_sequence != expected:
                    raise _out_of_order(header, expected)
            if (sent is not None) != bool(found) and before:
                raise _out_of_order(header, -1)
            before[header.producer_id] = header
            if sent is not None:
                found.append(sent)
        if not found:
            return None
        if len(found) != len(headers):
            raise _out_of_order(headers[0], -1)
        return found[0], found[-1]

    def add(self, header: BatchHeader, base_offset: int, timestamp: int, now_ms: int) -> None:
        """The batch of `header` is in the log at `base_offset`."""
        epoch = header.producer_epoch
        known = self._known.get(header.producer_id)
        if known is None:
            known = self._known[header.producer_id] = Producer(epoch, -1, now_ms, [])
        elif epoch != known.epoch:
            known.epoch = epoch
            known.next_sequence = -1
            known.batches = []
        known.seen_ms = now_ms
        if header.attributes & _CONTROL:
            return
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & _SEQUENCE_MASK
        known.next_sequence = (last_sequence + 1) & _SEQUENCE_MASK
        batches = known.batches
        if len(batches) == BATCHES_KEPT:
            del batches[0]
        batches.append(Sent(header.base_sequence, last_sequence, base_offset, base_offset + delta, timestamp))

    def expire(self, now_ms: int, expiry_ms: int) -> int:
        """Forget producers that were silent for `expiry_ms`; returns how many."""
        silent = [pid for pid, known in self._known.items() if now_ms - known.seen_ms >= expiry_ms]
        for pid in silent:
            del self._known[pid]
        return len(silent)

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(_Snapshot(1, self._known))
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, content: bytes | None) -> Producers | None:
        """None if there is no content, or if it is damaged."""
        if content is None or len(content) < 4 or int.from_bytes(content[:4], "big") != crc32c(content[4:]):
            return None
        try:
            snapshot = msgspec.msgpack.decode(content[4:], type=_Snapshot)
        except msgspec.DecodeError:
            return None
        if snapshot.version != 1:
            return None
        producers = cls()
        producers._known = snapshot.producers
        return producers


def _out_of_order(header: BatchHeader, expected: int) -> ApiError:
    return ApiError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected",
    )
