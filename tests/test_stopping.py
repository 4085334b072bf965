"""A broker that is stopped in the middle of something."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from headrace import Broker
from headrace.testing.peer import Peer

PARTITIONS = 200
CREATE_TOPICS, METADATA = 19, 3


def test_a_broker_can_be_stopped_while_it_opens_the_logs_of_a_new_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    broker = Broker(str(tmp_path))
    wanted = {"name": "wide", "num_partitions": PARTITIONS, "replication_factor": 1}
    asked = {"topics": [{"name": "wide"}], "allow_auto_topic_creation": False}
    with caplog.at_level(logging.WARNING, logger="headrace"):
        broker.start()
        with Peer(broker.bootstrap_servers) as creator, Peer(broker.bootstrap_servers) as watcher:
            creator.send(CREATE_TOPICS, 7, {"topics": [wanted], "timeout": 5000})
            deadline = time.monotonic() + 30
            while not watcher.call(METADATA, 9, asked).topics[0].partitions:
                assert time.monotonic() < deadline
            broker.stop()  # which raised, left logs open, and a task behind that nobody heard of
    told = [record for record in caplog.records if record.levelno > logging.WARNING or "log" in record.getMessage()]
    assert [record.getMessage() for record in told] == []
