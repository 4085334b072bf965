"""Every `Files` keeps the promises of the port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.runtime.disk import DiskFiles
from headrace.storage.memory import MemoryFiles
from headrace.testing.conformance.files import FILES_CHECKS
from headrace.testing.files import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.core.ports import Files

KINDS: dict[str, Callable[[Path], Files]] = {
    "pread": lambda root: DiskFiles(str(root / "data")),
    "mmap": lambda root: DiskFiles(str(root / "data"), read="mmap"),
    "one-descriptor": lambda root: DiskFiles(str(root / "data"), open_files=1),
    "memory": lambda _: MemoryFiles(),
    "limited-memory": lambda _: MemoryFiles(limit_bytes=10_000_000),
    "faulty": lambda _: FaultyFiles(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", FILES_CHECKS, ids=lambda check: check.__name__)
def test_files_keep_their_promises(check: Callable[[Files], None], kind: str, tmp_path: Path) -> None:
    check(KINDS[kind](tmp_path))
