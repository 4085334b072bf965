"""A client whose answer was lost in a kill aborts, and begins anew: nothing of the new is taken for the old.

librdkafka gives the sequences of what it has purged to the next transaction, in the same epoch.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.disk_histories.shim import Shim, build
from headrace.testing.ledger import CLIENT
from headrace.testing.process import BrokerProcess
from headrace.testing.topics import create

TOPIC = "orders"


def transact(client: Producer, value: str) -> bool:
    """Whether it was committed."""
    client.begin_transaction()
    client.produce(TOPIC, value, partition=0)
    try:
        client.commit_transaction(60)
    except KafkaException as error:
        assert error.args[0].txn_requires_abort(), error
        client.abort_transaction(60)
        return False
    return True


def committed(servers: str, last: str) -> list[str]:
    client = Consumer({**CLIENT, "bootstrap.servers": servers, "group.id": "g", "isolation.level": "read_committed"})
    client.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + 60
    while last not in found and time.monotonic() < deadline:
        found += [message.value().decode() for message in client.consume(10, 0.5) if message.error() is None]
    client.close()
    return found


@pytest.mark.process
@pytest.mark.timeout(300)
def test_what_is_committed_after_an_abort_is_there(tmp_path: Path):
    library = build(tmp_path)
    if library is None:
        pytest.skip("there is no compiler here")
    shim = Shim(library, tmp_path / "control")
    broker = BrokerProcess(tmp_path / "data")
    broker.environ = shim.environ
    with broker:
        create(AdminClient({**CLIENT, "bootstrap.servers": broker.bootstrap_servers}), NewTopic(TOPIC, 1, 1))
        client = Producer(
            {**CLIENT, "bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "linger.ms": 0}
        )
        client.init_transactions(60)
        assert transact(client, "first")
        [log] = (broker.data_dir / "topics" / f"{TOPIC}-0").glob("*.log")
        with shim.fault(log.parent, late_ms=5000):
            before = log.stat().st_size
            client.begin_transaction()
            client.produce(TOPIC, "doomed", partition=0)
            deadline = time.monotonic() + 60
            while log.stat().st_size == before and time.monotonic() < deadline:
                client.poll(0.01)
            broker.kill()  # it is written, and not yet acknowledged
        client.poll(0.5)
        again = threading.Timer(1.0, broker.start)
        again.start()
        client.abort_transaction(60)
        again.join()
        told = [value for value in ("second", "third", "last") if transact(client, value)]
        assert told[-1] == "last"
        assert committed(broker.bootstrap_servers, "last") == ["first", *told]
