"""Files that fail on demand, and a disk that loses power.

Rules:
- Everything is in memory, and every choice comes from the random generator that the caller passes: a seed replays.
- The power-cut model is as mean as POSIX allows. Only bytes that a successful `sync` covered, and names that
  `sync_directory`, `store` or `rename` covered, are sure to survive; everything younger survives, vanishes, tears, or
  comes back as zeros or garbage, sector by sector, in any order.
- A failed sync loses the pages that it was to write: they stay readable until the power goes, and no later sync saves
  them. That is what Linux does.
- What happens to a disk while nobody looks (`erase`, `put_back`, `overwrite`, `flip`) is durable at once.
- After `power_cut` the old tree is dead; `killed` (kill -9) keeps all that was written.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.core.errors import DiskFailedError, DiskFullError, PassingError, StorageError
from headrace.storage.memory import MemoryLock, check_path
from headrace.testing.platter import Content, Folder, bytes_in, contents_in, copy_of, folder_copy, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from headrace.core.ports import Buffer

Operation = Literal["write", "read", "sync", "store", "rename", "remove", "open", "sync_directory"]


class PowerCutError(BaseException):
    """The power went in the middle of an operation (`cut_power_at`). Not an `Exception`: nobody may handle it."""


@dataclass(slots=True)
class _Fault:
    operation: Operation
    countdown: int  # 1: the next one
    path: str | None
    repeat: bool


class FaultyFile:
    """One open file of a `FaultyFiles`."""

    def __init__(self, tree: FaultyFiles, path: str, content: Content) -> None:
        self._tree = tree
        self._path = path
        self._content = content
        self._size = len(content.current)
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    def append(self, parts: Sequence[Buffer]) -> None:
        self._must_be_open()
        content = b"".join(parts)
        self._content.truncate(self._size)  # what a failed append has left behind
        try:
            self._tree.before("write", self._path)
            room = self._tree.take(len(content))
        except (StorageError, PowerCutError):
            self._content.current += content[: len(content) // 2]
            raise
        self._content.current += content[:room]
        if room < len(content):
            raise DiskFullError(f"appending to {self._path!r} failed: No space left on device (errno 28)")
        self._size += len(content)

    def read_now(self, position: int, length: int) -> bytes | None:
        self._must_be_open()
        if (self._tree.cold or self._content.evicted) and position < self._size:
            return None
        return self._slice(position, length)

    def read(self, position: int, length: int) -> bytes:
        self._must_be_open()
        self._tree.block("read", self._path)
        self._tree.before("read", self._path)
        self._content.evicted = False
        return self._slice(position, length)

    def sync(self) -> None:
        self._must_be_open()
        self._tree.block("sync", self._path)
        try:
            self._tree.before("sync", self._path)
        except StorageError:
            self._content.give_up()
            raise
        self._content.make_firm()

    def truncate(self, size: int) -> None:
        self._must_be_open()
        if not 0 <= size <= self._size:
            raise ValueError(f"cannot cut {self._path!r} of {self._size} bytes to {size}")
        self._tree.before("write", self._path)
        self._tree.give_back(self._size - size)
        self._content.truncate(size)
        self._size = size

    def close(self) -> None:
        self._closed = True

    def _slice(self, position: int, length: int) -> bytes:
        if self._content.unreadable:
            raise _unreadable(self._path)
        return self._content.read(position, min(self._size, position + max(length, 0)))

    def _must_be_open(self) -> None:
        self._tree.must_have_power()
        if self._closed:
            raise StorageError(f"{self._path!r} is closed")


class FaultyFiles:
    """A tree in memory. Without faults it behaves as a disk does."""

    def __init__(self) -> None:
        self._root = Folder()
        self._faults: list[_Fault] = []
        self._dead = False
        self._lock: MemoryLock | None = None
        self._cut_at: int | None = None
        self.space_left: int | None = None  # bytes until ENOSPC; None: no limit
        self.cold = False  # `read_now` finds nothing in the page cache
        self.files_ran_out = False  # no file can be opened: EMFILE; those that are open go on
        self.operations = 0  # that change the disk, so far
        self.on_block: Callable[[str, str], None] | None = None  # called with (operation, path) before a blocking one

    # ------------------------------------------------------------------ the port

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        check_path(path)
        self.before("open", path)
        found = self._find(path)
        if found is None:
            if not create:
                raise DiskFailedError(f"opening {path!r} failed: No such file or directory (errno 2)")
            folder, name = self._parent_of(path)
            found = folder.entries[name] = Content()
        if isinstance(found, Folder):
            raise DiskFailedError(f"opening {path!r} failed: Is a directory (errno 21)")
        return FaultyFile(self, path, found)

    def names(self, path: str) -> list[str]:
        self.must_have_power()
        found = self._find(path)
        return sorted(found.entries) if isinstance(found, Folder) else []

    def exists(self, path: str) -> bool:
        self.must_have_power()
        return self._find(path) is not None

    def load(self, path: str) -> bytes | None:
        if self.files_ran_out and self._find(path) is not None:
            raise PassingError(f"loading {path!r} failed: Too many open files (errno 24)")
        self.block("read", path)
        self.before("read", path)
        found = self._find(path)
        if isinstance(found, Folder):
            raise DiskFailedError(f"loading {path!r} failed: Is a directory (errno 21)")
        if found is not None and found.unreadable:
            raise _unreadable(path)
        return None if found is None else found.read(0, len(found.current))

    def store(self, path: str, content: bytes) -> None:
        check_path(path)
        self.block("store", path)
        folder, name = self._parent_of(path)
        old = folder.entries.get(name)
        if isinstance(old, Folder):
            raise DiskFailedError(f"storing {path!r} failed: Is a directory (errno 21)")
        replacement = Content(bytearray(content), len(content))
        try:
            self.before("store", path)
        except PowerCutError:
            folder.entries[name] = replacement  # renamed, and the directory not synced: either may survive
            raise
        if self.take(len(content)) < len(content):
            raise DiskFullError(f"storing {path!r} failed: No space left on device (errno 28)")
        self.give_back(len(old.current) if old is not None else 0)
        folder.entries[name] = replacement
        self._make_firm(path.rpartition("/")[0])

    def rename(self, old: str, new: str) -> None:
        check_path(old)
        check_path(new)
        self.block("rename", old)
        moved = self._find(old)
        if moved is None:
            raise DiskFailedError(f"renaming {old!r} failed: No such file or directory (errno 2)")
        target = self._find(new)
        full = isinstance(target, Folder) and bool(target.entries)
        if full or (target is not None and type(target) is not type(moved)):
            raise DiskFailedError(f"renaming {old!r} failed: {new!r} is in the way")
        self.before("rename", old)
        source, old_name = self._parent_of(old)
        folder, new_name = self._parent_of(new)
        folder.entries[new_name] = source.entries.pop(old_name)
        # A rename is one step in the journal: both names change, or neither.
        source.firm.pop(old_name, None)
        folder.firm[new_name] = moved
        self._make_firm(old.rpartition("/")[0])
        self._make_firm(new.rpartition("/")[0])

    def remove(self, path: str) -> None:
        check_path(path)
        self.before("remove", path)
        found = self._find(path)
        if found is not None:
            folder, name = self._parent_of(path)
            del folder.entries[name]
            self.give_back(bytes_in(found))

    def sync_directory(self, path: str) -> None:
        self.block("sync_directory", path)
        self.before("sync_directory", path)
        if not isinstance(self._find(path), Folder):
            raise DiskFailedError(f"syncing {path!r} failed: No such file or directory (errno 2)")
        self._make_firm(path)

    def free_bytes(self) -> int:
        return sys.maxsize if self.space_left is None else self.space_left

    def fingerprint(self, path: str) -> int:
        found = self._find(path)
        return 0 if found is None else found.inode

    def lock(self) -> MemoryLock | None:
        if self._lock is not None and self._lock.held:
            return None
        self._lock = MemoryLock()
        return self._lock

    # ------------------------------------------------------------------ faults

    def fail(self, operation: Operation, *, nth: int = 1, path: str | None = None, repeat: bool = False) -> None:
        """Let the nth next operation of a kind (on paths that end in `path`) end in EIO; `repeat`: and all after it."""
        self._faults.append(_Fault(operation, nth, path, repeat))

    def heal(self) -> None:
        """Forget all faults that have not struck yet; give space and files back; reads tell the truth."""
        self._faults.clear()
        self.space_left = None
        self._cut_at = None
        self.files_ran_out = False
        self.heal_reads()

    def fail_reads(self, folder: str) -> None:
        """Let reads of every file that is in a folder now end in EIO; what is written from now on can be read."""
        found = self._find(folder)
        for content in contents_in(found) if found is not None else ():
            content.unreadable = True

    def heal_reads(self) -> None:
        for content in contents_in(self._root):
            content.lies.clear()
            content.unreadable = False

    def cut_power_at(self, operation_number: int) -> None:
        """Raise `PowerCutError` in the middle of the operation with this number (see `operations`)."""
        self._cut_at = operation_number

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file, as a bad disk does."""
        content = self._content_at(path)
        content.current[bit // 8] ^= 1 << bit % 8

    def evict(self, path: str) -> None:
        """Drop a file's pages from the page cache: the next one who wants them waits for the disk."""
        self._content_at(path).evicted = True

    def lie(self, path: str, bit: int) -> None:
        """Let reads show one bit of a file turned, until `heal`."""
        self._content_at(path).lies[bit // 8] = 1 << bit % 8

    def erase(self, path: str) -> None:
        """Lose a file or a whole folder for good, past all faults."""
        folder, name = self._parent_of(path)
        folder.entries.pop(name, None)
        folder.firm.pop(name, None)

    def put(self, path: str, source: FaultyFiles | None) -> None:
        """Put `source`'s copy of a file or directory in the place of ours; without a source, take ours away."""
        if source is None:
            self.erase(path)
        else:
            self.put_back(path, source)

    def put_back(self, path: str, source: FaultyFiles, source_path: str | None = None, *, moved: bool = False) -> None:
        """Put a copy of what another tree has (at `path`, unless said otherwise) in the place of what is here.

        Durable at once; nothing if the other tree has nothing there. `moved`: it is no copy, but the thing itself.
        """
        found = source._find(source_path or path)
        self.erase(path)
        if found is not None:
            folder, name = self._parent_of(path)
            folder.entries[name] = folder.firm[name] = copy_of(found, anew=not moved)

    def overwrite(self, path: str, content: bytes) -> None:
        """Put other bytes in the place of a file, durable at once."""
        found = self._content_at(path)
        found.current[:] = content
        found.make_firm()

    def peek(self, path: str) -> bytes:
        """A file's bytes, past all faults."""
        return bytes(self._content_at(path).current)

    def paths(self) -> list[str]:
        """Every file, sorted."""
        return sorted(walk(self._root, ""))

    def power_cut(self, rng: Random) -> FaultyFiles:
        """The disk as it is found after the power came back."""
        self._dead = True
        after = FaultyFiles()
        after._root = self._root.after_cut(rng)
        return after

    def killed(self) -> FaultyFiles:
        """The disk as the next process finds it after kill -9: the kernel kept all that was written."""
        self._dead = True
        after = FaultyFiles()
        after._root = self._root
        return after

    def copy(self, *, anew: bool = False) -> FaultyFiles:
        """An independent tree with the same bytes, all durable and without faults: a template for many trials.

        `anew`: as file by file, with inodes of their own; otherwise as a disk's image.
        """
        after = FaultyFiles()
        after._root = folder_copy(self._root, anew=anew)
        return after

    # ------------------------------------------------------------------ for FaultyFile

    def must_have_power(self) -> None:
        if self._dead:
            raise DiskFailedError("the power is off")

    def before(self, operation: Operation, path: str) -> None:
        self.must_have_power()
        if self.files_ran_out and operation in ("open", "store", "sync_directory"):
            raise PassingError(f"{operation} of {path!r} failed: Too many open files (errno 24)")
        if operation != "read":
            if self._cut_at == self.operations:
                self._dead = True
                raise PowerCutError(f"in {operation} of {path!r}")
            self.operations += 1
        for fault in list(self._faults):
            if fault.operation == operation and (fault.path is None or path.endswith(fault.path)):
                fault.countdown -= 1
                if fault.countdown <= 0:
                    if not fault.repeat:
                        self._faults.remove(fault)
                    raise DiskFailedError(f"{operation} of {path!r} failed: Input/output error (errno 5)")

    def block(self, operation: str, path: str) -> None:
        if self.on_block is not None:
            self.on_block(operation, path)

    def take(self, count: int) -> int:
        """How many of the bytes fit."""
        if self.space_left is None:
            return count
        if count > self.space_left:
            return self.space_left
        self.space_left -= count
        return count

    def give_back(self, count: int) -> None:
        if self.space_left is not None:
            self.space_left += count

    # ------------------------------------------------------------------ the tree

    def _find(self, path: str) -> Content | Folder | None:
        if path:
            check_path(path)
        found: Content | Folder | None = self._root
        for name in path.split("/") if path else ():
            if not isinstance(found, Folder):
                return None
            found = found.entries.get(name)
        return found

    def _content_at(self, path: str) -> Content:
        found = self._find(path)
        if not isinstance(found, Content):
            raise FileNotFoundError(path)
        return found

    def _parent_of(self, path: str) -> tuple[Folder, str]:
        """The folder that holds the last name; it is made if need be."""
        *parents, name = path.split("/")
        folder = self._root
        for parent in parents:
            child = folder.entries.setdefault(parent, Folder())
            if not isinstance(child, Folder):
                raise DiskFailedError(f"making {path!r} failed: {parent!r} is a file")
            folder = child
        return folder, name

    def _make_firm(self, path: str) -> None:
        """The names in a directory become durable, and the directory's own name with them."""
        found = self._find(path)
        if isinstance(found, Folder):
            found.firm = dict(found.entries)
        folder = self._root
        for name in path.split("/") if path else ():
            child = folder.entries.get(name)
            if not isinstance(child, Folder):
                return
            folder.firm[name] = child
            folder = child


def _unreadable(path: str) -> DiskFailedError:
    return DiskFailedError(f"reading {path!r} failed: Input/output error (errno 5)")
