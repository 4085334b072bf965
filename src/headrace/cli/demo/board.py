"""The demo on the terminal: a live board where there is one, and plain lines in a pipe.

The board fits 80 columns and 30 lines.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.demo.day import CITIES, CLOSES, OPENS, TOPICS, Cell
from headrace.cli.demo.setting import PER_HOUR

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from headrace.cli.demo.play import Play, Story

HOURS: Final = range(OPENS, CLOSES)
# From quiet to busy: dark water to bright foam. The text on each must be legible.
_SHADES: Final = (
    ("#0d2b3e", "#9fb8c6"),
    ("#0f4361", "#c4d8e3"),
    ("#126083", "#e3f0f6"),
    ("#1a809f", "#ffffff"),
    ("#3aa6b9", "#06222c"),
    ("#7cc9c8", "#06222c"),
    ("#c2e8d9", "#06222c"),
)
_BAR: Final = 48
_NAME, _CELL = 9, 5
_EVENTS: Final = 8
_REFRESH_SECONDS: Final = 0.2


class Board:
    """Shows a play. `console` decides whether it lives."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Any = None
        self._next = 0.0

    def start(self) -> None:
        from rich.live import Live

        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()

    def stop(self, play: Play | None = None) -> None:
        if self._live is not None:
            if play is not None and play.shops is not None:
                self._live.update(view(play), refresh=True)
            self._live.stop()
            self._live = None

    def show(self, play: Play) -> None:
        if self._live is not None and time.monotonic() >= self._next:
            self._live.update(view(play), refresh=True)
            self._next = time.monotonic() + _REFRESH_SECONDS

    def tell(self, at: float, text: str) -> None:
        if self._live is None:
            self._console.print(f"{at:5.1f} s  {text}", highlight=False, soft_wrap=True)


def view(play: Play) -> RenderableType:
    """The whole board."""
    from rich.console import Group
    from rich.text import Text

    cells = dict(play.tally.cells) if play.tally is not None else {}
    parts: list[RenderableType] = [_head(play), Text(), *_flows(play), Text(), rollup(cells), Text()]
    return Group(*parts, *_events(play.story))


def _head(play: Play) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    alive = play.process is not None and play.process.exit_code is None
    down = play.story.killed_at is not None and play.story.back_at is None
    if down:
        state = Text(
            "● pipeline killed" if not alive else "● pipeline comes back", "bold red" if not alive else "yellow"
        )
    else:
        state = Text(
            "● pipeline runs" if alive and play.story.samples and play.archived() else "● Spark starts", "green"
        )
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="center")
    line.add_column(justify="right")
    clock = ""
    if play.shops is not None:
        open_now = play.shops.is_alive()
        clock = f"{play.shops.day.clock(play.shops.part):%H:%M} in the shops" if open_now else "shops are closed"
    line.add_row(Text("Headrace · a day of coffee", "bold"), Text(clock), state)
    return line


def _flows(play: Play) -> list[RenderableType]:
    """Three bars: sent, archived, counted; in between is what waits."""
    from rich.text import Text

    if play.shops is None or play.tally is None:
        return []
    total = max(play.story.orders, 1)
    rows = (
        ("orders sent", play.shops.sent, "#3aa6b9"),
        ("archived in Delta", min(play.archived(), play.shops.sent), "#7c9cf0"),  # without the record that ends the day
        ("in closed windows", play.tally.orders, "#e0a458"),
    )
    found: list[RenderableType] = []
    for name, count, colour in rows:
        full = min(_BAR, round(_BAR * count / total))
        bar = Text(f"{name:<19}") + Text("━" * full, colour) + Text("━" * (_BAR - full), "grey23")
        found.append(bar + Text(f" {count:>8,}", "bold"))
    sent = play.shops.day.truth.sent
    rest = ", ".join(f"{sent[topic]:,} {topic}" for topic in list(TOPICS)[1:])
    letters = play.tally.letters.total()
    found.append(Text(f"{'':<19}and {rest}; {letters:,} broken orders aside", "grey62"))
    return found


def rollup(cells: Mapping[tuple[int, str], Cell]) -> RenderableType:
    """The table that grows: orders by city and hour, from the topic that Spark writes."""
    from rich.text import Text

    busiest = max((cell.orders for cell in cells.values()), default=1)
    lines = [
        Text(f"live from topic {PER_HOUR}: orders by city and hour of the event", "italic grey62"),
        Text(f"{'':<{_NAME}}" + "".join(f"{hour:02d}h".rjust(_CELL) for hour in HOURS), "grey62"),
    ]
    for city in CITIES:
        cells_of_city = (_cell(cells.get((hour, city)), busiest) for hour in HOURS)
        lines.append(Text(f"{city:<{_NAME}}").append_text(Text().join(cells_of_city)))
    sums = [sum(cells[hour, city].cents for city in CITIES if (hour, city) in cells) for hour in HOURS]
    lines.append(Text(f"{'EUR':<{_NAME}}" + "".join(thousands(cents).rjust(_CELL) for cents in sums), "grey62"))
    return Text("\n", no_wrap=True).join(lines)


def thousands(cents: int) -> str:
    """An amount in a cell: at most four characters, so that two of them never touch."""
    if not cents:
        return "·"
    tenths = round(cents / 10_000)
    return f"{tenths / 10:.1f}k" if tenths < 100 else f"{cents / 100_000:.0f}k"


def _cell(cell: Cell | None, busiest: int) -> Text:
    from rich.text import Text

    if cell is None:
        return Text("·".rjust(_CELL), "grey35")
    back, front = _SHADES[min(len(_SHADES) - 1, cell.orders * len(_SHADES) // (busiest + 1))]
    return Text(f"{cell.orders:>{_CELL}}", f"{front} on {back}")


def _events(story: Story) -> list[Text]:
    from rich.text import Text

    lines = []
    for at, text in story.events[-_EVENTS:]:
        style = "bold red" if text.startswith("kill") else ""
        line = Text(f"{at:5.1f} s  ", "grey62") + Text(text, style)
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return lines


def verdict(console: Console, story: Story, where: str) -> None:
    """The last lines: what was checked, and where the report is."""
    from rich.text import Text

    console.print()
    for check in story.checks:
        sign = Text(" ✔ " if check.good else " ✘ ", "bold green" if check.good else "bold red")
        console.print(sign + Text(check.what, "bold" if not check.good else ""), highlight=False)
        console.print(Text(f"   {check.told}", "grey62"), highlight=False, soft_wrap=True)
    console.print()
    good = all(check.good for check in story.checks)
    text = "The books agree, kill -9 or not" if good else "The books do not agree"
    console.print(Text(f"{text}: {story.took:.0f} s in all.", "bold green" if good else "bold red"))
    console.print(f"Report: {where}", highlight=False, soft_wrap=True)
    what_next(console)


def what_next(console: Console) -> None:
    """What a person can try now, as commands that work in this directory."""
    command = "headrace" if shutil.which("headrace") else os.path.relpath(Path(sys.executable).with_name("headrace"))
    console.print("\nTry next:", highlight=False)
    for words, what in (
        ("serve", "a broker on 127.0.0.1:9092, durable; then, in another terminal:"),
        ("produce orders", "type lines, each becomes a message; Ctrl-D ends"),
        ("consume orders --from-beginning", "see them again"),
        ("pipeline init shop", "a Spark pipeline of your own"),
        ("cluster up --nodes 3 --memory", "three brokers and a console"),
    ):
        console.print(f"  {command} {words:<32} # {what}", highlight=False, soft_wrap=True)
