"""Classes of faults that are switched on by name: promises are kept under those that the suite has, too.

`python -m headrace.testing.sim --faults folders --seed 17 --nodes 3` replays one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from headrace.testing.sim.programs import KINDS, USUAL
from headrace.testing.sim.run import attempt

pytestmark = pytest.mark.timeout(600)

SEEDS = 2  # of each; `make sim FAULTS=all` runs more
# What once showed a bug: programs, nodes, seed.
REGRESSIONS: list[tuple[str, int, int]] = [
    ("files", 1, 2),  # a segment that could not be begun for want of a descriptor failed its log for good
    ("files", 1, 5),  # a directory that could not be opened to be synced took all logs offline
    ("reads", 3, 16),  # caught up, moved and elected in one entry: the simulation's own fault
]
FIRST = {"directories": 18}  # a seed from which on the class shows
# What each class must bring about to be worth its name.
EVENTS = {
    "folders": "fault: folder lost",
    "directories": "fault: older directory",
    "journal": "fault: journal cut",
    "reads": "fault: reads fail",
    "full": "acknowledged in pipelines",
    "files": "topics made while no file could be opened",
    "floods": "bytes of answers to floods",
    "rebirth": "fault: down in a topic's life",
}


@pytest.mark.parametrize("name", USUAL)
def test_no_history_breaks_a_promise(name: str) -> None:
    facts: Counter[str] = Counter()  # what a class is for has happened at least once
    for place in range(SEEDS):
        outcome = attempt(FIRST.get(name, 0) + place, nodes=3 if place < 2 else 1, programs=[name])
        assert not outcome.fault, outcome.fault
        facts.update(outcome.facts)
    assert facts[EVENTS[name]], f"{name}: nothing happened"


def test_what_once_showed_a_bug_does_not_show_it_again() -> None:
    for names, nodes, seed in REGRESSIONS:
        outcome = attempt(seed, nodes=nodes, programs=names.split(","))
        assert not outcome.fault, outcome.fault


def test_every_class_has_a_broken_broker_that_it_catches() -> None:
    from headrace.testing.sim.variants import VARIANTS

    proven = {name for variant in VARIANTS.values() for name in variant.programs}
    assert set(USUAL) <= proven


def test_the_same_seed_is_the_same_history_whatever_the_hash_seed() -> None:
    program = f"""
from headrace.testing.sim.run import simulate
try:
    print(simulate(6, nodes=3, programs={tuple(KINDS)!r}).digest)
except AssertionError as error:
    print(error)
"""
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for hash_seed in ("0", "7")
    }
    assert len(seen) == 1
