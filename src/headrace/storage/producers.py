"""What a log knows of its producers: epoch, last five batches, and the transaction that is going on, of each.

Rules (Kafka 4's):
- A batch with the sequence range of one of the last five is a duplicate: it is answered with the first offsets. Not so
  (unlike Kafka) if that one was aborted: a client that lost the answer to a batch, and aborted, may give its sequences
  to the next (librdkafka does), which would be acknowledged and be nowhere. It is refused: a state that clients abort.
- Otherwise a batch must go on where the last one ended (2^31 - 1 is followed by 0), or it is out of order. Duplicates
  older than the last five are out of order too: nothing tells them from a gap.
- A new epoch begins at sequence 0; an older epoch is fenced. A producer that the log does not know may begin anywhere,
  since its state may have expired.
- While a transaction is open, its producer writes nothing else, and no later epoch of it may join (KIP-890). A marker
  ends the transaction and may bring a new epoch, which begins at sequence 0; an older epoch, or one from a coordinator
  that was replaced, is refused.
- Our own batches within a transaction (committed offsets) have no sequence: only their epoch is checked.
- `check` changes nothing; `add` takes what was appended, and never refuses: the log is the truth.
- A producer with an open transaction does not expire. Others do: after a time, and those that were silent for longest
  where there are too many.
- The state at an offset is rebuilt from a snapshot at or below it and the batches between.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from crc32c import crc32c

from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import PRODUCERS_PER_LOG
from headrace.storage.transactions import Marker, Transactions, read_marker
from headrace.wire.batch import CONTROL, TRANSACTIONAL

if TYPE_CHECKING:
    from headrace.core.ports import Buffer
    from headrace.wire.batch import BatchHeader

BATCHES_KEPT: Final = 5
SEQUENCE_MASK: Final = 2**31 - 1
_VERSION: Final = 2
_VERSIONS: Final = (1, _VERSION)  # in the first one nobody had transactions


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
    first_offset: int = -1  # of the transaction that is open; -1: none is
    coordinator_epoch: int = -1  # of the last marker
    aborted_offset: int = -1  # of the last marker that aborted: nothing before it is repeated


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    producers: dict[int, Producer]
    aborted: bool = False  # there are aborted transactions, and the list of them is stored elsewhere


class Producers:
    """See the module."""

    __slots__ = ("_known", "lacks_aborted", "transactions")

    def __init__(self) -> None:
        self._known: dict[int, Producer] = {}
        self.transactions = Transactions()
        self.lacks_aborted = False  # a snapshot was read, and its list of aborted transactions is still to be found

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
            if sequence != known.next_sequence and sequence >= 0:
                last_sequence = (sequence + header.last_offset_delta) & SEQUENCE_MASK
                for sent in known.batches:
                    if sent.first_sequence == sequence and sent.last_sequence == last_sequence:
                        if sent.base_offset < known.aborted_offset:
                            raise ApiError(ErrorCode.invalid_txn_state, "a batch repeats one that was aborted")
                        return sent
                if sequence != max(known.next_sequence, 0):
                    raise _out_of_order(header, max(known.next_sequence, 0))
        elif epoch < known.epoch:
            raise _fenced(header.producer_id, epoch, known)
        elif sequence > 0:
            raise _out_of_order(header, 0)
        if known.first_offset >= 0 and not self._goes_on(known, header):
            raise ApiError(ErrorCode.invalid_txn_state, f"producer {header.producer_id} has another transaction to end")
        return None

    @staticmethod
    def _goes_on(known: Producer, header: BatchHeader) -> bool:
        """Whether a batch belongs to the transaction that is open, or ends it."""
        same_epoch = header.producer_epoch == known.epoch
        return bool(header.attributes & CONTROL or (same_epoch and header.attributes & TRANSACTIONAL))

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, bumped: bool = False
    ) -> None:
        """Whether a marker of ours may be appended. Raises ApiError.

        `bumped`: it ends records of a lower epoch. If those that are open are of its own, it is an old one that comes
        late, after the next transaction has begun.
        """
        known = self._known.get(producer_id)
        if known is None:
            return
        if producer_epoch < known.epoch or (bumped and producer_epoch == known.epoch and known.first_offset >= 0):
            raise _fenced(producer_id, producer_epoch, known)
        if coordinator_epoch < known.coordinator_epoch:
            raise ApiError(
                ErrorCode.transaction_coordinator_fenced,
                f"a coordinator of epoch {coordinator_epoch} comes after one of epoch {known.coordinator_epoch}",
            )

    def check_own(self, producer_id: int, producer_epoch: int) -> None:
        """Whether a batch of our own may be appended within a producer's transaction. Raises ApiError."""
        known = self._known.get(producer_id)
        if known is None:
            return
        if producer_epoch < known.epoch:
            raise _fenced(producer_id, producer_epoch, known)
        if known.first_offset >= 0 and producer_epoch != known.epoch:
            raise ApiError(ErrorCode.invalid_txn_state, f"producer {producer_id} has another transaction to end")

    def is_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open, in this epoch."""
        known = self._known.get(producer_id)
        return known is not None and known.first_offset >= 0 and known.epoch == producer_epoch

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
                expected = (previous.base_sequence + previous.last_offset_delta + 1) & SEQUENCE_MASK
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

    def add(self, header: BatchHeader, base_offset: int, timestamp: int, now_ms: int, data: Buffer = b"") -> None:
        """The batch of `header`, which lies in `data`, is in the log at `base_offset`."""
        epoch = header.producer_epoch
        known = self._known.get(header.producer_id)
        if known is None:
            if len(self._known) >= PRODUCERS_PER_LOG:
                self._make_room()
            known = self._known[header.producer_id] = Producer(epoch, -1, now_ms, [])
        elif epoch != known.epoch:
            known.epoch = epoch
            known.next_sequence = -1
            known.batches = []
        known.seen_ms = now_ms
        if header.attributes & CONTROL:
            marker = read_marker(data, header) if data else None
            if marker is not None:
                self._end(header.producer_id, known, marker, base_offset)
            return
        if header.attributes & TRANSACTIONAL and known.first_offset < 0:
            known.first_offset = base_offset
            self.transactions.begin(header.producer_id, base_offset)
        if header.base_sequence < 0:
            return
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & SEQUENCE_MASK
        known.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        batches = known.batches
        if len(batches) == BATCHES_KEPT:
            del batches[0]
        batches.append(Sent(header.base_sequence, last_sequence, base_offset, base_offset + delta, timestamp))

    def _end(self, producer_id: int, known: Producer, marker: Marker, offset: int) -> None:
        known.coordinator_epoch = marker.coordinator_epoch
        if not marker.commit:
            known.aborted_offset = offset
        if known.first_offset >= 0:
            known.first_offset = -1
            self.transactions.end(producer_id, offset, commit=marker.commit)

    def expire(self, now_ms: int, expiry_ms: int) -> int:
        """Forget producers that were silent for `expiry_ms`; returns how many."""
        silent = [
            pid for pid, known in self._known.items() if now_ms - known.seen_ms >= expiry_ms and known.first_offset < 0
        ]
        for pid in silent:
            del self._known[pid]
        return len(silent)

    def _make_room(self) -> None:
        """Forget a tenth: those that were silent for longest."""
        idle = [(known.seen_ms, pid) for pid, known in self._known.items() if known.first_offset < 0]
        for _, pid in heapq.nsmallest(PRODUCERS_PER_LOG // 10, idle):
            del self._known[pid]

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(_Snapshot(_VERSION, self._known, bool(self.transactions.aborted)))
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, content: bytes | None) -> Producers | None:
        """None if there is no content, or if it is damaged. See `lacks_aborted`."""
        if content is None or len(content) < 4 or int.from_bytes(content[:4], "big") != crc32c(content[4:]):
            return None
        try:
            snapshot = msgspec.msgpack.decode(content[4:], type=_Snapshot)
        except msgspec.DecodeError:
            return None
        if snapshot.version not in _VERSIONS:
            return None
        producers = cls()
        producers._known = snapshot.producers
        producers.lacks_aborted = snapshot.aborted
        ongoing = [(known.first_offset, pid) for pid, known in snapshot.producers.items() if known.first_offset >= 0]
        for first_offset, pid in sorted(ongoing):
            producers.transactions.begin(pid, first_offset)
        return producers


def _fenced(producer_id: int, epoch: int, known: Producer) -> ApiError:
    return ApiError(
        ErrorCode.invalid_producer_epoch, f"producer {producer_id} has epoch {epoch}, but epoch {known.epoch} was seen"
    )


def _out_of_order(header: BatchHeader, expected: int) -> ApiError:
    return ApiError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} was expected",
    )
