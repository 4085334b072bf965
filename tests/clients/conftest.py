"""Real clients against a real broker: one `headrace serve` process, on disk, for the whole folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def headrace_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The plugin's fixture, in a process of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("clients") / "data", "--log-level", "warning") as broker:
        yield broker
        assert "Traceback" not in broker.log_tail(1000), broker.log_tail(60)
