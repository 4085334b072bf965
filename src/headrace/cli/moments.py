"""Times as people type them: `10m`, `2h30m`, `2026-01-31`, `2026-01-31T12:00:00+02:00`, or epoch milliseconds."""

from __future__ import annotations

import re
import time
from datetime import datetime

from headrace.cli.report import UsageError

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "min": 60_000, "ms": 1, "m": 60_000, "s": 1000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:w|d|h|min|ms|m|s))+\Z")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(w|d|h|min|ms|m|s)")
_EPOCH_MS_DIGITS = 10  # shorter numbers are a slip, not a time


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def duration_ms(text: str, option: str) -> int:
    """Milliseconds in `10m`. Raises UsageError."""
    if not _DURATION.match(text.strip()):
        raise UsageError(f"{option} {text!r} is not a duration such as 30s, 10m, 2h or 1d")
    return int(sum(float(amount) * _UNITS_MS[unit] for amount, unit in _PIECE.findall(text)))


def moment_ms(text: str, option: str, *, now: int | None = None) -> int:
    """Epoch milliseconds of a time, or of that long ago. A time without a zone is local. Raises UsageError."""
    bare = text.strip()
    if bare == "now":
        return now_ms() if now is None else now
    if _DURATION.match(bare):
        return (now_ms() if now is None else now) - duration_ms(bare, option)
    if bare.isdigit() and len(bare) >= _EPOCH_MS_DIGITS:
        return int(bare)
    try:
        return int(datetime.fromisoformat(bare).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"{option} {text!r} is not a time such as 2026-01-31T12:00 or a duration such as 10m")
