"""Seeded histories of whole clusters, and proof that the oracles see: machines that are broken on purpose are caught.

HEADRACE_RAFT_SEEDS=5000 runs that many; HEADRACE_RAFT_SEED=17 replays one history and prints it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from network import CAUGHT, simulate

from headrace.raft.leader import Leader
from headrace.raft.log import Log
from headrace.raft.quorum import agreed
from headrace.raft.reads import ReadRounds
from headrace.raft.role import Role

ONE = os.environ.get("HEADRACE_RAFT_SEED")
SEEDS = int(os.environ.get("HEADRACE_RAFT_SEEDS", "200"))
PORTION = 20


def check(seeds: Iterable[int], trace: bool = False) -> None:
    for seed in seeds:
        try:
            simulate(seed, trace=trace)
        except Exception as error:
            replay = f"HEADRACE_RAFT_SEED={seed} python -m pytest -s {os.path.relpath(__file__)} -k replayed"
            raise AssertionError(f"seed {seed}: {error!r}\nreplay: {replay}") from error


@pytest.mark.skipif(ONE is not None, reason="one seed is replayed")
@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_no_history_breaks_a_promise_and_every_healed_cluster_goes_on(first: int) -> None:
    check(range(first, min(first + PORTION, SEEDS)))


@pytest.mark.skipif(ONE is None, reason="HEADRACE_RAFT_SEED names the seed to replay")
def test_a_seed_is_replayed() -> None:
    check([int(ONE or 0)], trace=True)


def test_the_same_seed_is_the_same_history() -> None:
    one, two = simulate(3), simulate(3)
    assert (one.now, one.order, one.oracles.states) == (two.now, two.order, two.oracles.states)


def test_histories_are_eventful() -> None:
    """A simulation in which nothing happens proves nothing."""
    ran = [simulate(seed) for seed in range(20)]
    assert sum(len(simulation.oracles.leaders) for simulation in ran) > 60
    assert sum(simulation.oracles.committed_index for simulation in ran) > 500
    assert sum(simulation.reads_served for simulation in ran) > 100
    assert sum(simulation.snapshots_installed for simulation in ran) > 10
    changes = [entry for one in ran for entry in one.oracles.committed.values() if entry.membership and entry.index > 1]
    assert len(changes) > 15


def _counts_what_it_has_not_saved(leader: Leader) -> int:
    match = {node: progress.match for node, progress in leader.followers.items()}
    return agreed(leader.state.membership.voters, {**match, leader.state.node_id: leader.state.log.last_index})


def _replaces_what_agrees(log: Log, prev_index: int, prev_term: int, entries: Any) -> bool:
    if log.term(prev_index) != prev_term:
        return False
    if log.commit <= prev_index < log.last_index:
        log._truncate(prev_index + 1)
    return _merge(log, prev_index, prev_term, entries)


def _looks_at_no_term(log: Log, prev_index: int, prev_term: int, entries: Any) -> bool:
    return prev_index <= log.last_index and _merge(log, prev_index, log.term(prev_index) or 0, entries)


_merge, _finish = Log.merge, ReadRounds.finish

# What is broken, and a seed at which it is known to show. If the simulation has changed, others are tried.
FLAWS: dict[str, tuple[int, tuple[type, str, Any]]] = {
    "votes twice in a term": (5, (Role, "_may_vote_for", lambda *_: True)),
    "votes without a look at the log": (0, (Log, "is_up_to_date", lambda *_: True)),
    "commits entries of older terms by counting": (5, (Leader, "_may_commit", lambda *_: True)),
    "counts what it has not saved itself": (33, (Leader, "_reached", _counts_what_it_has_not_saved)),
    "appends after an entry of another term": (0, (Log, "merge", _looks_at_no_term)),
    "replaces entries that do not conflict": (0, (Log, "merge", _replaces_what_agrees)),
    "serves reads without asking a majority": (21, (ReadRounds, "finish", lambda reads, _: _finish(reads, 2**62))),
    "serves reads before its term has started": (5, (Leader, "has_started", True)),
}


def caught(run: Callable[[int], object], seeds: Iterable[int]) -> bool:
    for seed in seeds:
        try:
            run(seed)
        except CAUGHT:
            return True
    return False


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_broken_machine_is_caught(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, patch = FLAWS[flaw]
    monkeypatch.setattr(*patch)
    assert caught(simulate, [seed, *range(300)])


def test_a_driver_that_acknowledges_before_it_saves_is_caught() -> None:
    assert caught(lambda seed: simulate(seed, acknowledges_before_saving=True), [33, *range(300)])
