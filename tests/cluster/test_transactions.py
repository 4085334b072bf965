"""Transactional copiers on a cluster whose nodes are killed, paused and cut off: every order is billed exactly once.

All histories: `python -m headrace.testing.exactly_once --nodes 3`.
"""

from __future__ import annotations

import pytest

from headrace.testing.exactly_once.history import run
from headrace.testing.exactly_once.plan import SEVERAL, plan

NODES = 3
SEEDS = (5,)
SLOW_SEEDS = tuple(seed for seed in range(1, 13) if seed not in SEEDS)

pytestmark = pytest.mark.process


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_order_is_billed_exactly_once_while_nodes_fail(seed: int):
    run(seed, nodes=NODES)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_every_order_is_billed_exactly_once_in_longer_histories(seed: int):
    run(seed, nodes=NODES)


def test_the_histories_have_every_fault():
    assert {blow.fault for seed in (*SEEDS, *SLOW_SEEDS) for blow in plan(seed, nodes=NODES).blows} == set(SEVERAL)
