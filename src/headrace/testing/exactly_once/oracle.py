"""What must hold when a history is over. Pure: records and journals in, complaints out.

- Every order is billed exactly once, and stands in the ledger exactly once, for readers of committed records.
- No transaction is torn: all of its records are visible, or none.
- What a transformer was told is committed is visible; what was aborted is not, nor what was doomed.
- A reader that was there all the time saw what a reader sees who comes later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headrace.testing.exactly_once.transformer import BILLS, LEDGER, Bill

Place = tuple[str, int, int]  # topic, partition, offset
SHOWN = 5


class Evidence(NamedTuple):
    orders: frozenset[str]  # that were acknowledged
    committed: Mapping[Place, bytes]  # to readers of committed records, in the end
    seen: Mapping[Place, bytes]  # by the one that was there all the time
    everything: Mapping[Place, bytes]  # to readers of all records, in the end
    told_committed: Iterable[str]  # labels, as the journals have them
    told_aborted: Iterable[str]


def complaints(evidence: Evidence) -> Iterator[str]:
    """What is wrong; nothing if all is well."""
    bills = [(place, msgspec.json.decode(value, type=Bill)) for place, value in evidence.committed.items()]
    for topic in (BILLS, LEDGER):
        billed = Counter(order for place, bill in bills if place[0] == topic for order in bill.orders)
        yield from _several(f"orders missing in {topic}", evidence.orders - billed.keys())
        yield from _several(f"orders in {topic} that nobody gave", billed.keys() - evidence.orders)
        yield from _several(f"orders more than once in {topic}", (order for order, n in billed.items() if n > 1))
    found = Counter(bill.label for _, bill in bills)
    expected = {bill.label: bill.records for _, bill in bills}
    torn = (f"{label}: {found[label]} of {records}" for label, records in expected.items() if found[label] != records)
    yield from _several("torn transactions", torn)
    yield from _several("doomed transactions that are visible", {bill.label for _, bill in bills if bill.doomed})
    yield from _several("committed transactions that are not visible", set(evidence.told_committed) - found.keys())
    yield from _several("aborted transactions that are visible", set(evidence.told_aborted) & found.keys())
    yield from _several("records that changed or went away", _differences(evidence.seen, evidence.committed))
    yield from _several(
        "committed records that only their readers see", _differences(evidence.committed, evidence.everything)
    )


def _differences(before: Mapping[Place, bytes], after: Mapping[Place, bytes]) -> Iterator[str]:
    for place, value in before.items():
        if after.get(place) != value:
            yield f"{place}: {value!r} became {after.get(place)!r}"


def _several(what: str, found: Iterable[str]) -> Iterator[str]:
    names = sorted(found)
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}"
