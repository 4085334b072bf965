"""kill -9 of a broker under load, again and again: nothing acknowledged is lost, doubled or moved; groups go on."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.ledger import CLIENT, Ledger
from headrace.testing.process import BrokerProcess

pytestmark = pytest.mark.process

KILLS = 20
PARTITIONS = 3
TOPIC, GROUP = "ledger", "bookkeepers"


def create_topic(bootstrap_servers: str) -> None:
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(60)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_twenty_kills_under_load_lose_nothing(tmp_path: Path):
    dice = random.Random(7)
    with BrokerProcess(tmp_path / "data", "--log-level", "warning") as broker:
        ledger = Ledger(broker.bootstrap_servers, partitions=PARTITIONS)
        ledger.open()
        for _ in range(KILLS):
            ledger.await_progress()
            time.sleep(dice.uniform(0.0, 0.2))
            broker.kill()
            broker.start()
        assert ledger.close() == []
        log = broker.log_tail(200)
        assert "Traceback" not in log, log


@pytest.mark.timeout(400)
def test_committed_offsets_survive_a_kill_right_after_the_answer(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.bootstrap_servers)
        for number in range(1, 4):
            client = Consumer({**CLIENT, "bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})
            places = [TopicPartition(TOPIC, index, number * 10 + index, f"round {number}") for index in range(3)]
            client.commit(offsets=places, asynchronous=False)
            broker.kill()
            broker.start()
            found = client.committed([TopicPartition(TOPIC, index) for index in range(3)], timeout=60)
            client.close()
            assert [(place.offset, place.metadata) for place in found] == [
                (number * 10 + index, f"round {number}") for index in range(3)
            ]
