"""The simulation itself: one seed is one history, histories are eventful, and a broker alone keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from headrace.testing.sim.run import replay_command, simulate

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "200"))
PORTION = 10
REGRESSIONS: dict[int, list[int]] = {1: []}  # nodes -> seeds that have once shown a bug


def check(seeds: Iterable[int], nodes: int) -> None:
    for seed in seeds:
        try:
            simulate(seed, nodes=nodes)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}\nreplay: {replay_command(seed, nodes)}") from error


@pytest.mark.parametrize("first", range(0, SEEDS // 5, PORTION))
def test_a_broker_alone_keeps_its_promises(first: int) -> None:
    check(range(first, first + PORTION), nodes=1)


def test_what_once_showed_a_bug_does_not_show_it_again() -> None:
    for nodes, seeds in REGRESSIONS.items():
        check(seeds, nodes)


def test_histories_are_eventful() -> None:
    """A simulation in which nothing happens proves nothing."""
    facts: dict[str, int] = {}
    for seed in range(5):
        for name, count in simulate(seed, nodes=1).facts.items():
            facts[name] = facts.get(name, 0) + count
    assert facts["acknowledged"] > 500
    assert facts["consumed"] > 500
    assert facts["transactions committed"] > 100
    assert facts["transactions aborted"] > 20
    assert facts["generations joined"] > 10
    assert sum(count for name, count in facts.items() if name.startswith("fault: ")) > 25


def test_the_same_seed_is_the_same_history_whatever_the_hash_seed() -> None:
    program = "from headrace.testing.sim.run import simulate; print(simulate(3, nodes=1).digest)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("0", "7")
    }
    assert seen == {simulate(3, nodes=1).digest + "\n"}
