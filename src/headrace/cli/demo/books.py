"""The books: what was sent, held against what Spark made of it. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cli.demo.day import Cell, Truth

Cells = Mapping[tuple[int, str], Cell]


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    told: str
    good: bool


def check_rollup(truth: Truth, cells: Cells, seen: Counter[tuple[int, str]]) -> Check:
    """Every window once, with the number, the takings and the ids of its orders."""
    what = "every order is counted once in the roll-up"
    twice = [place for place, times in seen.items() if times > 1]
    wrong = [place for place in {*truth.cells, *cells} if truth.cells.get(place) != cells.get(place)]
    if not twice and not wrong:
        told = f"{truth.orders:,} orders ({truth.late:,} late), {len(cells)} windows"
        return Check(what, f"{told}; numbers, ids, {_euro(truth.cents)} agree", True)
    counted = sum(cell.orders for cell in cells.values())
    places = ", ".join(f"{city} at {hour}" for hour, city in sorted({*twice, *wrong})[:5])
    return Check(
        what, f"{counted:,} of {truth.orders:,} orders; {len(twice)} windows twice, {len(wrong)} wrong: {places}", False
    )


def check_archive(truth: Truth, values: Iterable[bytes]) -> Check:
    """Every order once among the archived records, and every broken one too."""
    what = "every order is once in the archive"
    ids: Counter[int] = Counter()
    broken: Counter[bytes] = Counter()
    for value in values:
        if value in truth.broken:
            broken[value] += 1
        else:
            ids[json.loads(value)["id"]] += 1
    closing = ids.pop(0, 0)
    missing, twice = truth.ids - ids.keys(), [each for each, times in ids.items() if times > 1]
    good = not missing and not twice and len(ids) == truth.orders and broken == truth.broken and closing == 1
    told = (
        f"{len(ids):,} ids, {len(missing)} missing, {len(twice)} twice; the {broken.total()} broken ones as they came"
    )
    return Check(what, told, good)


def check_proof(truth: Truth, holds: bool, rows: int, files: int, faults: Iterable[str]) -> Check:
    """`headrace table verify`, with the broker."""
    what = "verify: no offset is missing, none is there twice"
    sent = truth.sent.total()
    told = f"{rows:,} of {sent:,} records of {len(truth.sent)} topics, in {files} Parquet files of one Delta table"
    return Check(what, "; ".join([told, *faults]), holds and rows == sent)


def check_letters(truth: Truth, letters: Counter[bytes], unexplained: int, reasons: int) -> Check:
    what = "broken orders are in the dead-letter topic"
    told = f"{letters.total():,} of {truth.broken.total():,}, each with its bytes, its place and the reason"
    if unexplained:
        told += f"; {unexplained} without"
    return Check(what, told, letters == truth.broken and not unexplained and reasons > 0)


def check_answer(truth: Truth, products: list[list[Any]], seconds: float) -> Check:
    what = "SQL over the archive and the live topic agrees"
    cents = sum(row[2] for row in products)
    best = f"; best seller: {products[0][0]}, {products[0][1]:,} sold" if products else ""
    return Check(what, f"{_euro(cents)} in {seconds:.1f} s{best}", cents == truth.cents)


def check_replay(truth: Truth, again: Counter[bytes], seconds: float) -> Check:
    what = "a replay from the archive sends each record once"
    told = f"{again.total():,} of {truth.cash.total():,} payments in cash, in {seconds:.1f} s"
    return Check(what, told, again == truth.cash)


def _euro(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"
