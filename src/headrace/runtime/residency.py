"""A file mapped into memory that is read only where its pages are resident.

Rules:
- A page fault that waits for a disk would stop every thread, because Python copies from a map with its lock held. So
  mincore is asked first; what it does not call resident is left to a read in a worker thread.
- Between the question and the copy the kernel may still drop a page. That is rare, and costs one disk read.
- A private mapping: nothing that happens here can change the file.
- Where the C library has no mincore, nothing is ever called resident, and the caller reads by other means.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_PAGE: Final = mmap.PAGESIZE
_mincore = getattr(ctypes.PyDLL(None), "mincore", None)  # PyDLL: it takes a microsecond, not worth giving the lock away
if _mincore is not None:
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    _mincore.restype = ctypes.c_int


class Map:
    """The first `size` bytes of a file. The system releases the pages when the last reference goes."""

    __slots__ = ("_address", "_map", "size")

    def __init__(self, fd: int, size: int) -> None:
        # ACCESS_COPY, because ctypes tells the address of writable buffers only. We never write.
        self._map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    def read_resident(self, position: int, length: int) -> bytes | None:
        if _mincore is None:
            return None
        first = position - position % _PAGE
        span = position + length - first
        pages = -(-span // _PAGE)
        flags = ctypes.create_string_buffer(pages)
        if _mincore(self._address + first, span, flags) != 0:
            return None
        if flags.raw.count(1) != pages:
            return None
        return self._map[position : position + length]
