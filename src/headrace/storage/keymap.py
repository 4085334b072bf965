"""The newest offset of each key, in a bounded amount of memory.

Rules:
- The map takes as many keys as its limit has room for, and says so when it is full; it never forgets.
- A short key stands for itself; a long one is known by a cryptographic hash that is longer than any short key, so that
  no two keys ever meet, and nobody can make them meet.
- Offsets may only rise: what is put later is newer.

A table of our own in one block of memory would hold five times as many keys; but a dictionary is ten times as fast,
and so even many keys are done with sooner.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

SHORT_BYTES: Final = 32
HASH_BYTES: Final = 40
ENTRY_BYTES: Final = 240  # the most that a key costs: its bytes, its offset, its place, and room to grow


class KeyMap:
    """See the module. `newest` is the dictionary: `name_of(key)` -> offset."""

    __slots__ = ("capacity", "newest")

    def __init__(self, limit_bytes: int) -> None:
        self.capacity = max(1, limit_bytes // ENTRY_BYTES)
        self.newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.newest)

    def put(self, key: bytes, offset: int) -> bool:
        """Remember that `key` was written at `offset`. False if it is new and there is no room for it."""
        newest = self.newest
        if len(key) > SHORT_BYTES:
            key = blake2b(key, digest_size=HASH_BYTES).digest()
        if len(newest) >= self.capacity and key not in newest:
            return False
        newest[key] = offset
        return True

    def get(self, key: bytes) -> int:
        """The newest offset that was put for `key`; -1 if there is none."""
        if len(key) > SHORT_BYTES:
            key = blake2b(key, digest_size=HASH_BYTES).digest()
        return self.newest.get(key, -1)
