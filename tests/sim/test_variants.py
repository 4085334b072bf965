"""Proof that the oracles see: brokers that are broken on purpose are caught."""

from __future__ import annotations

import pytest

from headrace.core.errors import HeadraceError
from headrace.testing.sim.history import Violation
from headrace.testing.sim.run import simulate
from headrace.testing.sim.variants import VARIANTS

pytestmark = pytest.mark.timeout(1200)

# A seed at which each is known to show. If brokers or the simulation have changed, others are tried.
SHOWS = {
    "ack before save": 0,
    "no dedup restore": 0,
    "stale read": 5,
    "aborts forgotten": 0,
    "offsets committed before they are saved": 2,
    "truncate on bad CRC": 2,
    "quorum acks before save": 1,
    "vote twice": 3,
    "no epoch check": 2,
    "high watermark from the leader alone": 0,
    "unclean election": 2,
    "elects who lost unsynced bytes": 4,
    "reads are not checked": 1,
    "unreadable logs lead": 3,
    "absent logs are new": 0,
    "removes what does not fit": 1,
    "trusts older directories": 19,
    "open failures are final": 0,
    "serves floods whole": 1,
    "takes what follows a refused batch": 0,
    "answers without end": 0,
    "adopts the log of a former life": 13,
}
ALONE = [name for name, variant in VARIANTS.items() if variant.nodes == 1]
TOGETHER = [name for name, variant in VARIANTS.items() if variant.nodes > 1]


def caught(name: str, most: int) -> str | None:
    for seed in (SHOWS[name], *range(most)):
        try:
            simulate(seed, nodes=VARIANTS[name].nodes, variant=name)
        except (AssertionError, HeadraceError) as error:
            return str(error)
    return None


@pytest.mark.parametrize("name", ALONE)
def test_a_broken_broker_is_caught(name: str) -> None:
    assert caught(name, 100) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_a_broken_cluster_is_caught(name: str) -> None:
    assert caught(name, 60) is not None


def test_a_broker_that_is_not_broken_refuses_rather_than_loses_when_its_disk_rots() -> None:
    for seed in range(3):
        try:
            simulate(seed, nodes=1, rot=True)
        except Violation as error:
            assert "in vain" in str(error), "it may stand still, and nothing else"
