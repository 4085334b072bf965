"""File descriptors: closed when the last user lets go, and never more of them than allowed.

Rules:
- A user keeps a reference to the `Descriptor` while a system call runs. The number is closed when the last reference
  goes, so that a file may be closed or evicted while a worker reads it, and a number is never reused under a reader.
- The pool evicts by the clock algorithm (a use sets a flag; a hand clears it): the hot path pays one store.
- A file with unsynced bytes is never evicted: the kernel reports a failed write-back to open descriptors only. So the
  limit is soft for files that are being written, and hard for sealed ones.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Descriptor:
    """An open file's number. Reference counting closes it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)  # bound early: at the end of the interpreter the module may be gone


class Owner(Protocol):
    """A file that can do without its descriptor for a while."""

    descriptor: Descriptor | None
    used: bool

    def is_dirty(self) -> bool:
        """Whether it holds bytes that no sync covers."""

    def let_go(self) -> None:
        """Drop the descriptor and all that hangs on it."""


class DescriptorPool:
    """All files of one tree that hold a descriptor. Thread-safe."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("at least one file must be allowed to be open")
        self.limit = limit
        self._ring: OrderedDict[Owner, None] = OrderedDict()  # the hand points at the first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ring)

    def admit(self, owner: Owner) -> None:
        """The owner has opened its descriptor; somebody else may lose theirs."""
        with self._lock:
            while len(self._ring) >= self.limit and self._evict_one():
                pass
            self._ring[owner] = None

    def dismiss(self, owner: Owner) -> None:
        with self._lock:
            self._ring.pop(owner, None)

    def shrink(self) -> bool:
        """The system is out of descriptors: drop all that can be dropped. False if there was none."""
        with self._lock:
            before = len(self._ring)
            while self._evict_one():
                pass
            return len(self._ring) < before

    def _evict_one(self) -> bool:
        """Move the hand at most twice round: once to clear the flags, once to find a victim."""
        for _ in range(2 * len(self._ring)):
            owner = next(iter(self._ring))
            if owner.used or owner.is_dirty():
                owner.used = False
                self._ring.move_to_end(owner)
                continue
            descriptor = owner.descriptor
            owner.let_go()
            if owner.is_dirty():
                # Its thread began to write between our look and our grip: give the descriptor back.
                owner.descriptor = descriptor
                self._ring.move_to_end(owner)
                continue
            del self._ring[owner]
            return True
        return False
