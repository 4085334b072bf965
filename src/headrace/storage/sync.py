"""What has to reach the disk, and in which order.

Rules:
- A sync is made by the log's owner and run by a worker thread. It holds all that it needs; it does not look at the log,
  except that it stops when that is closed or deleted: then nothing is wrong with the disk.
- The order is the promise: batches first, then the names of new files, then what describes them: indexes, producers,
  and only then the start offset (a log that begins later cannot replay its producers from what lies before) and the
  epochs. Then the recovery point, and removals at the very end.
- A full disk keeps descriptions from being stored, not batches from being durable: they wait for the next sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from headrace.core.errors import CorruptionError, DiskFailedError, StorageError
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.shelf import Shelf

RECOVERY_POINT: Final = "recovery-point"
CHECKPOINT_BYTES: Final = 16 * 1024 * 1024  # appended bytes after which a sync moves the recovery point, too


def encode_offset(offset: int) -> bytes:
    """The content of a one-number file."""
    body = f"{offset}\n".encode()
    return body + f"{crc32c(body):08x}\n".encode()


def decode_offset(content: bytes | None) -> int | None:
    """None if there is no content, or if it is damaged."""
    if content is None:
        return None
    body, newline, check = content.partition(b"\n")
    if not body.isdigit() or check != f"{crc32c(body + newline):08x}\n".encode():
        return None
    return int(body)


class Chores:
    """What is to be stored or removed at the next sync."""

    __slots__ = ("indexes", "removals", "snapshots", "stores")

    def __init__(self) -> None:
        self.stores: dict[str, bytes] = {}  # path -> content, atomic and durable
        self.indexes: list[Segment] = []
        self.snapshots: dict[str, bytes] = {}  # the same, and stored before the others
        self.removals: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.stores or self.indexes or self.snapshots or self.removals)

    def put_back(self, older: Chores) -> None:
        """`older` were not done; what came since is newer."""
        self.stores = {**older.stores, **self.stores}
        self.indexes = older.indexes + self.indexes
        self.snapshots = {**older.snapshots, **self.snapshots}
        written = {*self.stores, *self.snapshots}
        self.removals = [path for path in older.removals if path not in written] + self.removals


class Sync:
    """What has to reach the disk so that everything below `end_offset` is durable."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        end_offset: int,
        place: tuple[Segment, int],
        shelf: Shelf,
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
        self._shelf = shelf

    def run(self) -> None:
        """Blocking; for a worker thread. Raises DiskFailedError."""
        try:
            self._run()
        except StorageError:
            if not self._shelf.closed:
                raise

    def _run(self) -> None:
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
        except (DiskFailedError, CorruptionError):
            raise
        except StorageError:
            pass  # no space, no descriptors: that passes

    @property
    def stored_start_offset(self) -> int:
        """The start offset among the chores; 0 if there is none."""
        for path, content in self.chores.stores.items():
            if path.endswith("/start-offset"):
                return decode_offset(content) or 0
        return 0

    def _run_chores(self) -> None:
        for chore in self._in_order():
            if self._shelf.closed:
                return  # the log was deleted: its directory must not come into being again
            chore()

    def _in_order(self) -> Iterator[Callable[[], None]]:
        files, chores = self._files, self.chores
        for segment in chores.indexes:
            if not segment.removed and not segment.replaced:
                yield segment.store_index
        for path, content in chores.snapshots.items():
            yield partial(files.store, path, content)
        # In this order the start offset comes before the epochs, which may have been forgotten up to there.
        for path, content in sorted(chores.stores.items(), reverse=True):
            yield partial(files.store, path, content)
        if self.checkpoint is not None:
            yield partial(files.store, *self.checkpoint)
        for path in chores.removals:
            yield partial(files.remove, path)


class Backlog:
    """What a log has not made durable yet."""

    __slots__ = (
        "_files",
        "_path",
        "appended_bytes",
        "checkpoint_due",
        "chores",
        "handed",
        "new_names",
        "recovery_point",
        "recut",
    )

    def __init__(self, files: Files, path: str, recovery_point: int) -> None:
        self._files = files
        self._path = path
        self.recovery_point = recovery_point
        self.chores = Chores()
        self.new_names = False  # files were made whose names are not durable
        self.recut: list[Segment] = []  # segments that were cut, which is not synced
        self.checkpoint_due = False
        self.appended_bytes = 0  # since the last checkpoint
        self.handed: Sync | None = None  # the sync that is under way

    def begin(self, shelf: Shelf, end_offset: int, flushed_offset: int, *, checkpoint: bool) -> Sync | None:
        """Everything up to `end_offset`, if there is anything to do."""
        if self.handed is not None:  # it was given up, or is still running: its chores are not known to be done
            self._take_back(self.handed)
        checkpoint = checkpoint or self.checkpoint_due or self.appended_bytes >= CHECKPOINT_BYTES
        checkpoint = checkpoint and end_offset != self.recovery_point
        if end_offset == flushed_offset and not (self.chores or self.recut or checkpoint):
            return None
        segments = [segment for segment in self.recut if segment.end_offset <= flushed_offset]
        for segment in reversed(shelf.segments):
            if segment.end_offset <= flushed_offset:
                break
            segments.append(segment)
        self.handed = Sync(
            self._files,
            self._path,
            end_offset=end_offset,
            place=(shelf.active, shelf.active.size),
            shelf=shelf,
            segments=segments,
            new_names=self.new_names,
            chores=self.chores,
            checkpoint=self._checkpoint_at(end_offset) if checkpoint else None,
        )
        self.chores = Chores()
        return self.handed

    def end(self, sync: Sync, shelf: Shelf) -> None:
        """The sync succeeded."""
        if sync is not self.handed:
            return
        self.handed = None
        self.recut = []
        self.new_names = shelf.active is not sync.place[0]
        if not sync.chores_done:
            self._take_back(sync)
        elif sync.checkpoint is not None:
            self.recovery_point = sync.end_offset
            self.checkpoint_due = self.new_names
            self.appended_bytes = 0

    def _take_back(self, sync: Sync) -> None:
        self.handed = None
        self.chores.put_back(sync.chores)
        self.checkpoint_due |= sync.checkpoint is not None

    def lower_recovery_point(self, offset: int) -> None:
        """Durable at once. Blocking."""
        self._files.store(*self._checkpoint_at(offset))
        self.recovery_point = offset

    def _checkpoint_at(self, offset: int) -> tuple[str, bytes]:
        return f"{self._path}/{RECOVERY_POINT}", encode_offset(offset)
