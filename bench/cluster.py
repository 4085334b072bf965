"""What replication costs, and how long a death is felt: real processes on this machine.

    python -m bench.cluster [--seconds 5] [--kills 5] [--nodes 1,3,5] [--flush os] [--json]

Throughput: one batching producer with acks=all to six partitions; factor 1 on one node is the measure, factor 3 on
three and five nodes is given as a ratio to it. All nodes share the machine's cores: the ratio says what the copies cost
there, not what a cluster of machines can do. Failover: a producer sends one record at a time to the partition whose
leader is killed, and a consumer reads it; the times from the kill to the next acknowledgement, and until a record that
was written after the kill is read. With one connection or two, these clients are the slowest to find a new leader.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import Cluster
from headrace.testing.ledger import CLIENT

PARTITIONS = 6
VALUE = bytes(100)


def create(cluster, topic, partitions, factor):
    admin = AdminClient({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers})
    configs = {"min.insync.replicas": str(min(2, factor))}
    admin.create_topics([NewTopic(topic, partitions, factor, config=configs)])[topic].result(30)
    cluster.await_in_sync(topic, factor)


def produce(cluster, topic, seconds):
    """Records a second that were acknowledged."""
    client = Producer(
        {
            **CLIENT,
            "bootstrap.servers": cluster.bootstrap_servers,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 500_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    acknowledged = failed = 0

    def delivered(error, _):
        nonlocal acknowledged, failed
        acknowledged += error is None
        failed += error is not None

    client.produce(topic, VALUE)
    client.flush(30)
    begun = time.monotonic()
    number = 0
    while time.monotonic() - begun < seconds:
        for _ in range(1000):
            number += 1
            try:
                client.produce(topic, VALUE, partition=number % PARTITIONS, on_delivery=delivered)
            except BufferError:
                client.poll(0.01)
        client.poll(0)
    client.flush(60)
    assert not failed, f"{failed} records failed"
    return acknowledged / (time.monotonic() - begun)


class Reader(threading.Thread):
    """Reads the partition, and notes when each offset came."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.seen = []
        self.ending = False
        self._client = Consumer({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers, "group.id": "failover"})
        self._client.assign([TopicPartition("failover", 0, OFFSET_BEGINNING)])

    def run(self):
        while not self.ending:
            message = self._client.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append((message.offset(), time.monotonic()))
        self._client.close()

    def when(self, offset):
        """The moment at which an offset, or one behind it, was read."""
        deadline = time.monotonic() + 60
        while not self.seen or self.seen[-1][0] < offset:
            assert time.monotonic() < deadline, "nothing read within a minute"
            time.sleep(0.005)
        return next(at for seen, at in self.seen if seen >= offset)


def failover(cluster, kills):
    """Seconds from kill to the next acknowledged write, and to the read of it, for each kill of the leader."""
    create(cluster, "failover", 1, 3)
    reader = Reader(cluster)
    reader.start()
    client = Producer({**CLIENT, "bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0})
    acknowledged = []

    def delivered(error, message):
        if error is None:
            acknowledged.append((time.monotonic(), message.offset()))

    def write_until(moment):
        deadline = time.monotonic() + 60
        while not acknowledged or acknowledged[-1][0] < moment:
            assert time.monotonic() < deadline, "no acknowledgement within a minute"
            client.produce("failover", b"x", on_delivery=delivered)
            client.flush(0.01)

    found = []
    for _ in range(kills):
        write_until(time.monotonic())
        node = cluster.node(cluster.metadata().topics["failover"].partitions[0].leader)
        client.flush(60)  # what the old leader has acknowledged is not to be taken for the new one's
        killed = time.monotonic()
        node.kill()
        write_until(time.monotonic())
        at, offset = next(each for each in acknowledged if each[0] > killed)
        found.append((at - killed, reader.when(offset) - killed))
        node.start()
        cluster.await_in_sync("failover", 3)
    reader.ending = True
    reader.join()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--nodes", default="1,3,5")
    parser.add_argument("--flush", default="os", choices=("ack", "os"))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = []
    measure = None
    for nodes in map(int, chosen.nodes.split(",")):
        with (
            tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
            Cluster(Path(home), "--flush", chosen.flush, "--log-level", "warning", nodes=nodes) as cluster,
        ):
            for factor in (1, 3) if nodes >= 3 else (1,):
                create(cluster, f"factor-{factor}", PARTITIONS, factor)
                rate = produce(cluster, f"factor-{factor}", chosen.seconds)
                measure = measure or rate
                row = {"nodes": nodes, "factor": factor, "records_per_s": round(rate), "ratio": rate / measure}
                rows.append(row)
                print(f"{nodes} nodes, factor {factor}: {rate:,.0f} records/s, {row['ratio']:.2f}", file=sys.stderr)
            if nodes >= 3 and chosen.kills:
                times = failover(cluster, chosen.kills)
                rows.append({"nodes": nodes, "failover_s": times})
                for what, found in zip(("acknowledged write", "record read"), zip(*times, strict=True), strict=True):
                    print(
                        f"{nodes} nodes: kill to next {what}: median {statistics.median(found):.2f} s, "
                        f"longest {max(found):.2f} s",
                        file=sys.stderr,
                    )
    if chosen.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
