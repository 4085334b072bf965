"""A broker that may open few files, and a crowd of connections that would take them all."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ErrorCode
from headrace.testing.peer import ClosedError, Peer
from headrace.testing.process import BrokerProcess
from headrace.wire.batch import build

pytestmark = pytest.mark.process

FILES = 200
CROWD = 300


class ModestProcess(BrokerProcess):
    """A broker that may open `FILES` files, connections among them."""

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *super().command()]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with ModestProcess(tmp_path / "data") as broker:
        yield broker


def create(peer: Peer, topic: str, partitions: int) -> ErrorCode:
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    return ErrorCode(peer.call(19, 7, {"topics": [wanted], "timeout": 60_000}).topics[0].error_code)


def produce(peer: Peer, topic: str, index: int) -> ErrorCode:
    batch = build([(b"k", b"v")], timestamp_ms=int(time.time() * 1000))
    rows = [{"index": index, "records": batch}]
    asked: dict[str, Any] = {"acks": -1, "timeout": 60_000}
    asked["topic_data"] = [{"name": topic, "partition_data": rows}]
    return ErrorCode(peer.call(0, 9, asked).responses[0].partition_responses[0].error_code)


def is_served(peer: Peer) -> bool:
    try:
        return bool(peer.call(18, 0).error_code == ErrorCode.none)
    except (ClosedError, OSError):
        return False


def test_a_crowd_of_connections_leaves_files_for_logs_and_pages(broker: BrokerProcess):
    with ExitStack() as stack:
        first = stack.enter_context(Peer(broker.bootstrap_servers))
        assert is_served(first)
        crowd = [stack.enter_context(Peer(broker.bootstrap_servers)) for _ in range(CROWD)]
        served = sum(map(is_served, crowd))
        assert FILES // 4 < served < FILES
        with urllib.request.urlopen(f"{broker.http_url}/healthz", timeout=60) as page:
            assert page.status == 200
        with urllib.request.urlopen(f"{broker.http_url}/readyz", timeout=60) as page:
            assert page.status == 200
        assert create(first, "made-meanwhile", 100) == ErrorCode.none
        assert [produce(first, "made-meanwhile", index) for index in range(100)] == [ErrorCode.none] * 100
    assert "allows fewer connections" in broker.log.read_text()
    deadline = time.monotonic() + 60
    while True:  # places become free
        with Peer(broker.bootstrap_servers) as peer:
            if is_served(peer):
                return
        assert time.monotonic() < deadline
