"""Raw sockets against an embedded broker, which must stay calm whatever comes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psutil
import pytest

from headrace import Broker
from headrace.testing.peer import Peer, is_serving


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # Records of any age are kept: tests like fixed times.
    with Broker(group_initial_rebalance_delay_ms=0, storage_retention_ms=-1) as broker:
        yield broker


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.bootstrap_servers) as peer:
        yield peer


@pytest.fixture(autouse=True)
def calm(broker: Broker, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After every test: a newcomer is served, and nothing was logged that looks like a bug of ours."""
    with caplog.at_level(logging.ERROR, logger="headrace"):
        yield
    assert is_serving(broker.bootstrap_servers)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class Memory:
    """How much this process has grown since the test began."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss

    @property
    def growth_mib(self) -> float:
        return (self._process.memory_info().rss - self._before) / (1 << 20)


@pytest.fixture
def memory() -> Memory:
    return Memory()
