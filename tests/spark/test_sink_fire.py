"""Exactly once under fire, in small; the campaign is in fire.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.fire import DELIVERIES, Run

pytestmark = [pytest.mark.process]


@pytest.mark.timeout(600)
def test_a_worker_the_broker_and_the_driver_are_killed_and_every_row_is_there_once(tmp_path: Path) -> None:
    run = Run(tmp_path, seed=11, delivery="exactly_once", records=3000, per_batch=400)
    run.go()
    assert sorted(run.done) == ["broker", "driver", "worker"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(20))
def test_the_campaign(tmp_path: Path, seed: int) -> None:
    Run(tmp_path, seed, DELIVERIES[seed % 2], kills=("worker", "broker", "driver", "worker")).go()
