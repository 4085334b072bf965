"""What was measured, and how it is shown: tables for people, Markdown for docs/performance.md, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.testing.load.crew import Tally, percentile

LEVELS = {"ack": "synced", "os": "cached", "memory": "memory"}
COLUMNS = ("case", "value", "requests/s", "messages/s", "MB/s", "CPU us/request", "p50 ms", "p99 ms", "note")


@dataclass(frozen=True, slots=True)
class Measured:
    """One row. `level` is the durability that an acknowledgement meant, or "" where none is involved."""

    system: str
    mode: str
    case: str
    level: str
    value_bytes: int | None = None
    requests_per_s: float | None = None
    messages_per_s: float | None = None
    mb_per_s: float | None = None
    cpu_us_per_request: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        return [
            self.case,
            "" if self.value_bytes is None else f"{self.value_bytes} B",
            _number(self.requests_per_s),
            _number(self.messages_per_s),
            _number(self.mb_per_s),
            _number(self.cpu_us_per_request),
            _number(self.p50_ms, 3),
            _number(self.p99_ms, 3),
            self.note,
        ]


def _number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{digits}f}"


def rates(tallies: Sequence[Tally], *, cpu_s: float | None = None) -> dict[str, Any]:
    """Requests and bytes per second over all processes; they ran at the same time."""
    seconds = max(tally.seconds for tally in tallies)
    done = sum(tally.done for tally in tallies)
    found: dict[str, Any] = {
        "requests_per_s": done / seconds,
        "mb_per_s": sum(tally.bytes for tally in tallies) / seconds / 1e6,
    }
    if cpu_s is not None and done:
        found["cpu_us_per_request"] = cpu_s / done * 1e6
    latencies = [value for tally in tallies for value in tally.latencies_s]
    if latencies:
        found["p50_ms"] = percentile(latencies, 0.5) * 1e3
        found["p99_ms"] = percentile(latencies, 0.99) * 1e3
    return found


def tables(rows: Iterable[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    """Rows by mode and level: levels never share a table."""
    grouped: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        grouped.setdefault((row.mode, row.level), []).append(row)
    for (mode, level), found in grouped.items():
        yield f"{mode}, {level}" if level else mode, found


def shown(rows: Sequence[Measured]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells, without the columns that no row fills. Systems are named when there are several."""
    columns, cells = ["system", *COLUMNS], [[row.system, *row.cells()] for row in rows]
    several = len({row.system for row in rows}) > 1
    kept = [at for at in range(len(columns)) if (at or several) and any(line[at] for line in cells)]
    return [columns[at] for at in kept], [[line[at] for at in kept] for line in cells]


def ratios(rows: Sequence[Measured]) -> list[tuple[str, str, str, float]]:
    """(mode and level, case, peer, Headrace's rate divided by the peer's) for cases that both did."""
    found = []
    for title, group in tables(rows):
        ours = {(row.case, row.value_bytes): row for row in group if row.system == "headrace"}
        for row in group:
            mine = ours.get((row.case, row.value_bytes))
            if row.system != "headrace" and mine and mine.requests_per_s and row.requests_per_s:
                case = f"{row.case}, {row.value_bytes} B"
                found.append((title, case, row.system, mine.requests_per_s / row.requests_per_s))
    return found


def markdown(rows: Sequence[Measured]) -> str:
    """Tables for the documentation."""
    lines = []
    for title, group in tables(rows):
        columns, cells = shown(group)
        lines += [f"**{title}**", "", _line(columns), _line("---" if name in LEFT else "--:" for name in columns)]
        lines += [*(_line(row) for row in cells), ""]
    return "\n".join(lines)


LEFT = {"system", "case", "note"}


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def document(rows: Sequence[Measured], machine: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain values."""
    return {"machine": machine, "results": [asdict(row) for row in rows]}
