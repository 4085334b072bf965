"""What has to reach the disk, and in which order.

Rules:
- A sync is made by the log's owner and run by a worker thread. It holds all that it needs; it does not look at the log.
- The order is the promise: batches first, then the names of new files, then what describes them (epochs, start
  offset, indexes, producers), then the recovery point, and removals at the very end.
- A full disk keeps descriptions from being stored, not batches from being durable: the rest waits for the next sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import DiskFullError, StorageError
from headrace.storage.segment import Segment, rewrite

if TYPE_CHECKING:
    from headrace.core.ports import Files


class Chores:
    """What is to be stored or removed at the next sync."""

    __slots__ = ("indexes", "removals", "snapshots", "stores")

    def __init__(self) -> None:
        self.stores: dict[str, bytes] = {}  # path -> content, atomic and durable
        self.indexes: list[Segment] = []
        self.snapshots: dict[str, bytes] = {}  # path -> content with its own checksum
        self.removals: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.stores or self.indexes or self.snapshots or self.removals)

    def put_back(self, older: Chores) -> None:
        """`older` were not done; what came since is newer."""
        self.stores = {**older.stores, **self.stores}
        self.indexes = older.indexes + self.indexes
        self.snapshots = {**older.snapshots, **self.snapshots}
        self.removals = older.removals + self.removals


class Sync:
    """What has to reach the disk so that everything below `end_offset` is durable."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        end_offset: int,
        place: tuple[Segment, int],
        segments: list[Segment],
        new_names: bool,
        chores: Chores,
        checkpoint: tuple[str, bytes] | None,
    ) -> None:
        self.end_offset = end_offset
        self.place = place  # segment and position of `end_offset`
        self.segments = segments  # that may have unsynced bytes
        self.chores = chores
        self.checkpoint = checkpoint
        self.chores_done = False
        self._files = files
        self._path = path
        self._new_names = new_names

    def run(self) -> None:
        """Blocking; for a worker thread. Raises DiskFailedError."""
        for segment in self.segments:
            try:
                segment.file.sync()
            except StorageError:
                if not segment.removed:
                    raise
        if self._new_names:
            self._files.sync_directory(self._path)
        try:
            self._run_chores()
            self.chores_done = True
        except DiskFullError:
            pass

    def _run_chores(self) -> None:
        files, chores = self._files, self.chores
        for path, content in chores.stores.items():
            files.store(path, content)
        for segment in chores.indexes:
            if not segment.removed:
                segment.store_index()
        for path, content in chores.snapshots.items():
            rewrite(files, path, content)
        if self.checkpoint is not None:
            files.store(*self.checkpoint)
        for path in chores.removals:
            files.remove(path)
