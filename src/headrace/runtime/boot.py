"""Which run of the operating system this is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # Linux draws one at every start


def system_boot_id() -> str:
    """Another one after every start of the operating system; empty where nobody tells."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
