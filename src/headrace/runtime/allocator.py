"""glibc's allocator, told that large buffers come and go.

By default glibc gives freed memory back to the system at once, and every new megabyte costs 256 page faults: a 1 MiB
Produce was measured to cost twice the processor time. Kept, the memory is used again; at most `KEEP_BYTES` stay.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEEP_BYTES: Final = 64 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Whether the allocator could be told (it is glibc). For a process that is a broker and nothing else."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    trim = mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
    threshold = mallopt(_M_MMAP_THRESHOLD, KEEP_BYTES // 2)
    return bool(trim and threshold)


def release_freed_memory() -> bool:
    """Give back to the system what is free, also between what is not; whether something was given.

    Some milliseconds for each hundred megabytes: for the time after a flood.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError):
        return False
