"""Transactional produce against plain produce: same broker, same client, in turns, one run. The ratio is what counts.

    python -m bench.transactions [--transaction-ms 100] [--seconds 3] [--rounds 5] [--json FILE]

Both producers are confluent-kafka's with `acks=all` on a broker that syncs before it acknowledges (level: synced). The
plain one is idempotent, as is the default of newer clients. The transactional one begins, produces until the time of a
transaction has passed, and commits, which flushes; that is what Kafka's own `producer-perf-test` does with
`--transaction-duration-ms`. Acknowledged records are counted, from the first call to the last answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process import BrokerProcess

TOPIC, PARTITIONS = "bench", 4
# Few enough to be flushed in a fraction of a transaction, and enough to keep the connection busy.
QUEUED = {100: 20_000, 1000: 5_000}


class Writer:
    """Produces as fast as it may. Once flushed, all that was sent is acknowledged, since a failure raises."""

    def __init__(self, bootstrap_servers: str, size: int, transactional_id: str | None) -> None:
        self.value = b"x" * size
        self.sent = 0
        config = {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": QUEUED.get(size, 10_000),
            "delivery.report.only.error": True,
            "on_delivery": _failed,
            "log_level": 0,
        }
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        self.client = Producer(config)

    def produce_until(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            for _ in range(100):
                try:
                    self.client.produce(TOPIC, self.value, partition=self.sent % PARTITIONS)
                    self.sent += 1
                except BufferError:
                    self.client.poll(0.001)
            self.client.poll(0)


def _failed(error, _message) -> None:
    raise RuntimeError(error)


def plain(bootstrap_servers: str, size: int, seconds: float) -> dict[str, float]:
    writer = Writer(bootstrap_servers, size, None)
    writer.produce_until(time.perf_counter() + 0.5)  # connections, producer id
    assert writer.client.flush(60) == 0
    writer.sent = 0
    begun = time.perf_counter()
    writer.produce_until(begun + seconds)
    assert writer.client.flush(60) == 0
    return {"records_per_s": writer.sent / (time.perf_counter() - begun)}


def transactional(bootstrap_servers: str, size: int, seconds: float, transaction_ms: float) -> dict[str, float]:
    writer = Writer(bootstrap_servers, size, "bench")
    writer.client.init_transactions(30)
    writer.client.begin_transaction()
    writer.produce_until(time.perf_counter() + 0.5)
    writer.client.commit_transaction(60)
    writer.sent = 0
    commits = []
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        writer.client.begin_transaction()
        writer.produce_until(time.perf_counter() + transaction_ms / 1000)
        at = time.perf_counter()
        writer.client.commit_transaction(60)
        commits.append(time.perf_counter() - at)
    elapsed = time.perf_counter() - begun
    return {
        "records_per_s": writer.sent / elapsed,
        "transactions_per_s": len(commits) / elapsed,
        "commit_p50_ms": statistics.median(commits) * 1000,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transaction-ms", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000], help="bytes of a value")
    parser.add_argument("--data-dir", default=None, help="where the broker's directory is made")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=args.data_dir) as folder:
        flags = ("--log-level", "warning", "--storage-retention-bytes", str(1 << 30))
        with BrokerProcess(Path(folder) / "broker", *flags) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(20)
            for size in args.sizes:
                pairs = []
                for number in range(args.rounds):
                    one = plain(broker.bootstrap_servers, size, args.seconds)
                    other = transactional(broker.bootstrap_servers, size, args.seconds, args.transaction_ms)
                    pairs.append((one, other))
                    print(f"{size} B, round {number + 1} of {args.rounds}", end="\r", file=sys.stderr)
                rows.append(summary(size, args.transaction_ms, pairs))
    for row in rows:
        print(
            f"{row['bytes']} B, transactions of {row['transaction_ms']:.0f} ms: plain {row['plain']:,.0f}/s, "
            f"transactional {row['transactional']:,.0f}/s, ratio {row['ratio']:.0%} "
            f"({row['ratio_low']:.0%} to {row['ratio_high']:.0%}); commit p50 {row['commit_p50_ms']:.1f} ms, "
            f"{row['transactions_per_s']:.1f} transactions/s"
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def summary(size: int, transaction_ms: float, pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict:
    ratios = [other["records_per_s"] / one["records_per_s"] for one, other in pairs]
    return {
        "bytes": size,
        "transaction_ms": transaction_ms,
        "level": "synced",
        "plain": statistics.median(one["records_per_s"] for one, _ in pairs),
        "transactional": statistics.median(other["records_per_s"] for _, other in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "commit_p50_ms": statistics.median(other["commit_p50_ms"] for _, other in pairs),
        "transactions_per_s": statistics.median(other["transactions_per_s"] for _, other in pairs),
    }


if __name__ == "__main__":
    sys.exit(main())
