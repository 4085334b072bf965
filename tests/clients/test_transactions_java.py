"""The Java client's transactions: the scenarios of java/Transactions.java, and a bad network."""

from __future__ import annotations

import re
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process import BrokerProcess
from headrace.testing.proxy import TRANSACTIONS_V2, Faults, Proxy

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SOURCE = Path(__file__).parent / "java" / "Transactions.java"
SCENARIOS = re.findall(r'TRANSACTIONS\.put\("(\w+)"', SOURCE.read_text())
COUNT = 60


def java(class_path: str, *arguments: str) -> list[str]:
    command = ["java", "-Xmx256m", "-cp", class_path, "Transactions", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def results(class_path: str, headrace_broker: BrokerProcess) -> dict[str, str]:
    """What the only run said about each scenario."""
    lines = [line.split(" ", 2) for line in java(class_path, headrace_broker.bootstrap_servers, "java-transactions")]
    return {name.rstrip(":"): f"{verdict} {rest}" for verdict, name, rest in lines}


@pytest.mark.parametrize("name", SCENARIOS)
def test_java(results: dict[str, str], name: str):
    assert results[name].startswith("PASS"), results[name]


def reader(bootstrap_servers: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "audit",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def committed(bootstrap_servers: str, topic: str, partition: int) -> list[str]:
    """All that is committed. A commit is answered before its markers are written: wait for them."""
    client, careless = (reader(bootstrap_servers, f"read_{kind}") for kind in ("committed", "uncommitted"))
    place = TopicPartition(topic, partition, 0)
    end = careless.get_watermark_offsets(place, 60)[1]
    careless.close()
    deadline = time.monotonic() + 60
    while client.get_watermark_offsets(place, 60)[1] < end:
        assert time.monotonic() < deadline, f"{topic} has an open transaction"
        time.sleep(0.02)
    client.assign([place])
    found = []
    while (message := client.poll(60)) is not None:
        if message.error() is None:
            found.append(message.value().decode())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            client.close()
            return found
    raise TimeoutError(f"{topic} has no end after {len(found)} records")


def test_transactions_are_whole_and_in_order_through_a_bad_network(class_path: str, tmp_path: Path):
    """With version 2 of the protocol everything may be doubled and late."""
    faults = Faults(
        lose_answer=0.03,
        delay_answer=0.05,
        lose_request=0.02,
        repeat=0.1,
        late=0.04,
        longest_delay_s=0.1,
        doubled=TRANSACTIONS_V2,
    )
    proxy = Proxy(Faults(), seed=5)
    with (
        BrokerProcess(tmp_path / "data", "--log-level", "warning", "--advertised-port", str(proxy.port)) as broker,
        proxy,
    ):
        proxy.upstream = "127.0.0.1", broker.port
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for future in admin.create_topics([NewTopic("a", 2), NewTopic("b", 2)]).values():
            future.result(60)
        proxy.faults = faults
        lines = java(class_path, proxy.bootstrap_servers, "write", "a", "b", str(COUNT))
        proxy.faults = Faults()
        found = {place: committed(proxy.bootstrap_servers, *place) for place in (("a", 0), ("b", 1))}
        log = broker.log_tail(200)
    assert proxy.counts["repeat"], proxy.counts
    assert any(proxy.counts[name] for name in ("lose_answer", "lose_request", "late")), proxy.counts
    told = [line.removeprefix("committed ") for line in lines if line.startswith("committed ")]
    assert [int(label.split()[0]) for label in told] == [number for number in range(COUNT) if number % 5 != 4]
    for place, values in found.items():
        by_label: dict[str, list[str]] = defaultdict(list)
        for value in values:
            label, _, index = value.rpartition(" ")
            by_label[label].append(index)
        assert list(by_label) == told, f"{place}: lost, doubled or out of order"
        assert set(map(tuple, by_label.values())) == {("0", "2", "4") if place[0] == "a" else ("1", "3", "5")}, place
    assert "Traceback" not in log, log
