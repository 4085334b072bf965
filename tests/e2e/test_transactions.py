"""Consume, transform, produce, exactly once, while broker and clients are killed: a few of the histories.

All of them: `python -m headrace.testing.exactly_once`, and again with `--proxy`.
"""

from __future__ import annotations

import msgspec
import pytest

from headrace.testing.exactly_once.history import run
from headrace.testing.exactly_once.oracle import Evidence, complaints
from headrace.testing.exactly_once.plan import LONE, plan
from headrace.testing.exactly_once.transformer import BILLS, LEDGER, Bill

SEEDS = (2, 7, 25, 32)
PROXY_SEEDS = (23, 36)


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_order_is_billed_exactly_once_through_kills(seed: int):
    run(seed)


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", PROXY_SEEDS)
def test_every_order_is_billed_exactly_once_through_kills_and_a_bad_network(seed: int):
    assert run(seed, proxy=True).mishaps


def test_the_quick_histories_have_every_fault():
    faults = {blow.fault for seed in (*SEEDS, *PROXY_SEEDS) for blow in plan(seed).blows}
    assert faults == set(LONE)


# -- the judge itself


def records(*bills: tuple[str, Bill]) -> dict[tuple[str, int, int], bytes]:
    return {(topic, 0, offset): msgspec.json.encode(bill) for offset, (topic, bill) in enumerate(bills)}


def one(label: str = "a", order: str = "order-1", **changes: object) -> list[tuple[str, Bill]]:
    bill = msgspec.structs.replace(Bill(label, 2, [order], doomed=False), **changes)
    return [(BILLS, bill), (LEDGER, bill)]


def judged(visible, *, everything=None, orders=("order-1",), seen=None, committed=(), aborted=()) -> list[str]:
    found = records(*visible)
    return list(
        complaints(
            Evidence(
                frozenset(orders),
                found,
                found if seen is None else seen,
                found if everything is None else everything,
                committed,
                aborted,
            )
        )
    )


def test_the_judge_has_nothing_to_say_when_all_is_well():
    assert judged(one(), committed=["a"], aborted=["b"]) == []


@pytest.mark.parametrize(
    ("complaint", "arguments"),
    [
        ("orders missing in bills", {"visible": []}),
        ("orders more than once in ledger", {"visible": [*one(), *one("b")]}),
        ("orders in bills that nobody gave", {"visible": [*one(), *one("b", "order-2")]}),
        ("torn transactions", {"visible": one(records=3)}),
        ("torn transactions", {"visible": [one()[0], *one()]}),
        ("doomed transactions that are visible", {"visible": one(doomed=True)}),
        ("committed transactions that are not visible", {"visible": one(), "committed": ["a", "b"]}),
        ("aborted transactions that are visible", {"visible": one(), "aborted": ["a"]}),
        ("records that changed or went away", {"visible": one(), "seen": {(BILLS, 0, 9): b"{}"}}),
        ("committed records that only their readers see", {"visible": one(), "everything": {}}),
    ],
)
def test_the_judge_notices(complaint: str, arguments: dict):
    assert any(complaint in found for found in judged(**arguments))
