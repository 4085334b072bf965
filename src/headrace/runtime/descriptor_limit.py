"""How many files and connections the system lets us have open."""

from __future__ import annotations

import sys


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
