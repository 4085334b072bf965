"""The producers' state at certain offsets, stored beside the segments.

Rules:
- There is a snapshot where each segment but the first begins, and one where the log ended at its last clean close.
- Snapshots are caches: each carries its checksum, and a bad or missing one only means that more batches are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.storage.producers import Producers
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.sync import Chores

EXTENSION: Final = ".producers"


class Snapshots:
    """See the module. Changes are noted as chores for the next sync."""

    __slots__ = ("_files", "_folder", "offsets")

    def __init__(self, files: Files, folder: str, offsets: Iterable[int] = ()) -> None:
        self._files = files
        self._folder = folder
        self.offsets = set(offsets)

    def path(self, offset: int) -> str:
        return f"{self._folder}/{segment_name(offset)}{EXTENSION}"

    def take(self, offset: int, producers: Producers, chores: Chores) -> None:
        """Remember the producers as of `offset`."""
        self.offsets.add(offset)
        path = self.path(offset)
        chores.snapshots[path] = producers.encode()
        if path in chores.removals:
            chores.removals.remove(path)

    def keep(self, needed: set[int], chores: Chores) -> None:
        """Forget all but those at the offsets `needed`."""
        for offset in sorted(self.offsets - needed):
            self.offsets.discard(offset)
            chores.snapshots.pop(self.path(offset), None)
            chores.removals.append(self.path(offset))

    def newest(self, unstored: Chores | None = None) -> tuple[int, Producers]:
        """The newest snapshot that is whole, and its offset; -1 and nobody if there is none. Blocking."""
        for offset in sorted(self.offsets, reverse=True):
            content = unstored.snapshots.get(self.path(offset)) if unstored is not None else None
            producers = Producers.decode(content or self._files.load(self.path(offset)))
            if producers is not None:
                return offset, producers
            self.offsets.discard(offset)
        return -1, Producers()
