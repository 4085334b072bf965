"""The real disk: `Files` and `File` on a directory of the operating system.

Rules:
- A file's size is what we wrote, not what the system says: a failed append is cut off or overwritten.
- Descriptors are opened when needed and evicted when there are too many (`descriptors.py`). A file that is opened again
  must be the same inode as before.
- One descriptor is kept in reserve for what is opened for a moment only: small files, and directories that are synced.
  Others may take all the rest; that passes, and no log may fail because of it.
- After a failed fdatasync a file takes no more appends and no more syncs: the kernel forgets what it could not write,
  and a second fdatasync would say that all is well.
- No path leaves the root, neither by ".." nor by a symbolic link.
- Names that end in `ASIDE` are half-stored files; nobody sees them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal

from headrace.core.errors import DiskFailedError, DiskFullError, PassingError, StorageError
from headrace.runtime.descriptor_limit import files_allowed
from headrace.runtime.descriptors import Descriptor, DescriptorPool
from headrace.runtime.fingerprint import fingerprint_of
from headrace.runtime.residency import Map

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.core.ports import Buffer

ReadMode = Literal["pread", "mmap"]

ASIDE: Final = ".aside"
LOCK_NAME: Final = ".lock"
OPEN_FILES: Final = 512
HOT_BYTES: Final = 64 * 1024 * 1024  # what we wrote last is taken to be in the page cache, if the system cannot tell
PARTS_PER_CALL: Final = 1024  # IOV_MAX
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def storage_error(cause: OSError, doing: str, path: str) -> StorageError:
    """What an OSError means to a log."""
    text = f"{doing} {path!r} failed: {cause.strerror or cause} (errno {cause.errno})"
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(text)
    if cause.errno in _NO_DESCRIPTORS:
        return PassingError(f"{text}: raise the limit of open files (ulimit -n)")
    if cause.errno == errno.ENOMEM:
        return PassingError(text)
    return DiskFailedError(text)


def sync_descriptor(fd: int) -> None:
    """Make a file's bytes and size durable."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache there
    else:
        os.fdatasync(fd)


class DiskFile:
    """One file under a `DiskFiles`. `append`, `truncate`, `read_now` and `size` belong to one thread."""

    def __init__(self, tree: DiskFiles, path: str, descriptor: Descriptor) -> None:
        status = os.fstat(descriptor.fd)
        if not stat.S_ISREG(status.st_mode):
            raise DiskFailedError(f"{path!r} is not a plain file")
        self.path = path
        self.descriptor: Descriptor | None = descriptor
        self.used = True
        self._tree = tree
        self._inode = (status.st_dev, status.st_ino)
        self._size = status.st_size
        self._cold_below = status.st_size  # bytes from here on were written by this process
        self._ragged = False  # the file is longer than `_size`: a failed append could not be cut off
        self._writes = 0
        self._synced_writes = 0
        self._failure: str | None = None
        self._closed = False
        self._map: Map | None = None

    @property
    def size(self) -> int:
        return self._size

    def is_dirty(self) -> bool:
        return self._writes != self._synced_writes

    def is_closed(self) -> bool:
        return self._closed

    def let_go(self) -> None:
        self.descriptor = None
        self._map = None

    def append(self, parts: Sequence[Buffer]) -> None:
        self._writes += 1  # before the descriptor is taken, so that it cannot be evicted
        descriptor = self.descriptor or self._open_again()
        self.used = True
        if self._failure is not None:
            raise DiskFailedError(self._failure)
        if len(parts) > PARTS_PER_CALL:
            parts = [b"".join(parts)]
        start = self._size
        try:
            if self._ragged:
                self._cut(descriptor, start)
            total = sum(map(len, parts))
            written = os.pwritev(descriptor.fd, parts, start)
            if written != total:
                _write_rest(descriptor.fd, b"".join(parts), start, written)
        except OSError as cause:
            self._ragged = True
            with suppress(OSError):
                self._cut(descriptor, start)
            raise storage_error(cause, "appending to", self.path) from cause
        self._size = start + total

    def read_now(self, position: int, length: int) -> bytes | bytearray | None:
        length = min(length, self._size - position)
        if length <= 0:
            return b""
        descriptor = self.descriptor or self._open_again()
        self.used = True
        if self._tree.read_mode == "mmap":
            found = self._read_map(descriptor, position, length)
            if found is not None:
                return found
        if self._tree.can_read_nowait:
            try:
                return self._tree.read_nowait(descriptor.fd, position, length)
            except OSError as cause:
                if cause.errno not in _UNSUPPORTED:
                    raise storage_error(cause, "reading", self.path) from cause
                self._tree.can_read_nowait = False
        if position >= max(self._cold_below, self._size - HOT_BYTES):
            return self.read(position, length)
        return None

    def read(self, position: int, length: int) -> bytes:
        # Always pread: touching a cold map would wait for the disk with the interpreter's lock held.
        length = min(length, self._size - position)
        if length <= 0:
            return b""
        descriptor = self.descriptor or self._open_again()
        self.used = True
        try:
            found = os.pread(descriptor.fd, length, position)
            while len(found) < length:
                more = os.pread(descriptor.fd, length - len(found), position + len(found))
                if not more:
                    break
                found += more
        except OSError as cause:
            raise storage_error(cause, "reading", self.path) from cause
        return found

    def sync(self) -> None:
        if self._failure is not None:
            raise DiskFailedError(self._failure)
        descriptor = self.descriptor or self._open_again()
        covered = self._writes
        try:
            sync_descriptor(descriptor.fd)
        except OSError as cause:
            error = storage_error(cause, "syncing", self.path)
            self._failure = f"{error}; it is not tried again"
            raise DiskFailedError(self._failure) from cause
        self._synced_writes = covered

    def truncate(self, size: int) -> None:
        if size > self._size or size < 0:
            raise ValueError(f"cannot cut {self.path!r} of {self._size} bytes to {size}")
        self._writes += 1
        descriptor = self.descriptor or self._open_again()
        try:
            self._cut(descriptor, size)
        except OSError as cause:
            raise storage_error(cause, "cutting", self.path) from cause
        self._size = size
        self._cold_below = min(self._cold_below, size)
        self._map = None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tree.forget(self)
            self.let_go()

    def _cut(self, descriptor: Descriptor, size: int) -> None:
        os.ftruncate(descriptor.fd, size)
        self._ragged = False

    def _open_again(self) -> Descriptor:
        if self.is_closed():
            raise StorageError(f"{self.path!r} is closed")
        descriptor = self._tree.open_descriptor(self.path, os.O_RDWR)
        status = os.fstat(descriptor.fd)
        if (status.st_dev, status.st_ino) != self._inode:
            raise DiskFailedError(f"{self.path!r} was replaced by another file while it was in use")
        self.descriptor = descriptor
        self._tree.pool.admit(self)
        if self.is_closed():  # by its owner, while a worker came here
            self._tree.forget(self)
            self.let_go()
        return descriptor

    def _read_map(self, descriptor: Descriptor, position: int, length: int) -> bytes | None:
        """From memory, if a map covers the bytes and they are resident. The growing end is left to preadv."""
        mapped = self._map
        if mapped is None or mapped.size < position + length:
            if mapped is not None and self._size - mapped.size < HOT_BYTES:
                return None
            try:
                mapped = self._map = Map(descriptor.fd, self._size)
            except (OSError, ValueError):
                return None  # no address space, or the file is shorter than we think: the plain read will tell
        return mapped.read_resident(position, length)


class DirectoryLock:
    """Held until `release` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskFiles:
    """A directory tree below `root`, which is made if it does not exist.

    `read` chooses where hot reads copy from: "pread" asks the kernel (preadv with RWF_NOWAIT), "mmap" copies from a
    map of the file after mincore has said that the pages are resident. Cold reads go through pread in both modes.
    """

    def __init__(self, root: str, *, read: ReadMode = "pread", open_files: int | None = None) -> None:
        self.root = os.path.realpath(root)
        self.read_mode = read
        self.can_read_nowait = _NOWAIT is not None
        open_files = min(OPEN_FILES, files_allowed()) if open_files is None else open_files
        # A map holds a second descriptor of its file.
        self.pool = DescriptorPool(max(1, open_files // 2) if read == "mmap" else open_files)
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[DiskFile] = weakref.WeakSet()
        self._unsynced: set[str] = set()  # directories that got a new sub-directory since they were synced
        self._reserve: Descriptor | None = None
        self._keep_reserve()
        try:
            os.makedirs(self.root, exist_ok=True)
        except OSError as cause:
            raise storage_error(cause, "making", self.root) from cause

    # ------------------------------------------------------------------ the port

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR
        if create:
            flags |= os.O_CREAT
            self._make_parents(path)
        file = DiskFile(self, path, self.open_descriptor(path, flags))
        self.pool.admit(file)
        with self._lock:
            self._open.add(file)
        return file

    def names(self, path: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._locate(path)) if not name.endswith(ASIDE))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as cause:
            raise storage_error(cause, "listing", path) from cause

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._locate(path))

    def load(self, path: str) -> bytes | None:
        try:
            with (
                self._briefly(self._locate(path), os.O_RDONLY | os.O_NOFOLLOW) as fd,
                open(fd, "rb", closefd=False) as stream,
            ):
                return stream.read()
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise storage_error(cause, "loading", path) from cause

    def store(self, path: str, content: bytes) -> None:
        self._make_parents(path)
        target = self._locate(path)
        aside = target + ASIDE
        try:
            with self._briefly(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as fd:
                _write_rest(fd, content, 0, 0)
                sync_descriptor(fd)
            os.rename(aside, target)
        except OSError as cause:
            with suppress(OSError):
                os.unlink(aside)
            raise storage_error(cause, "storing", path) from cause
        self.sync_directory(_parent(path))

    def rename(self, old: str, new: str) -> None:
        self._make_parents(new)
        try:
            os.rename(self._locate(old), self._locate(new))
        except OSError as cause:
            raise storage_error(cause, "renaming", old) from cause
        with self._lock:
            for file in self._open:
                if file.path == old or file.path.startswith(old + "/"):
                    file.path = new + file.path[len(old) :]
        self.sync_directory(_parent(new))
        if _parent(old) != _parent(new):
            self.sync_directory(_parent(old))

    def remove(self, path: str) -> None:
        target = self._locate(path)
        try:
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)
        except FileNotFoundError:
            return
        except OSError as cause:
            raise storage_error(cause, "removing", path) from cause

    def sync_directory(self, path: str) -> None:
        chain = [path]
        while chain[-1]:  # a directory survives only if its own name does
            chain.append(_parent(chain[-1]))
        synced = False
        with self._lock:  # else a directory made after our sync could be taken off the list with the others
            for folder in chain:
                if folder in self._unsynced:
                    self._sync_one(folder)
                    self._unsynced.discard(folder)
                    synced = synced or folder == path
        if not synced:
            self._sync_one(path)

    def free_bytes(self) -> int:
        try:
            status = os.statvfs(self.root)
        except OSError as cause:
            raise storage_error(cause, "measuring", self.root) from cause
        return status.f_bavail * status.f_frsize

    def lock(self) -> DirectoryLock | None:
        target = os.path.join(self.root, LOCK_NAME)
        try:
            fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as cause:
            raise storage_error(cause, "locking", self.root) from cause
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)  # for people who look
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as cause:
            os.close(fd)
            raise storage_error(cause, "locking", self.root) from cause
        return DirectoryLock(fd)

    def fingerprint(self, path: str) -> int:
        return fingerprint_of(self._locate(path))

    # ------------------------------------------------------------------ for DiskFile

    def open_descriptor(self, path: str, flags: int) -> Descriptor:
        try:
            return Descriptor(self._open_fd(self._locate(path), flags | os.O_NOFOLLOW))
        except OSError as cause:
            raise storage_error(cause, "opening", path) from cause

    def _open_fd(self, target: str, flags: int) -> int:
        """Open a file; if there are no descriptors left, at the cost of files that can do without theirs."""
        while True:
            try:
                return os.open(target, flags | os.O_CLOEXEC, 0o644)
            except OSError as cause:
                if cause.errno not in _NO_DESCRIPTORS or not self.pool.shrink():
                    raise

    @contextmanager
    def _briefly(self, target: str, flags: int) -> Iterator[int]:
        """A descriptor for a moment: the one in reserve, if there is no other."""
        try:
            fd = self._open_fd(target, flags)
        except OSError as cause:
            if cause.errno not in _NO_DESCRIPTORS or self._reserve is None:
                raise
            self._reserve = None
            fd = self._open_fd(target, flags)
        try:
            yield fd
        finally:
            os.close(fd)
            if self._reserve is None:
                self._keep_reserve()

    def _keep_reserve(self) -> None:
        with suppress(OSError):
            self._reserve = Descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def forget(self, file: DiskFile) -> None:
        self.pool.dismiss(file)
        with self._lock:
            self._open.discard(file)

    def read_nowait(self, fd: int, position: int, length: int) -> bytearray | None:
        """Read from the page cache alone; None if a page is missing there."""
        assert _NOWAIT is not None
        found = bytearray(length)
        try:
            return found if os.preadv(fd, [found], position, _NOWAIT) == length else None
        except BlockingIOError:
            return None

    # ------------------------------------------------------------------ paths

    def _locate(self, path: str) -> str:
        """The absolute path. Every directory on the way is a real one; the last name is the caller's to check."""
        if not path:
            return self.root
        parts = _parts(path)
        folder = os.path.join(self.root, *parts[:-1])
        if len(parts) > 1 and os.path.realpath(folder) != folder:
            raise DiskFailedError(f"{path!r} leads through a symbolic link")
        return os.path.join(folder, parts[-1])

    def _make_parents(self, path: str) -> None:
        _parts(path)
        folder = _parent(path)
        if not folder or os.path.isdir(self._locate(folder)):
            return
        self._make_parents(folder)
        try:
            os.mkdir(self._locate(folder))
        except FileExistsError:
            return
        except OSError as cause:
            raise storage_error(cause, "making", folder) from cause
        with self._lock:
            self._unsynced.add(_parent(folder))

    def _sync_one(self, path: str) -> None:
        try:
            with self._briefly(self._locate(path), os.O_RDONLY | os.O_DIRECTORY) as fd:
                os.fsync(fd)
        except OSError as cause:
            raise storage_error(cause, "syncing", path or self.root) from cause


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise DiskFailedError(f"{path!r} is not a path inside the data directory")
    return parts


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _write_rest(fd: int, content: bytes, start: int, written: int) -> None:
    """Go on after a short write: the system either takes all of it in the end or says why it does not."""
    view = memoryview(content)
    while written < len(content):
        count = os.pwrite(fd, view[written:], start + written)
        if count == 0:
            raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
        written += count
