"""The disk of a real process, made to misbehave: full, failing or slow, in a part of its tree, for a while.

`build` compiles `shim.c` with the machine's compiler; without one there is no shim, and no such faults. Each process
has a `Shim` of its own: a control file that both sides map. Linux only.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
_FIELDS: Final = struct.Struct("=IIII")  # errors of writes, reads and syncs; delay of syncs in ms
_HITS: Final = struct.Struct("=III")
_UNDER: Final = struct.Struct("=I1024s")
SIZE_BYTES: Final = _FIELDS.size + _HITS.size + _UNDER.size


def build(folder: Path) -> Path | None:
    """The compiled library; None where there is no compiler, or no LD_PRELOAD."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = folder / "disk-shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    return library


class Shim:
    """The disk of one process."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(SIZE_BYTES))
        self.environ = {"LD_PRELOAD": str(library), "DISK_SHIM": str(control)}
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE_BYTES)

    @property
    def hits(self) -> int:
        """How many calls have failed or were late, so far."""
        return sum(_HITS.unpack_from(self._map, _FIELDS.size))

    @contextmanager
    def fault(self, under: Path, *, write: int = 0, read: int = 0, sync: int = 0, late_ms: int = 0) -> Iterator[None]:
        """Let calls below a folder fail with these errors. `write=ENOSPC`: the disk has no space, either."""
        name = str(under.resolve()).encode()
        _UNDER.pack_into(self._map, _FIELDS.size + _HITS.size, len(name), name)
        _FIELDS.pack_into(self._map, 0, write, read, sync, late_ms)
        try:
            yield
        finally:
            _FIELDS.pack_into(self._map, 0, 0, 0, 0, 0)


FULL: Final = errno.ENOSPC
FAILED: Final = errno.EIO
