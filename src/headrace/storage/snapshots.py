"""The producers' state at certain offsets, stored beside the segments.

Rules:
- There is a snapshot where each segment but the first begins, and one where the log ended at its last clean close.
- Snapshots are caches: each carries its checksum, and a bad or missing one only means that more batches are replayed.
- The list of aborted transactions may be long, so it is stored once, up to the newest snapshot, and before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.storage.producers import Producers
from headrace.storage.segment import segment_name
from headrace.storage.transactions import Aborted

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.sync import Chores

EXTENSION: Final = ".producers"
ABORTED: Final = "aborted-transactions"


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
        if aborted := producers.transactions.aborted:
            chores.snapshots[f"{self._folder}/{ABORTED}"] = aborted.encode(offset)
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
        """The newest snapshot that is whole, and its offset; -1 and nobody if there is none. Blocking.

        It may lack its aborted transactions.
        """
        for offset in sorted(self.offsets, reverse=True):
            content = unstored.snapshots.get(self.path(offset)) if unstored is not None else None
            producers = Producers.decode(content or self._files.load(self.path(offset)))
            if producers is not None:
                if producers.lacks_aborted:
                    self._load_aborted(producers, offset, unstored)
                return offset, producers
            self.offsets.discard(offset)
        return -1, Producers()

    def _load_aborted(self, producers: Producers, offset: int, unstored: Chores | None) -> None:
        path = f"{self._folder}/{ABORTED}"
        content = unstored.snapshots.get(path) if unstored is not None else None
        stored = Aborted.decode(content or self._files.load(path))
        if stored is not None and stored[0] >= offset:
            # What it has from `offset` on may be from before a cut; the log knows better.
            producers.transactions.aborted = stored[1]
            producers.transactions.aborted.forget_from(offset)
            producers.lacks_aborted = False
