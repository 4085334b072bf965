"""The history of leader epochs in one log: which epoch began at which offset.

Rules:
- Epochs and start offsets rise together. An epoch without records is not in the history.
- The history of everything below the recovery point is in the file `leader-epochs`; what lies above it is read from
  the batches again. A file with a bad checksum counts as missing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

UNKNOWN: Final = (-1, -1)
NO_OFFSET: Final = 2**63  # above all


class Epochs:
    """See the module."""

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.latest = -1  # epoch; a plain attribute, since every append looks at it
        self._set(entries if entries is not None else [])

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self._entries = entries
        self.latest = entries[-1][0] if entries else -1

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), the oldest first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """A batch of `epoch` begins at `start_offset`. True if that began a new epoch."""
        if epoch <= self.latest:
            return False
        self._set([*self._entries, (epoch, start_offset)])
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch`, and where it ended: OffsetForLeaderEpoch.

        (-1, -1) if `epoch` is undefined or newer than all we know. An epoch older than all we know ends where the
        oldest known one begins.
        """
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN
        if epoch == self.latest:
            return epoch, log_end_offset
        found = epoch
        for known, start_offset in self._entries:
            if known > epoch:
                return found, start_offset
            found = known
        raise AssertionError("an epoch below the latest has a successor")

    def epoch_at(self, offset: int) -> int:
        """The epoch that `offset` was written in; -1 if unknown."""
        found = -1
        for epoch, start_offset in self._entries:
            if start_offset > offset:
                break
            found = epoch
        return found

    def epoch_from(self, offset: int) -> tuple[int, int]:
        """The epoch that `offset` was written in, -1 if unknown; and the offset from which on it may be another."""
        found = -1
        for epoch, start_offset in self._entries:
            if start_offset > offset:
                return found, start_offset
            found = epoch
        return found, NO_OFFSET

    def truncate_end(self, end_offset: int) -> bool:
        """Forget epochs that begin at or after `end_offset`. True if there were any."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        changed = len(kept) != len(self._entries)
        self._set(kept)
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """Forget epochs that ended at or before `start_offset`. True if that changed anything."""
        older = [entry for entry in self._entries if entry[1] <= start_offset]
        if not older or older == [(older[-1][0], start_offset)]:
            return False
        self._set([(older[-1][0], start_offset), *self._entries[len(older) :]])
        return True

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self._entries)
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, content: bytes | None) -> Epochs | None:
        """None if there is no content, or if it is damaged."""
        if content is None or len(content) < 4 or int.from_bytes(content[:4], "big") != crc32c(content[4:]):
            return None
        return cls(msgspec.msgpack.decode(content[4:], type=list[tuple[int, int]]))
