"""A rehearsal: a cluster of an older release is rolled to this one under load, and back, node by node.

    git worktree add --detach ../older COMMIT
    python -m headrace.testing.upgrade --old ../older/src

Three nodes of the older release begin; idempotent writers, a group of readers and transactions run all the time. Each
node is stopped, the controller last, and started with the other release, as `docs/cluster.md` says. In the end nothing
is lost, doubled or torn, or the program ends with code 1 and says what is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import Cluster, ClusterNode
from headrace.testing.ledger import CLIENT, Ledger

PAIRS: Final = "pairs"
RECORDS: Final = 2000  # that every writer gets acknowledged between two steps
THIS: Final = Path(__file__).parents[2]


class Pairs(threading.Thread):
    """Transactions that write their number to two partitions: both, once, or none."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(name="pairs", daemon=True)
        self.ending = threading.Event()
        self.committed = 0
        self.aborted = 0
        self._servers = bootstrap_servers

    def open(self) -> None:
        admin = AdminClient({**CLIENT, "bootstrap.servers": self._servers})
        admin.create_topics([NewTopic(PAIRS, 2, 3)])[PAIRS].result(30)
        self.start()

    def run(self) -> None:
        client = Producer({**CLIENT, "bootstrap.servers": self._servers, "transactional.id": PAIRS, "linger.ms": 0})
        _again(client.init_transactions)
        while not self.ending.is_set():
            client.begin_transaction()
            for partition in (0, 1):
                client.produce(PAIRS, str(self.committed), partition=partition)
            try:
                _again(client.commit_transaction)
                self.committed += 1
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                _again(client.abort_transaction)
                self.aborted += 1

    def close(self) -> list[str]:
        self.ending.set()
        self.join(90)
        faults = ["a transaction never ended"] if self.is_alive() else []
        client = Consumer(
            {**CLIENT, "bootstrap.servers": self._servers, "group.id": PAIRS, "isolation.level": "read_committed"}
            | {"enable.partition.eof": True}
        )
        for partition in (0, 1):
            client.assign([TopicPartition(PAIRS, partition, OFFSET_BEGINNING)])
            found: list[int] = []
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                message = client.poll(1.0)
                if message is not None and message.error() is None:
                    found.append(int(message.value() or b"-1"))
                elif message is not None and len(found) >= self.committed:  # the end, and no marker is still to come
                    break
            if found != list(range(self.committed)):
                faults.append(f"{self.committed} transactions, and partition {partition} has {len(found)} of them")
        client.close()
        return faults


def _again(call: Any) -> None:
    while True:
        try:
            call(30)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def restart(cluster: Cluster, node: ClusterNode, source: Path) -> None:
    """Start a node with the release in a folder, when all others are in sync."""
    for topic in ("ledger", PAIRS):
        cluster.await_in_sync(topic, 3)
    node.stop()
    os.environ["PYTHONPATH"] = str(source)
    node.start()
    for topic in ("ledger", PAIRS):
        cluster.await_in_sync(topic, 3)


def rehearse(old: Path, home: Path, rounds: int) -> list[str]:
    os.environ["PYTHONPATH"] = str(old)
    with Cluster(home, nodes=3) as cluster:
        cluster.await_(lambda: len(cluster.metadata().brokers) == 3, "three nodes")
        ledger, pairs = Ledger(cluster.bootstrap_servers), Pairs(cluster.bootstrap_servers)
        ledger.open(replication_factor=3)
        pairs.open()
        for step in range(rounds):
            source = old if step % 2 else THIS
            first = cluster.metadata().controller_id
            for node in sorted(cluster.nodes, key=lambda node: (node.node_id == first, node.node_id)):
                ledger.await_progress(RECORDS)
                restart(cluster, node, source)
                print(f"node {node.node_id} runs {'the older release' if step % 2 else 'this release'}", flush=True)
            ledger.await_progress(RECORDS)
        faults = ledger.close() + pairs.close()
        acknowledged = sum(len(writer.acknowledged) for writer in ledger.writers)
        silence = max(writer.longest_silence_s for writer in ledger.writers)
        print(
            f"{acknowledged} records acknowledged, longest pause {silence:.1f} s; "
            f"{pairs.committed} transactions committed, {pairs.aborted} aborted"
        )
        if faults:
            print(cluster.logs(40), file=sys.stderr)
        return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the folder `src` of the older release")
    parser.add_argument("--rounds", type=int, default=3, help="1: to this release; 2: and back; 3: and here again")
    choices = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-upgrade-") as home:
        faults = rehearse(choices.old.absolute(), Path(home), choices.rounds)
    for fault in faults[:20]:
        print(fault, file=sys.stderr)
    print("FAILED" if faults else "nothing is lost, doubled or torn")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
