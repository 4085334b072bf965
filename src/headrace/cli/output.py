"""How verbs print: JSON for programs, tables for people.

Rules:
- No colour unless stdout is a terminal and NO_COLOR is not set (rich sees to both).
- On a terminal a table fits the width; in a pipe nothing is cut or folded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 10_000


def emit(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def emit_line(document: Any) -> None:
    """Print one line of a JSON stream."""
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def note(text: str) -> None:
    """Tell people something that is not data."""
    print(text, file=sys.stderr, flush=True)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """Print a table. A column whose name starts with ">" is aligned right."""
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
    for name in columns:
        view.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        view.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    screen = console()
    if title:
        screen.print(Text(title, style="bold"))
    if sys.stdout.isatty():
        screen.print(view)
        return
    with screen.capture() as captured:
        screen.print(view)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def size(value: int | float | None) -> str:
    """Bytes for people: 1.5 MiB."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def moment(timestamp_ms: int | None) -> str:
    """A time for people, in UTC; "-" if there is none."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}... ({len(text):,} letters)"


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,5` for 0, 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
