"""The records that a node holds, its own among them, in the order of their ids; and a digest of the living.

Rules:
- Two rosters with the same living records have the same digest, whatever way they came about. The dead do not count:
  they are forgotten, not everywhere at the same time.
- A roster has a largest size. When it is full, nobody new fits in.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from headrace.swim.member import Member, record_bytes

DIGEST_BITS = 63  # fits a signed number on any wire


class Roster:
    def __init__(self, max_members: int) -> None:
        self.digest = 0
        self.living = 0
        self._max_members = max_members
        self._members: dict[int, Member] = {}
        self._ids: list[int] = []
        self.view: Mapping[int, Member] = MappingProxyType(self._members)

    @property
    def is_full(self) -> bool:
        return len(self._members) >= self._max_members

    def get(self, node_id: int) -> Member | None:
        return self._members.get(node_id)

    def put(self, record: Member) -> None:
        known = self._members.get(record.node_id)
        if known is None:
            insort(self._ids, record.node_id)
        else:
            self._count(known, -1)
        self._members[record.node_id] = record
        self._count(record, 1)

    def remove(self, node_id: int) -> None:
        self._count(self._members.pop(node_id), -1)
        del self._ids[bisect_left(self._ids, node_id)]

    def between(self, lower: int, upper: int) -> Iterator[Member]:
        for place in range(bisect_left(self._ids, lower), len(self._ids)):
            if self._ids[place] >= upper:
                return
            yield self._members[self._ids[place]]

    def _count(self, record: Member, change: int) -> None:
        if record.is_living:
            self.living += change
            hashed = hashlib.blake2b(record_bytes(record), digest_size=8).digest()
            self.digest ^= int.from_bytes(hashed, "big") >> (64 - DIGEST_BITS)
