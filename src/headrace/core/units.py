"""Sizes and times as people write them: `64MiB`, `7d`, `-1`.

Rules:
- What `show_*` writes, `parse_*` reads back to the same number.
- A bare number is bytes or milliseconds. Fractions are allowed where the result is whole (`1.5GiB`).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_BYTES: Final = {
    "TiB": 1024 * GIB,
    "GiB": GIB,
    "MiB": MIB,
    "KiB": KIB,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
_TIMES: Final = {
    "w": 7 * DAY_MS,
    "d": DAY_MS,
    "h": HOUR_MS,
    "min": MINUTE_MS,
    "s": SECOND_MS,
    "ms": 1,
}
_AMOUNT: Final = re.compile(r"\s*(-?\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)\s*\Z", re.ASCII)


def parse_bytes(text: str) -> int:
    """Bytes in `text`. Raises ValueError with a sentence."""
    return _parse(text, _BYTES, "a size such as 4096, 64MiB or 1GiB")


def parse_ms(text: str) -> int:
    """Milliseconds in `text`. Raises ValueError with a sentence."""
    return _parse(text, _TIMES, "a time such as 500, 30s, 10min or 7d")


def show_bytes(amount: int) -> str:
    return _show(amount, ("TiB", "GiB", "MiB", "KiB"), _BYTES)


def show_ms(amount: int) -> str:
    return _show(amount, ("d", "h", "min", "s"), _TIMES) if amount % SECOND_MS == 0 else f"{amount}ms"


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    match = _AMOUNT.match(text)
    factor = 1
    if match is not None and match[2]:
        factor = next((size for unit, size in units.items() if unit.lower() == match[2].lower()), 0)
    if match is None or not factor:
        raise ValueError(f"is not {wanted}")
    amount = Decimal(match[1]) * factor
    if amount != amount.to_integral_value():
        raise ValueError(f"is not a whole number of {'bytes' if units is _BYTES else 'milliseconds'}")
    return int(amount)


def _show(amount: int, names: tuple[str, ...], units: dict[str, int]) -> str:
    for name in names:
        if amount > 0 and amount % units[name] == 0:
            return f"{amount // units[name]}{name}"
    return str(amount)
