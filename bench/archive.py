"""`python -m bench.archive`: how fast a topic becomes a Delta table, broker and Spark on this machine together.

The broker is a process of its own. The rate is raw bytes of keys and values, from the first fetch to the last commit;
a first run over another topic has warmed up Spark and the compiled decoder. "Per core" divides by the cores that were
there. On a machine that others use too, look at bytes per second of CPU time instead: of one task alone (fetch, decode,
Parquet), and of everything together (broker, JVM, workers, driver).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.spark.fetch import Fetcher
from headrace.spark.lake import Archive, Table, verify
from headrace.spark.lake.place import Place
from headrace.spark.lake.rows import RECORD, write_range
from headrace.spark.offsets import BatchOffsets
from headrace.spark.options import parse
from headrace.spark.session import spark_session
from headrace.spark.task import Task

FETCH = "kafka.max.partition.fetch.bytes"
SCHEMA = "id long, customer string, amount double, city string"


def value(number: int, size: int) -> bytes:
    document = {
        "id": number,
        "customer": f"customer-{random.randrange(100_000)}",
        "amount": round(random.random() * 1000, 2),
        "city": random.choice(("Ghent", "Porto", "Turku", "Graz", "Lublin")),
        "pad": "",
    }
    text = json.dumps(document)
    pad = "".join(random.choices("abcdefghij0123456789", k=max(0, size - len(text))))
    return (text[:-2] + pad + '"}').encode()


def fill(bootstrap: str, topic: str, records: int, size: int, partitions: int, codec: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)
    settings = {"linger.ms": 50, "batch.size": 1 << 19, "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, **settings})
    pool = [value(number, size) for number in range(50_000)]
    total = 0
    for number in range(records):
        key, content = b"%d" % (number % 10_000), pool[number % len(pool)]
        total += len(key) + len(content)
        while True:
            try:
                producer.produce(topic, content, key, number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    return total


def cpu_seconds(roots: list[int]) -> float:
    """CPU time of processes and all that they have started."""
    total = 0.0
    for root in roots:
        try:
            for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def one_task(bootstrap: str, topic: str, home: Path, typed: bool) -> float:
    """CPU seconds of reading and writing one partition, in this process."""
    options = parse({"kafka.bootstrap.servers": bootstrap, "subscribe": topic, FETCH: str(4 << 20)}, "batch")
    offsets = BatchOffsets(options)
    each = offsets.ranges()[0]
    task = Task(*each, *offsets.known_partitions()[each.topic, each.partition])
    data = pa.struct([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("city", pa.string())])
    began = time.process_time()
    batches = Fetcher(task, RECORD, options).batches()
    write_range(Place.of(home / "task"), batches, tuple(each), RECORD, data if typed else None)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=125)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--typed", action="store_true", help="decode the JSON values too")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    port = 19_000 + os.getpid() % 1000
    command = [sys.executable, "-m", "headrace", "serve", "--memory", "--port", str(port), "--http-port", "0"]
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    bootstrap = f"127.0.0.1:{port}"
    cores = os.cpu_count() or 1
    try:
        spark = spark_session("bench", f"local[{cores}]", say=lambda text: print(text, file=sys.stderr))
        time.sleep(1)
        for topic, records in (("warm", min(given.records, 20_000)), ("full", given.records)):
            size = fill(bootstrap, topic, records, given.size, given.partitions, given.codec)
            options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
            options[FETCH] = str(4 << 20)
            data = SCHEMA if given.typed else None
            archive = Archive(options, str(home / topic), str(home / f"{topic}-checkpoint"), data, topic)
            alone = one_task(bootstrap, topic, home, given.typed)
            busy = os.getloadavg()[0]
            spent = cpu_seconds([os.getpid(), broker.pid])
            began = time.monotonic()
            query = archive.start(spark, once=True)
            query.awaitTermination()
            whole = time.monotonic() - began
            spent = cpu_seconds([os.getpid(), broker.pid]) - spent
            batch = json.loads(query.lastProgress.json)["durationMs"]["triggerExecution"] / 1000
        view = Table(home / "full").describe()
        assert view.rows == given.records and verify(str(home / "full"), bootstrap=bootstrap).holds
        print(
            json.dumps(
                {
                    "records": given.records,
                    "mb": round(size / 1e6, 1),
                    "batch_s": round(batch, 2),
                    "with_query_start_s": round(whole, 2),
                    "mb_per_s": round(size / 1e6 / batch, 1),
                    "mb_per_s_per_core": round(size / 1e6 / batch / cores, 1),
                    "task_mb_per_cpu_s": round(size / 1e6 / given.partitions / alone, 1),
                    "all_mb_per_cpu_s": round(size / 1e6 / spent, 1),
                    "rows_per_s": round(given.records / batch),
                    "table_mb": round(view.size_bytes / 1e6, 1),
                    "load_before": round(busy, 1),
                }
            )
        )
    finally:
        broker.terminate()
        broker.wait(20)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
