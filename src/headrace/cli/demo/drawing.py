"""Drawings as SVG text. Colours are the page's: classes and variables of its style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headrace.cli.demo.day import CITIES, CLOSES, OPENS, Cell

if TYPE_CHECKING:
    from headrace.cli.demo.play import Sample

_WIDE: Final = 900
_LEFT, _RIGHT = 62, 12


def timeline(samples: Sequence[Sample], killed_at: float | None, back_at: float | None) -> str:
    """Sent, archived and counted records over time, with the time without a pipeline marked."""
    top, low, high = 24, 290, 330
    last = max((each.at for each in samples), default=1.0)
    most = max((each.sent for each in samples), default=1)
    step = nice_step(most, 4)
    ceiling = max(step, math.ceil(most / step) * step)

    def x(at: float) -> float:
        return _LEFT + (_WIDE - _LEFT - _RIGHT) * at / last

    def y(count: float) -> float:
        return low - (low - top) * count / ceiling

    parts = [f'<svg viewBox="0 0 {_WIDE} {high}" role="img" aria-label="Records sent, archived and counted over time">']
    for count in range(0, ceiling + 1, step):
        kind = "axis" if count == 0 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y(count):.1f}" y2="{y(count):.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y(count) + 4:.1f}" text-anchor="end">{count:,}</text>')
    every = nice_step(int(last), 6)
    parts += [
        f'<text x="{x(second):.1f}" y="{low + 20}" text-anchor="middle">{second} s</text>'
        for second in range(0, int(last) + 1, every)
    ]
    if killed_at is not None:
        parts += _outage(x(killed_at), x(min(back_at or last, last)), top, low)
    parts.append(_curve("sent", _smooth((x(each.at), y(each.sent)) for each in samples)))
    for name in ("archived", "counted"):
        points = [(x(each.at), y(getattr(each, name))) for each in samples]
        parts.append(_curve(name, _stairs(points)))
    return "".join([*parts, "</svg>"])


def _outage(start: float, end: float, top: int, low: int) -> Iterator[str]:
    yield f'<rect class="outage" x="{start:.1f}" y="{top}" width="{max(0.0, end - start):.1f}" height="{low - top}"/>'
    yield f'<line class="cut" x1="{start:.1f}" x2="{start:.1f}" y1="{top - 6}" y2="{low}"/>'
    yield f'<text class="fault" x="{start:.1f}" y="{top - 10}" text-anchor="middle">kill -9</text>'
    yield f'<text x="{end:.1f}" y="{top - 10}" text-anchor="middle">back</text>'


def _curve(name: str, path: str) -> str:
    return f'<path class="curve" style="stroke:var(--{name})" d="{path}"/>' if path else ""


def _smooth(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))


def _stairs(points: Sequence[tuple[float, float]]) -> str:
    """A step at every change: between two looks nothing is known."""
    found = ""
    for number, (x, y) in enumerate(points):
        found += f"H{x:.1f}V{y:.1f}" if number else f"M{x:.1f} {y:.1f}"
    return found


def hours(cells: Mapping[tuple[int, str], Cell]) -> str:
    """Takings by the hour as bars, and below them orders by hour and city, the busier the stronger."""
    span = range(OPENS, CLOSES)
    bars, cell_high, first = 110, 34, 150
    wide = (_WIDE - 80 - _RIGHT) / len(span)
    sums = {hour: sum(cells[hour, city].cents for city in CITIES if (hour, city) in cells) for hour in span}
    most, busiest = max([*sums.values(), 1]), max([each.orders for each in cells.values()] or [1])
    high = first + cell_high * len(CITIES) + 8
    parts = [f'<svg viewBox="0 0 {_WIDE} {high}" role="img" aria-label="Takings and orders by the hour">']
    for place, hour in enumerate(span):
        x, size = 80 + place * wide, bars * 0.82 * sums[hour] / most
        parts.append(
            f'<rect x="{x + 3:.1f}" y="{bars - size:.1f}" width="{wide - 6:.1f}" height="{size:.1f}" rx="3" '
            f'style="fill:var(--counted)"/>'
        )
        label = f"{sums[hour] / 100:,.0f}"
        parts.append(f'<text x="{x + wide / 2:.1f}" y="{bars - size - 6:.1f}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{x + wide / 2:.1f}" y="{bars + 20}" text-anchor="middle">{hour:02d}:00</text>')
        for row, city in enumerate(CITIES):
            parts += _square(cells.get((hour, city)), x, first + row * cell_high, wide, cell_high, busiest)
    parts.append(f'<text x="70" y="{bars - 4}" text-anchor="end">EUR</text>')
    for row, city in enumerate(CITIES):
        parts.append(f'<text class="name" x="70" y="{first + row * cell_high + 22}" text-anchor="end">{city}</text>')
    return "".join([*parts, "</svg>"])


def _square(cell: Cell | None, x: float, y: float, wide: float, high: float, busiest: int) -> Iterator[str]:
    strength = 0.0 if cell is None else cell.orders / busiest
    mix = f"color-mix(in oklab, var(--warm) {100 * strength:.0f}%, var(--cold))"
    yield (
        f'<rect x="{x + 1.5:.1f}" y="{y + 1.5:.1f}" width="{wide - 3:.1f}" height="{high - 3:.1f}" rx="4" '
        f'style="fill:{mix}"/>'
    )
    ink = "var(--card)" if strength > 0.45 else "var(--ink)"
    text = "·" if cell is None else f"{cell.orders:,}"
    yield (
        f'<text x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}" text-anchor="middle" style="fill:{ink}">{text}</text>'
    )


def nice_step(most: int, wanted: int) -> int:
    """1, 2 or 5 times a power of ten: about `wanted` steps up to `most`."""
    rough = max(1.0, most / wanted)
    power = 10 ** math.floor(math.log10(rough))
    return int(next(power * each for each in (1, 2, 5, 10) if power * each >= rough))
