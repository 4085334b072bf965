"""A day of a small chain of coffee shops, as records: orders, payments and clicks from seven to nine.

Rules:
- Everything comes from the seed. Time is the shops' own (`at`); the day may be played at any speed.
- The day is cut into ticks. An order of tick n is at most LATE_MINUTES older than the tick: some tills are offline for
  a while and hand in their orders late. Whoever sends a tick whole before the next may rely on that.
- Some orders are broken on the way. They are no orders, and are kept apart.
- Pure: it sends nothing and knows no broker.
"""

from __future__ import annotations

import bisect
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

ORDERS, PAYMENTS, CLICKS = "orders", "payments", "clicks"
TOPICS: Final = {ORDERS: 2, PAYMENTS: 1, CLICKS: 2}  # and their partitions
SCHEMA: Final = "id long, city string, product string, count int, cents long, at timestamp"
CITIES: Final = {"Bern": 5, "Graz": 3, "Lyon": 6, "Porto": 4, "Utrecht": 3}  # and how much goes on there
PRODUCTS: Final = {"espresso": 240, "flat white": 390, "filter coffee": 310, "croissant": 280, "cinnamon bun": 350}
OPENS, CLOSES = 7, 21
# How busy each hour is; the first is from seven to eight.
_HOURS: Final = (5, 9, 7, 5, 6, 10, 9, 5, 5, 7, 8, 6, 4, 2)
TICKS: Final = 140
LATE_MINUTES: Final = 40
LATE_SHARE, BROKEN_SHARE, PAID_SHARE = 0.03, 0.004, 0.96  # of the orders
CLICKS_PER_ORDER: Final = 2
_CUSTOMERS: Final = 800
_PAGES: Final = ("/menu", "/menu/coffee", "/menu/bakery", "/basket", "/pay")
CLOSING_HOURS: Final = 3  # how long after closing time the last record says it is


class Record(NamedTuple):
    topic: str
    key: bytes
    value: bytes


class Cell(NamedTuple):
    """What was sold in one city within one hour. `id_sum` tells one set of orders from another of the same size."""

    orders: int
    cents: int
    id_sum: int


@dataclass
class Truth:
    """What was sent: the books that all others must agree with."""

    cells: dict[tuple[int, str], Cell] = field(default_factory=dict)  # by hour and city
    ids: set[int] = field(default_factory=set)
    broken: Counter[bytes] = field(default_factory=Counter)
    cash: Counter[bytes] = field(default_factory=Counter)  # payments
    sent: Counter[str] = field(default_factory=Counter)  # records by topic
    late: int = 0

    def add(self, order: dict[str, Any], hour: int) -> None:
        before = self.cells.get((hour, order["city"]), Cell(0, 0, 0))
        self.cells[hour, order["city"]] = Cell(
            before.orders + 1, before.cents + order["cents"], before.id_sum + order["id"]
        )
        self.ids.add(order["id"])

    @property
    def orders(self) -> int:
        return len(self.ids)

    @property
    def cents(self) -> int:
        return sum(cell.cents for cell in self.cells.values())


class Day:
    """The day, tick by tick. `truth` grows with what was handed out."""

    def __init__(self, orders: int, on: date, seed: int = 7) -> None:
        self._wanted = orders
        self._dice = random.Random(seed)
        self._opens = datetime(on.year, on.month, on.day, OPENS, tzinfo=UTC)
        self._sums = [0, *itertools.accumulate(_HOURS)]
        self._numbers = itertools.count(1)
        self.truth = Truth()

    def ticks(self) -> Iterator[list[Record]]:
        """TICKS lists of records, in the order of the day."""
        for tick in range(TICKS):
            first, after = (self._wanted * each // TICKS for each in (tick, tick + 1))
            yield [record for number in range(first, after) for record in self._visit((number + 0.5) / self._wanted)]

    def closing(self) -> Record:
        """The last record: it says that the day is over, so that the last windows are known to be whole.

        It belongs to no shop, and its own window stays open.
        """
        at = self._opens + timedelta(hours=CLOSES - OPENS + CLOSING_HOURS)
        order = {"id": 0, "city": "-", "product": "-", "count": 0, "cents": 0, "at": _text(at)}
        return self._counted(Record(ORDERS, b"-", _bytes(order)))

    def clock(self, part: float) -> datetime:
        """The time in the shops when this part of the orders has come in."""
        total = self._sums[-1]
        place = min(max(part, 0.0), 1.0) * total
        hour = min(bisect.bisect_right(self._sums, place) - 1, len(_HOURS) - 1)
        return self._opens + timedelta(hours=hour + (place - self._sums[hour]) / _HOURS[hour])

    def _visit(self, part: float) -> Iterator[Record]:
        """A customer looks around, orders and pays."""
        dice = self._dice
        customer = f"c{dice.randint(1, _CUSTOMERS)}"
        key = customer.encode()
        now = self.clock(part)
        for _ in range(CLICKS_PER_ORDER):
            click = {"customer": customer, "page": dice.choice(_PAGES), "at": _text(now)}
            yield self._counted(Record(CLICKS, key, _bytes(click)))
        order = self._order(now)
        if dice.random() < BROKEN_SHARE:
            value = _broken(order, dice)
            self.truth.broken[value] += 1
            yield self._counted(Record(ORDERS, key, value))
            return
        self.truth.add(order, datetime.fromisoformat(order["at"]).hour)
        self.truth.late += order["at"] != _text(now)
        yield self._counted(Record(ORDERS, key, _bytes(order)))
        if dice.random() < PAID_SHARE:
            how = dice.choice(("card", "card", "phone", "cash"))
            payment = {"order": order["id"], "method": how, "cents": order["cents"], "at": _text(now)}
            if how == "cash":
                self.truth.cash[_bytes(payment)] += 1
            yield self._counted(Record(PAYMENTS, key, _bytes(payment)))

    def _order(self, now: datetime) -> dict[str, Any]:
        dice = self._dice
        product, count = dice.choice(list(PRODUCTS)), dice.choice((1, 1, 1, 2, 2, 3))
        if dice.random() < LATE_SHARE:
            now = max(self._opens, now - timedelta(minutes=dice.uniform(5, LATE_MINUTES)))
        return {
            "id": next(self._numbers),
            "city": dice.choices(list(CITIES), list(CITIES.values()))[0],
            "product": product,
            "count": count,
            "cents": count * PRODUCTS[product],
            "at": _text(now),
        }

    def _counted(self, record: Record) -> Record:
        self.truth.sent[record.topic] += 1
        return record


def _broken(order: dict[str, Any], dice: random.Random) -> bytes:
    """What a bad line, a bad till and a bad encoding make of an order."""
    text = _bytes(order)
    kind = dice.randrange(4)
    if kind == 0:
        return text[: dice.randint(10, len(text) - 2)]
    if kind == 1:
        return _bytes({**order, "cents": "about three euros"})
    if kind == 2:
        return b"ERR till %d: printer on fire (order %d)" % (dice.randint(1, 40), order["id"])
    return b"\xff\xfe" + text


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
