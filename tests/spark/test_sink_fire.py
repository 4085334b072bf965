"""Exactly once under fire, in small; the campaign is `python -m headrace.testing.spark_exactly_once`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.spark_exactly_once.history import History

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_a_worker_the_broker_and_the_driver_are_killed_and_every_row_is_there_once(
    tmp_path: Path, quick: dict[str, str]
) -> None:
    history = History(tmp_path, 11, ("exactly_once",), per_batch=200, conf=quick)
    history.run()
    assert sorted(history.done) == ["broker", "driver", "worker"]


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["exactly_once_partitioned", "letters", "table"])
def test_other_flows_lose_a_worker_and_their_driver_and_every_row_is_there_once(tmp_path: Path, flow: str) -> None:
    History(tmp_path, 12, (flow,), ("worker", "driver"), per_batch=200).run()
