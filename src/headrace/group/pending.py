"""Offsets that were committed within transactions which have not ended.

Rules (Kafka's):
- They take effect when their producer's commit marker comes, and are dropped when its abort marker comes.
- What was written later counts, whatever ends first: a plain commit, a deletion or the end of a later transaction takes
  out all that was pending for the partition before.
- Taking in the same record again changes nothing: the log may be followed by its own rewriting, or by a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.group.records import OffsetCommit, OffsetKey, Record, encode

Producer = tuple[int, int]  # id and epoch


class _Pending(NamedTuple):
    number: int  # later ones have higher numbers
    producer: Producer
    commit: OffsetCommit


class PendingOffsets:
    """See the module."""

    __slots__ = ("_groups", "_next_number", "_producers")

    def __init__(self) -> None:
        self._groups: dict[str, dict[OffsetKey, dict[int, _Pending]]] = {}  # group -> what -> producer id -> offset
        self._producers: dict[int, dict[OffsetKey, None]] = {}
        self._next_number = 0

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def has(self, key: OffsetKey) -> bool:
        return key in self._groups.get(key.group, ())

    def of(self, group: str) -> list[OffsetKey]:
        return list(self._groups.get(group, ()))

    def groups(self) -> list[str]:
        return list(self._groups)

    def put(self, key: OffsetKey, producer: Producer, commit: OffsetCommit) -> None:
        offsets = self._groups.setdefault(key.group, {}).setdefault(key, {})
        known = offsets.get(producer[0])
        if known is not None and (known.producer, known.commit) == (producer, commit):
            return
        self._next_number += 1
        offsets[producer[0]] = _Pending(self._next_number, producer, commit)
        self._producers.setdefault(producer[0], {})[key] = None

    def drop(self, key: OffsetKey) -> None:
        """Something newer was written."""
        for producer_id in list(self._groups.get(key.group, {}).get(key, ())):
            self._take(key, producer_id)

    def end(self, producer_id: int, *, commit: bool) -> list[tuple[OffsetKey, OffsetCommit]]:
        """The producer's transaction is over: takes its offsets out, and with a commit all that are older."""
        ended = []
        for key in list(self._producers.get(producer_id, ())):
            pending = self._take(key, producer_id)
            ended.append((key, pending.commit))
            others = self._groups.get(key.group, {}).get(key, {})
            for older in [other for other, found in others.items() if commit and found.number < pending.number]:
                self._take(key, older)
        return ended

    def snapshot(self, group: str) -> Iterator[tuple[Producer, list[Record]]]:
        """Batches that rebuild what is pending in a group, in the order in which it was written."""
        found = [(pending, key) for key, offsets in self._groups.get(group, {}).items() for pending in offsets.values()]
        batch: list[Record] = []
        producer: Producer | None = None
        for pending, key in sorted(found, key=lambda one: one[0].number):
            if producer is not None and pending.producer != producer:
                yield producer, batch
                batch = []
            producer = pending.producer
            batch.append(encode(key, pending.commit))
        if producer is not None:
            yield producer, batch

    def _take(self, key: OffsetKey, producer_id: int) -> _Pending:
        keys = self._producers[producer_id]
        del keys[key]
        if not keys:
            del self._producers[producer_id]
        offsets = self._groups[key.group][key]
        pending = offsets.pop(producer_id)
        if not offsets:
            del self._groups[key.group][key]
            if not self._groups[key.group]:
                del self._groups[key.group]
        return pending
