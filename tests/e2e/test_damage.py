"""Bits that flip on the disk of a running broker, and a disk that cannot sync: real processes, real clients."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.runtime.residency import Map
from headrace.testing.cluster import Cluster
from headrace.testing.ledger import CLIENT
from headrace.testing.process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

TOPIC, COUNT, FLIPS = "orders", 400, 39
SECONDS = 60.0

# A broker whose metadata log cannot be synced any more once a file says so.
FAILING_SYNC = """
import os, sys
from headrace.runtime import disk
healthy = disk.sync_descriptor
def sync(fd):
    if os.path.exists(sys.argv[1]) and os.readlink(f"/proc/self/fd/{fd}").endswith(".raft"):
        raise OSError(5, "Input/output error")
    healthy(fd)
disk.sync_descriptor = sync
from headrace.cli import run
sys.exit(run(sys.argv[2:]))
"""


def value(number: int) -> bytes:
    return b"%d " % number * 2000


def fill(bootstrap_servers: str, replicas: int) -> None:
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, replicas)])[TOPIC].result(SECONDS)
    producer = Producer({**CLIENT, "bootstrap.servers": bootstrap_servers, "batch.num.messages": 4, "acks": "all"})
    for number in range(COUNT):
        producer.produce(TOPIC, value(number), partition=0)
    assert producer.flush(SECONDS) == 0


def damage(data_dir: Path) -> None:
    """Flip bits of values in the second half of the log, on the disk; the system forgets what it had in memory."""
    [path] = (data_dir / "topics" / f"{TOPIC}-0").glob("*.log")
    with open(path, "r+b", buffering=0) as log:
        content = log.read()
        places = [content.index(value(number)) for number in range(COUNT // 2, COUNT, (COUNT // 2) // FLIPS)]
        for place in places:
            os.pwrite(log.fileno(), bytes((content[place + 3] ^ 1,)), place + 3)
        os.fsync(log.fileno())
        os.posix_fadvise(log.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        kept = Map(log.fileno(), len(content)).read_resident(places[0], 1)  # which reads nothing from the disk
    if kept is not None:
        pytest.skip("this file system keeps its pages")


def consume(bootstrap_servers: str, enough: Callable[[dict[int, bytes], list[KafkaError]], bool]) -> dict[int, bytes]:
    """What a consumer is given that checks no CRC (librdkafka's default), until it is enough."""
    small = {"fetch.message.max.bytes": 65536}  # so that readahead brings pages that nobody has asked for
    consumer = Consumer(
        {**CLIENT, **small, "bootstrap.servers": bootstrap_servers, "group.id": "g", "check.crcs": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[int, bytes] = {}
    errors: list[KafkaError] = []
    deadline = time.monotonic() + SECONDS
    try:
        while not enough(found, errors):
            assert time.monotonic() < deadline, (len(found), errors)
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                errors.append(message.error())
            else:
                found[message.offset()] = message.value()
    finally:
        consumer.close()
    return found


def test_bits_that_flip_under_a_running_broker_are_never_delivered(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker.bootstrap_servers, 1)
        consume(broker.bootstrap_servers, lambda found, errors: len(found) == COUNT)
        damage(tmp_path / "data")
        found = consume(broker.bootstrap_servers, lambda found, errors: len(errors) > 0)
        assert found == {number: value(number) for number in found}, "nothing wrong"
        assert sorted(found)[: COUNT // 2 - 4] == list(range(COUNT // 2 - 4)), "all that is whole before it"
        assert len(found) < COUNT // 2 + 4
        log = broker.log_tail(200)
        assert "a log is damaged" in log and f"{TOPIC}-0/" in log, log


def test_another_replica_leads_when_bits_flip_and_the_copy_is_mended(tmp_path: Path):
    with Cluster(tmp_path, nodes=3) as cluster:
        fill(cluster.bootstrap_servers, 3)
        cluster.await_in_sync(TOPIC, 3)
        node = cluster.node(cluster.leader_of(TOPIC))
        damage(node.data_dir)
        found = consume(cluster.bootstrap_servers, lambda found, errors: len(found) == COUNT)
        assert found == {number: value(number) for number in range(COUNT)}, cluster.logs()
        cluster.await_(lambda: (node.data_dir / "stray").exists(), "the damaged log is set aside")
        cluster.await_in_sync(TOPIC, 3)
        [path] = (node.data_dir / "topics" / f"{TOPIC}-0").glob("*.log")
        content = path.read_bytes()
        assert all(value(number) in content for number in range(COUNT))


def test_a_node_that_cannot_sync_its_metadata_ends_with_a_last_word(tmp_path: Path):
    trigger = tmp_path / "broken"

    class Failing(BrokerProcess):
        def command(self) -> list[str]:
            plain = super().command()
            return [sys.executable, "-c", FAILING_SYNC, str(trigger), *plain[plain.index("serve") :]]

    broker = Failing(tmp_path / "data")
    with broker:
        admin = AdminClient({**CLIENT, "bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("before", 1)])["before"].result(SECONDS)
        trigger.touch()
        admin.create_topics([NewTopic("after", 1)])  # it hears nothing, or an error
        assert broker.ended() == 1
        log = broker.log_tail(200)
        assert "this node has lost its metadata log and serves nobody" in log, log
        trigger.unlink()
        broker.start()
        names = AdminClient({**CLIENT, "bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=SECONDS)
        assert "before" in names.topics
