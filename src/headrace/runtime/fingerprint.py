"""What tells a file or directory from a copy of it: its inode number, and when it was born where the system knows that.

Rules:
- Numbers alone are used again: a directory that is removed and copied back may get the one it had. No copy has the
  birth of another.
- What a mount, a rename or a change of owner alters (device, change time) is left out.
- Where the C library has no statx, or the file system no births, the number has to do.
"""

from __future__ import annotations

import ctypes
import os
import struct
from hashlib import blake2b
from typing import Final

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_STATX_BTIME: Final = 0x800
_MASK: Final = struct.Struct("=I")
_BIRTH: Final = struct.Struct("=qI")
_BIRTH_AT: Final = 80  # of struct statx: stx_btime
_STATX_BYTES: Final = 256
_statx = getattr(ctypes.CDLL(None), "statx", None)
if _statx is not None:
    _statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    _statx.restype = ctypes.c_int


def fingerprint_of(path: str) -> int:
    """See `core.ports.TrackedFiles`."""
    try:
        inode = os.lstat(path).st_ino
    except OSError:
        return 0
    digest = blake2b(b"%d %d %d" % (inode, *_birth_of(path)), digest_size=7).digest()
    return int.from_bytes(digest, "big") or 1


def _birth_of(path: str) -> tuple[int, int]:
    """Seconds and nanoseconds; zeros if nobody knows."""
    if _statx is None:
        return 0, 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    failed = _statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, found) != 0
    if failed or not _MASK.unpack_from(found.raw)[0] & _STATX_BTIME:
        return 0, 0
    seconds, nanoseconds = _BIRTH.unpack_from(found.raw, _BIRTH_AT)
    return seconds, nanoseconds
