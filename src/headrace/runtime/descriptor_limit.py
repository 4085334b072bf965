"""How many files and connections the system lets us have open, and who gets how many.

Rules:
- Clients get what others do not need: sealed segments (`files_allowed`), the pages on HTTP, other nodes, files that are
  being written, and a burst of connections that are about to be refused.
- Where there is little, a quarter is for files, and half for clients.
"""

from __future__ import annotations

import sys
from typing import Final

RESERVED: Final = 2048


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as we may without asking anyone; returns how many that is, or -1 if unknown."""
    if sys.platform == "win32":
        return -1
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft >= hard:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def descriptor_limit() -> int | None:
    """File descriptors that this process may have; None: any number."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int | None:
    limit = descriptor_limit()
    return None if limit is None else max(1, limit - min(RESERVED, limit // 2))


def files_allowed() -> int:
    limit = descriptor_limit()
    return sys.maxsize if limit is None else max(1, limit // 4)
