"""What a log knows of transactions: who has one open, which ended a moment ago, and which were aborted.

Rules (Kafka's):
- A transaction begins with the producer's first transactional batch and ends with a marker: a control batch of ours.
- The *last stable offset* is where the first transaction begins that a reader may not see yet: it is open, or its
  marker is not below the high watermark. Without any it is the high watermark. It costs nothing if there is none.
- Of the aborted ones it is remembered where each began and ended, so that a reader of committed records can be told
  what to leave out. Everything that lies before the last stable offset as it was after a marker needs no later entry.
- The list of aborted transactions is stored beside the segments before the producers' snapshots that count on it. It is
  a cache: it carries its checksum and the offset up to which it is complete, and is rebuilt from the log if need be.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.core.ports import Buffer
    from headrace.storage.log import Log
    from headrace.storage.stamping import Appended
    from headrace.wire.batch import BatchHeader

ABORT: Final = 0
COMMIT: Final = 1
_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">Bqq")  # version, offset, entries
_CRC_BYTES: Final = 4


class Marker(NamedTuple):
    """The end of a transaction, as it stands in a control batch."""

    commit: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytes:
    """A control batch that ends what the producer has begun."""
    return batch.build(
        [(_KEY.pack(0, COMMIT if marker.commit else ABORT), _VALUE.pack(0, marker.coordinator_epoch))],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        control=True,
        transactional=True,
    )


def read_marker(data: Buffer, header: BatchHeader) -> Marker | None:
    """What a control batch says; None if it is not about transactions, or nothing of it is left."""
    for record in batch.records(memoryview(data), header):
        key, value = record.key or b"", record.value or b""
        if len(key) < _KEY.size or len(value) < _VALUE.size:
            return None
        kind = _KEY.unpack_from(key)[1]
        return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1]) if kind in (ABORT, COMMIT) else None
    return None


def is_commit(key: bytes | None) -> bool:
    """Whether the key of a control record says that a transaction was committed."""
    return key is not None and len(key) >= _KEY.size and bool(_KEY.unpack_from(key)[1] == COMMIT)


def append_marker(
    log: Log,
    producer_id: int,
    producer_epoch: int,
    marker: Marker,
    *,
    leader_epoch: int,
    now_ms: int,
    bumped: bool = False,
) -> Appended:
    """End the producer's transaction in this log. There need be none: the marker fences what comes late all the same.

    Raises ApiError (invalid_producer_epoch, transaction_coordinator_fenced) or StorageError; then nothing was appended.
    """
    log.producers.check_marker(producer_id, producer_epoch, marker.coordinator_epoch, bumped=bumped)
    data = bytearray(build_marker(producer_id, producer_epoch, marker, now_ms))
    return log.append(data, list(batch.headers(data)), leader_epoch=leader_epoch, now_ms=now_ms)


class Aborted:
    """The aborted transactions of a log, in the order of their markers."""

    __slots__ = ("_ends", "_firsts", "_producers", "_stables")

    def __init__(self) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._ends = array("q")  # the markers' offsets
        self._stables = array("q")  # the last stable offset when the marker was written

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, producer_id: int, first_offset: int, marker_offset: int, stable_offset: int) -> None:
        self._producers.append(producer_id)
        self._firsts.append(first_offset)
        self._ends.append(marker_offset)
        self._stables.append(stable_offset)

    def between(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of those that may have records from `start_offset` on and below `end_offset`."""
        found = []
        for number in range(bisect_left(self._ends, start_offset), len(self._ends)):
            if self._firsts[number] < end_offset:
                found.append((self._producers[number], self._firsts[number]))
            if self._stables[number] >= end_offset:
                break  # whatever ended later began later than all that was asked for
        return found

    def entries(self) -> list[tuple[int, int, int]]:
        """(first offset, marker's offset, producer id) of all."""
        return list(zip(self._firsts, self._ends, self._producers, strict=True))

    def forget(self, markers: set[int]) -> None:
        """Nothing is left of the transactions that these markers ended."""
        kept = [number for number, end in enumerate(self._ends) if end not in markers]
        for column in (self._producers, self._firsts, self._ends, self._stables):
            column[:] = array("q", [column[number] for number in kept])

    def forget_from(self, offset: int) -> None:
        """The log ends at `offset` now."""
        self._keep(0, bisect_left(self._ends, offset))

    def forget_before(self, offset: int) -> None:
        """The log begins at `offset` now."""
        self._keep(bisect_left(self._ends, offset), len(self._ends))

    def _keep(self, begin: int, end: int) -> None:
        if begin or end < len(self._ends):
            for column in (self._producers, self._firsts, self._ends, self._stables):
                column[:] = column[begin:end]

    def encode(self, offset: int) -> bytes:
        """All that ended below `offset`, which is all there is."""
        count = len(self._ends)
        numbers = (*self._producers, *self._firsts, *self._ends, *self._stables)
        body = _HEAD.pack(_VERSION, offset, count) + struct.pack(f">{4 * count}q", *numbers)
        return crc32c(body).to_bytes(_CRC_BYTES, "big") + body

    @classmethod
    def decode(cls, content: bytes | None) -> tuple[int, Aborted] | None:
        """(the offset that `encode` was given, the list); None if there is no content, or if it is damaged."""
        if content is None or len(content) < _CRC_BYTES + _HEAD.size:
            return None
        body = content[_CRC_BYTES:]
        if int.from_bytes(content[:_CRC_BYTES], "big") != crc32c(body):
            return None
        version, offset, count = _HEAD.unpack_from(body)
        if version != _VERSION or len(body) != _HEAD.size + 4 * 8 * count:
            return None
        numbers = struct.unpack_from(f">{4 * count}q", body, _HEAD.size)
        found = cls()
        columns = (found._producers, found._firsts, found._ends, found._stables)
        for place, column in enumerate(columns):
            column.extend(numbers[place * count : (place + 1) * count])
        return offset, found


class Transactions:
    """See the module."""

    __slots__ = ("_ended", "_open", "aborted", "unstable")

    def __init__(self) -> None:
        self.aborted = Aborted()
        self.unstable = False  # whether the last stable offset may differ from the high watermark
        self._open: dict[int, int] = {}  # producer id -> first offset, in the order of the offsets
        self._ended: deque[tuple[int, int]] = deque()  # (marker's offset, first offset)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open[producer_id] = first_offset
        self.unstable = True

    def end(self, producer_id: int, marker_offset: int, *, commit: bool) -> None:
        """A marker was written for a transaction that is open."""
        first_offset = self._open.pop(producer_id)
        self._ended.append((marker_offset, first_offset))
        if not commit:
            stable_offset = next(iter(self._open.values()), marker_offset + 1)
            self.aborted.add(producer_id, first_offset, marker_offset, stable_offset)

    def first_unstable(self, high_watermark: int) -> int:
        """Everything below is decided, and below the high watermark."""
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        first = min(next(iter(self._open.values()), high_watermark), high_watermark)
        for _, first_offset in ended:
            first = min(first, first_offset)
        self.unstable = bool(self._open or ended)
        return first
