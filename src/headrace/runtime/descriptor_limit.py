"""How many files and connections the system lets us have open."""

from __future__ import annotations

try:
    import resource
except ImportError:  # pragma: no cover - not on this system
    resource = None  # type: ignore[assignment]


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as we may without asking anyone; returns how many that is, or -1 if unknown."""
    if resource is None:
        return -1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft >= hard:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
