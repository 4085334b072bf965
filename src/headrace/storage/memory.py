"""Files that live in memory, for brokers and topics that need no disk (`storage.kind=memory`).

Rules:
- Nothing survives the process; `sync` has nothing to do and says so by doing nothing.
- Reads copy: what a reader holds never changes and never keeps a file from growing.
- Any thread may come: the dictionary is changed in single steps, and copied before it is walked.
- With a limit, a full memory behaves like a full disk.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headrace.core.errors import DiskFailedError, DiskFullError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.ports import Buffer


class MemoryFile:
    """One open file."""

    def __init__(self, tree: MemoryFiles, path: str, content: bytearray) -> None:
        self._tree = tree
        self._path = path
        self._content = content
        self._closed = False

    @property
    def size(self) -> int:
        return len(self._content)

    def append(self, parts: Sequence[Buffer]) -> None:
        self._must_be_open()
        content = b"".join(parts) if len(parts) != 1 else parts[0]
        self._tree.take(len(content), self._path)
        self._content += content

    def read_now(self, position: int, length: int) -> bytes:
        self._must_be_open()
        with memoryview(self._content) as view:
            return bytes(view[position : position + max(length, 0)])

    def read(self, position: int, length: int) -> bytes:
        # A slice, not a view: a view held in a worker would forbid the owner to append.
        self._must_be_open()
        return bytes(self._content[position : position + max(length, 0)])

    def sync(self) -> None:
        self._must_be_open()

    def truncate(self, size: int) -> None:
        self._must_be_open()
        if not 0 <= size <= len(self._content):
            raise ValueError(f"cannot cut {self._path!r} of {len(self._content)} bytes to {size}")
        self._tree.give_back(len(self._content) - size)
        del self._content[size:]

    def close(self) -> None:
        self._closed = True

    def _must_be_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self._path!r} is closed")


class MemoryLock:
    """Held until it is released."""

    def __init__(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


class MemoryFiles:
    """A directory tree in a dictionary: path -> content, or None for a directory."""

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        self._nodes: dict[str, bytearray | None] = {"": None}
        self._inside: dict[str, dict[str, None]] = {}  # directory -> the names in it: there may be thousands elsewhere
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._lock: MemoryLock | None = None

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        check_path(path)
        if path not in self._nodes:
            if not create:
                raise DiskFailedError(f"opening {path!r} failed: there is no such file")
            self._make_parents(path)
            self._put(path, bytearray())
        content = self._nodes[path]
        if content is None:
            raise DiskFailedError(f"opening {path!r} failed: it is a directory")
        return MemoryFile(self, path, content)

    def names(self, path: str) -> list[str]:
        if path:
            check_path(path)
        return sorted(self._inside.get(path, ()))

    def exists(self, path: str) -> bool:
        check_path(path)
        return path in self._nodes

    def load(self, path: str) -> bytes | None:
        check_path(path)
        if path not in self._nodes:
            return None
        content = self._nodes[path]
        if content is None:
            raise DiskFailedError(f"loading {path!r} failed: it is a directory")
        return bytes(content)

    def store(self, path: str, content: bytes) -> None:
        check_path(path)
        old = self._nodes.get(path, b"")
        if old is None:
            raise DiskFailedError(f"storing {path!r} failed: it is a directory")
        self._make_parents(path)
        self.take(len(content), path)
        self.give_back(len(old))
        self._put(path, bytearray(content))

    def rename(self, old: str, new: str) -> None:
        check_path(old)
        check_path(new)
        if old not in self._nodes:
            raise DiskFailedError(f"renaming {old!r} failed: there is no such file")
        if self.names(new) or (new in self._nodes and (self._nodes[new] is None) != (self._nodes[old] is None)):
            raise DiskFailedError(f"renaming {old!r} failed: {new!r} is in the way")
        self._make_parents(new)
        self.remove(new)
        for path in self._tree(old):
            self._put(new + path[len(old) :], self._nodes[path])
            self._drop(path)

    def remove(self, path: str) -> None:
        check_path(path)
        for node in self._tree(path):
            self.give_back(len(self._drop(node) or b""))

    def sync_directory(self, path: str) -> None:
        if path:
            check_path(path)
        if self._nodes.get(path, b"") is not None:
            raise DiskFailedError(f"syncing {path!r} failed: there is no such directory")

    def free_bytes(self) -> int:
        return sys.maxsize if self._limit_bytes is None else max(0, self._limit_bytes - self._used_bytes)

    def lock(self) -> MemoryLock | None:
        if self._lock is not None and self._lock.held:
            return None
        self._lock = MemoryLock()
        return self._lock

    def fingerprint(self, path: str) -> int:
        return 0  # nothing is copied from one process to the next

    def take(self, count: int, path: str) -> None:
        """Account for bytes that are about to be written."""
        if self._limit_bytes is not None and self._used_bytes + count > self._limit_bytes:
            raise DiskFullError(f"writing to {path!r} failed: the {self._limit_bytes} bytes of memory are used up")
        self._used_bytes += count

    def give_back(self, count: int) -> None:
        self._used_bytes -= count

    def _make_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        while parent:
            if parent not in self._nodes:
                self._put(parent, None)
            elif self._nodes[parent] is not None:
                raise DiskFailedError(f"making {parent!r} failed: it is a file")
            parent = parent.rpartition("/")[0]

    def _put(self, path: str, content: bytearray | None) -> None:
        directory, _, name = path.rpartition("/")
        self._nodes[path] = content
        self._inside.setdefault(directory, {})[name] = None

    def _drop(self, path: str) -> bytearray | None:
        directory, _, name = path.rpartition("/")
        self._inside.get(directory, {}).pop(name, None)
        self._inside.pop(path, None)
        return self._nodes.pop(path, None)

    def _tree(self, path: str) -> list[str]:
        """`path` and all that is below it, if it is there; what is inside comes before what it is in."""
        below = [each for name in list(self._inside.get(path, ())) for each in self._tree(f"{path}/{name}")]
        return [*below, path] if path in self._nodes else below


def check_path(path: str) -> None:
    """Paths are relative and plain, in memory as on disk."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise DiskFailedError(f"{path!r} is not a path inside the data directory")
