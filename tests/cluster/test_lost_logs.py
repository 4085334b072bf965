"""A real cluster that goes down as a whole; one node comes back without its log. Nothing acknowledged is lost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import Cluster
from headrace.testing.ledger import CLIENT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

TOPIC = "orders"


def produce(cluster: Cluster, count: int) -> None:
    failures: list[object] = []
    producer = Producer({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(count):
        producer.produce(TOPIC, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(120) == 0
    assert failures == []


def records(cluster: Cluster) -> int:
    client = Consumer({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                low, high = client.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=60)
                return int(high - low)
            except KafkaException:  # a new leader tells no end before it knows what is committed
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    finally:
        client.close()


def start_all(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.launch()


@pytest.mark.parametrize("damage", ["missing", "older", "identity"])
def test_a_leader_that_lost_its_log_does_not_lead_and_no_record_is_lost(tmp_path: Path, damage: str) -> None:
    with Cluster(tmp_path, nodes=3) as cluster:
        admin = AdminClient({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(60)
        cluster.await_in_sync(TOPIC, 3)
        produce(cluster, 20)
        led = cluster.node(cluster.leader_of(TOPIC))
        log = led.data_dir / "topics" / f"{TOPIC}-0"
        shutil.copytree(log, tmp_path / "backup")
        produce(cluster, 30)
        for node in (led, *(node for node in cluster.nodes if node is not led)):
            node.pause()  # the one that will lose its log first: it must not be the last that is in sync
        for node in cluster.nodes:
            node.kill()
        if damage == "identity":
            content = bytearray((log / "identity").read_bytes())
            content[10] ^= 1
            (log / "identity").write_bytes(content)
        else:
            shutil.rmtree(log)
        if damage == "older":
            shutil.copytree(tmp_path / "backup", log)
        start_all(cluster)
        cluster.await_in_sync(TOPIC, 3)
        assert records(cluster) == 50, cluster.logs(60)
        told = "is set aside, to be copied from its leader" in led.log_tail(1000)
        assert told == (damage != "identity"), led.log_tail(100)
