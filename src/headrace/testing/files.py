"""Files that fail on demand, and a disk that loses power.

Rules:
- Everything is in memory, and every choice comes from the random generator that the caller passes: a seed replays.
- The power-cut model is as mean as POSIX allows. Only bytes that a successful `sync` covered, and names that
  `sync_directory`, `store` or `rename` covered, are sure to survive; everything younger survives, vanishes, tears, or
  comes back as zeros or garbage, sector by sector, in any order.
- A failed sync loses the pages that it was to write: they stay readable until the power goes, and no later sync saves
  them. That is what Linux does.
- After `power_cut` the old tree is dead; `killed` (kill -9) keeps all that was written.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final, Literal

from headrace.core.errors import DiskFailedError, DiskFullError, StorageError
from headrace.storage.memory import MemoryLock, check_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from headrace.core.ports import Buffer

Operation = Literal["write", "read", "sync", "store", "rename", "remove", "open", "sync_directory"]
_INODES: Final = count(1)
SECTOR_BYTES: Final = 512  # what a disk writes whole; file systems deal in larger pages


class PowerCutError(BaseException):
    """The power went in the middle of an operation (`cut_power_at`). Not an `Exception`: nobody may handle it."""


@dataclass(slots=True)
class _Fault:
    operation: Operation
    countdown: int  # 1: the next one
    path: str | None
    repeat: bool


@dataclass(slots=True, eq=False)
class _Content:
    """A file's bytes, and what of them is on the platter: `current[:firm] + cut_off`."""

    current: bytearray = field(default_factory=bytearray)
    firm: int = 0
    cut_off: bytes = b""  # durable bytes that a truncate has dropped, while no sync has covered the truncate
    lost: list[tuple[int, int]] = field(default_factory=list)  # ranges that a failed sync has given up
    inode: int = field(default_factory=_INODES.__next__)

    def truncate(self, size: int) -> None:
        if size < self.firm:
            self.cut_off = bytes(self.current[size : self.firm]) + self.cut_off
            self.firm = size
        del self.current[size:]

    def make_firm(self) -> None:
        self.firm = len(self.current)
        self.cut_off = b""

    def give_up(self) -> None:
        if self.firm < len(self.current):
            self.lost.append((self.firm, len(self.current)))

    def after_cut(self, rng: Random) -> bytearray:
        survivor = self.current[: self.firm]
        if self.cut_off and rng.random() < 0.5:
            survivor += self.cut_off
        elif self.firm < len(self.current):
            survivor += _torn(bytes(self.current[self.firm :]), self.firm, rng)
        for start, end in self.lost:
            end = min(end, len(survivor))
            if start < end:
                survivor[start:end] = bytes(end - start)
        return survivor


def _torn(fresh: bytes, position: int, rng: Random) -> bytes:
    """What may be left of bytes that were written at `position` and not synced. A sector is written or it is not."""
    fate = rng.choice(("gone", "whole", "torn", "zeros", "garbage", "holes"))
    cut = rng.randrange(len(fresh) + 1)
    sector = max(0, cut - (position + cut) % SECTOR_BYTES)
    if fate == "gone":
        return b""
    if fate == "whole":
        return fresh
    if fate == "torn":
        return fresh[:cut]
    if fate == "zeros":
        return fresh[:sector] + bytes(len(fresh) - sector)
    if fate == "garbage":
        return fresh[:sector] + rng.randbytes(len(fresh) - sector)
    edges = [0, *range(SECTOR_BYTES - position % SECTOR_BYTES, len(fresh), SECTOR_BYTES), len(fresh)]
    return b"".join(
        fresh[start:end] if rng.random() < 0.5 else bytes(end - start) for start, end in pairwise(edges) if start < end
    )


@dataclass(slots=True, eq=False)
class _Folder:
    """A directory's names, and the names on the platter."""

    entries: dict[str, _Content | _Folder] = field(default_factory=dict)
    firm: dict[str, _Content | _Folder] = field(default_factory=dict)
    inode: int = field(default_factory=_INODES.__next__)

    def after_cut(self, rng: Random) -> _Folder:
        kept = _Folder(inode=self.inode)
        for name in sorted({*self.entries, *self.firm}):
            now, before = self.entries.get(name), self.firm.get(name)
            survivor = now if now is before or rng.random() < 0.5 else before
            if survivor is None:
                continue
            if isinstance(survivor, _Folder):
                kept.entries[name] = survivor.after_cut(rng)
            else:
                content = survivor.after_cut(rng)
                kept.entries[name] = _Content(content, len(content), inode=survivor.inode)
        kept.firm = dict(kept.entries)
        return kept


class FaultyFile:
    """One open file of a `FaultyFiles`."""

    def __init__(self, tree: FaultyFiles, path: str, content: _Content) -> None:
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
        if self._tree.cold and position < self._size:
            return None
        return self._slice(position, length)

    def read(self, position: int, length: int) -> bytes:
        self._must_be_open()
        self._tree.block("read", self._path)
        self._tree.before("read", self._path)
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
        return bytes(self._content.current[position : min(self._size, position + max(length, 0))])

    def _must_be_open(self) -> None:
        self._tree.must_have_power()
        if self._closed:
            raise StorageError(f"{self._path!r} is closed")


class FaultyFiles:
    """A tree in memory. Without faults it behaves as a disk does."""

    def __init__(self) -> None:
        self._root = _Folder()
        self._faults: list[_Fault] = []
        self._dead = False
        self._lock: MemoryLock | None = None
        self._cut_at: int | None = None
        self.space_left: int | None = None  # bytes until ENOSPC; None: no limit
        self.cold = False  # `read_now` finds nothing in the page cache
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
            found = folder.entries[name] = _Content()
        if isinstance(found, _Folder):
            raise DiskFailedError(f"opening {path!r} failed: Is a directory (errno 21)")
        return FaultyFile(self, path, found)

    def names(self, path: str) -> list[str]:
        self.must_have_power()
        found = self._find(path)
        return sorted(found.entries) if isinstance(found, _Folder) else []

    def exists(self, path: str) -> bool:
        self.must_have_power()
        return self._find(path) is not None

    def load(self, path: str) -> bytes | None:
        self.block("read", path)
        self.before("read", path)
        found = self._find(path)
        if isinstance(found, _Folder):
            raise DiskFailedError(f"loading {path!r} failed: Is a directory (errno 21)")
        return None if found is None else bytes(found.current)

    def store(self, path: str, content: bytes) -> None:
        check_path(path)
        self.block("store", path)
        folder, name = self._parent_of(path)
        old = folder.entries.get(name)
        if isinstance(old, _Folder):
            raise DiskFailedError(f"storing {path!r} failed: Is a directory (errno 21)")
        replacement = _Content(bytearray(content), len(content))
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
        full = isinstance(target, _Folder) and bool(target.entries)
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
            self.give_back(_bytes_in(found))

    def sync_directory(self, path: str) -> None:
        self.block("sync_directory", path)
        self.before("sync_directory", path)
        if not isinstance(self._find(path), _Folder):
            raise DiskFailedError(f"syncing {path!r} failed: No such file or directory (errno 2)")
        self._make_firm(path)

    def free_bytes(self) -> int:
        return sys.maxsize if self.space_left is None else self.space_left

    def lock(self) -> MemoryLock | None:
        if self._lock is not None and self._lock.held:
            return None
        self._lock = MemoryLock()
        return self._lock

    def fingerprint(self, path: str) -> int:
        found = self._find(path)
        return 0 if found is None else found.inode

    # ------------------------------------------------------------------ faults

    def fail(self, operation: Operation, *, nth: int = 1, path: str | None = None, repeat: bool = False) -> None:
        """Let the nth next operation of a kind (on paths that end in `path`) end in EIO; `repeat`: and all after it."""
        self._faults.append(_Fault(operation, nth, path, repeat))

    def heal(self) -> None:
        """Forget all faults that have not struck yet; give space back."""
        self._faults.clear()
        self.space_left = None
        self._cut_at = None

    def cut_power_at(self, operation_number: int) -> None:
        """Raise `PowerCutError` in the middle of the operation with this number (see `operations`)."""
        self._cut_at = operation_number

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit of a file, as a bad disk does."""
        content = self._content_at(path)
        content.current[bit // 8] ^= 1 << bit % 8

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
        return sorted(_walk(self._root, ""))

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

    def copy(self) -> FaultyFiles:
        """An independent tree with the same bytes, all durable and without faults: a template for many trials."""
        after = FaultyFiles()
        after._root = _copy(self._root)
        return after

    def put(self, path: str, source: FaultyFiles | None) -> None:
        """Put `source`'s copy of a file or directory in the place of ours; without a source, take ours away."""
        folder, name = self._parent_of(path)
        folder.entries.pop(name, None)
        if source is not None and (found := source._find(path)) is not None:
            holder = _copy(_Folder({name: found}), anew=True)
            folder.entries[name] = holder.entries[name]
        self._make_firm(path.rpartition("/")[0])

    # ------------------------------------------------------------------ for FaultyFile

    def must_have_power(self) -> None:
        if self._dead:
            raise DiskFailedError("the power is off")

    def before(self, operation: Operation, path: str) -> None:
        self.must_have_power()
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

    def _find(self, path: str) -> _Content | _Folder | None:
        if path:
            check_path(path)
        found: _Content | _Folder | None = self._root
        for name in path.split("/") if path else ():
            if not isinstance(found, _Folder):
                return None
            found = found.entries.get(name)
        return found

    def _content_at(self, path: str) -> _Content:
        found = self._find(path)
        if not isinstance(found, _Content):
            raise FileNotFoundError(path)
        return found

    def _parent_of(self, path: str) -> tuple[_Folder, str]:
        """The folder that holds the last name; it is made if need be."""
        *parents, name = path.split("/")
        folder = self._root
        for parent in parents:
            child = folder.entries.setdefault(parent, _Folder())
            if not isinstance(child, _Folder):
                raise DiskFailedError(f"making {path!r} failed: {parent!r} is a file")
            folder = child
        return folder, name

    def _make_firm(self, path: str) -> None:
        """The names in a directory become durable, and the directory's own name with them."""
        found = self._find(path)
        if isinstance(found, _Folder):
            found.firm = dict(found.entries)
        folder = self._root
        for name in path.split("/") if path else ():
            child = folder.entries.get(name)
            if not isinstance(child, _Folder):
                return
            folder.firm[name] = child
            folder = child


def _walk(folder: _Folder, prefix: str) -> list[str]:
    found: list[str] = []
    for name, node in folder.entries.items():
        found += _walk(node, f"{prefix}{name}/") if isinstance(node, _Folder) else [prefix + name]
    return found


def _bytes_in(node: _Content | _Folder) -> int:
    if isinstance(node, _Folder):
        return sum(map(_bytes_in, node.entries.values()))
    return len(node.current)


def _copy(folder: _Folder, *, anew: bool = False) -> _Folder:
    """`anew`: as a copy of the same disk, which has inodes of its own."""
    after = _Folder() if anew else _Folder(inode=folder.inode)
    for name, node in folder.entries.items():
        if isinstance(node, _Folder):
            after.entries[name] = _copy(node, anew=anew)
        else:
            fresh = after.entries[name] = _Content(bytearray(node.current), len(node.current))
            fresh.inode = fresh.inode if anew else node.inode
    after.firm = dict(after.entries)
    return after
