"""The Spark source against Spark's own Kafka connector: same broker, same topic, same Spark, one run.

    python -m bench.spark_source [--rows 4000000] [--jars DIR] [--conf NAME=VALUE] [--json FILE]

Ratios are what counts; on a busy machine, CPU time per row. `--jars` is a directory with the connector's jars
(spark-sql-kafka-0-10, its token provider, kafka-clients, commons-pool2); without it only our source is measured.

Our source is first read alone, then all sources in turns: Java compiles one shape of row better than three. And
micro-batches are measured twice: the first streams of a session also pay for Java that is not warm yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path


def make(bootstrap, topic, partitions):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)


def fill(bootstrap, topic, rows, size, partitions):
    """Put ready-made batches into a topic."""
    from confluent_kafka import Producer

    make(bootstrap, topic, partitions)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 200_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    value = os.urandom(size)
    for index in range(rows):
        while True:
            try:
                producer.produce(topic, value, key=b"k%07d" % index, partition=index % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def session(jars, conf):
    from headrace.spark.session import spark_session

    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g", **conf}
    if jars:
        settings["spark.jars"] = ",".join(str(each) for each in sorted(Path(jars).glob("*.jar")))
    return spark_session("bench", "local[2]", settings)


def register_floor(spark, parts):
    """A Python source that does nothing but exist: what Spark itself takes for a micro-batch of one."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class FloorReader(DataSourceStreamReader):
        def initialOffset(self):  # noqa: N802
            return {"at": 0}

        def latestOffset(self, start, limit):  # noqa: N802
            return {"at": start["at"] + 20}

        def partitions(self, start, end):
            return [InputPartition(index) for index in range(parts)]

        def read(self, partition):
            yield pa.RecordBatch.from_arrays([pa.array([b"x" * 100] * 10)], ["value"])

    class Floor(DataSource):
        @classmethod
        def name(cls):
            return f"floor{parts}"

        def schema(self):
            return "value binary"

        def streamReader(self, schema):  # noqa: N802
            return FloorReader()

    spark.dataSource.register(Floor)


def read_in_turns(spark, bootstrap, topic, rows, rounds, cases):
    """The best of some rounds of each case: rows per second and CPU time per row."""
    best = {}
    cpu = {}
    for _ in range(rounds):
        for case, (form, schema) in cases.items():  # in turns: the machine's mood is the same for all
            before = cpu_seconds()
            best[case] = min(best.get(case, 1e9), read(spark, form, bootstrap, topic, schema))
            cpu[case] = min(cpu.get(case, 1e9), cpu_seconds() - before)
    found = {f"{case} M rows/s": round(rows / seconds / 1e6, 2) for case, seconds in best.items()}
    found |= {f"{case} CPU us/row": round(seconds / rows * 1e6, 2) for case, seconds in cpu.items()}
    if "kafka" in cases:
        found["times as fast"] = round(best["kafka"] / best["headrace"], 2)
        found["times less CPU"] = round(cpu["kafka"] / cpu["headrace"], 2)
    return found


def read(spark, form, bootstrap, topic, schema=None):
    """Seconds of one read into nothing."""
    reader = spark.read.format(form).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    if schema:
        reader = reader.schema(schema)
    began = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def cpu_seconds():
    """CPU time of all processes below this one: Spark, its Python workers, the broker."""
    import psutil

    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def micro_batches(spark, form, bootstrap, topic, parts, seconds, rows):
    """Milliseconds per micro-batch of a busy query into nothing."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    where = tempfile.mkdtemp(prefix="headrace-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    query = (
        spark.readStream.format(form)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "latest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", where)
        .start()
    )
    took = []
    seen = -1
    warm = 15
    end = None
    try:
        while end is None or time.monotonic() < end:
            for index in range(rows):
                producer.produce(topic, b"x" * 100, partition=index % parts)
            producer.flush(5)
            progress = query.lastProgress
            if query.exception() is not None:
                raise query.exception()
            if progress is not None and progress["batchId"] != seen and progress["numInputRows"]:
                seen = progress["batchId"]
                if warm:
                    warm -= 1
                    end = time.monotonic() + seconds
                else:
                    took.append(progress["durationMs"]["triggerExecution"])
            time.sleep(0.02)
    finally:
        query.stop()
        shutil.rmtree(where, ignore_errors=True)
    took.sort()
    return {"batches": len(took), "p50_ms": statistics.median(took), "p90_ms": took[int(len(took) * 0.9)]}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="records of 100 B; a tenth of it of 1 KB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="of micro-batches per source")
    parser.add_argument("--jars", default="")
    parser.add_argument("--conf", action="append", default=[], help="NAME=VALUE for Spark")
    parser.add_argument("--json", default="")
    args = parser.parse_args()

    from headrace.testing.process import BrokerProcess

    forms = ["headrace", "kafka"] if args.jars else ["headrace"]
    result = {}
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    with BrokerProcess(folder / "broker", "--memory") as broker:
        bootstrap = broker.bootstrap_servers
        sizes = {"100 B": (100, args.rows), "1 KB": (1000, args.rows // 10)}
        for size, rows in sizes.values():
            fill(bootstrap, f"bench-{size}", rows, size, 2)
        began = time.perf_counter()
        spark = session(args.jars, dict(each.split("=", 1) for each in args.conf))
        result["spark"] = spark.version
        result["load before"] = os.getloadavg()[0]
        result["session_s"] = round(time.perf_counter() - began, 1)
        result["first_read_s"] = round(read(spark, "headrace", bootstrap, "bench-1000"), 1)
        cases = {form: (form, None) for form in forms} | {"pruned": ("headrace", "value binary, offset bigint")}
        alone = {"alone": ("headrace", None)}
        result["100 B"] = read_in_turns(spark, bootstrap, "bench-100", args.rows, 2 * args.rounds, alone)
        for name, (size, rows) in sizes.items():
            found = read_in_turns(spark, bootstrap, f"bench-{size}", rows, args.rounds, cases)
            result[name] = result.get(name, {}) | found
        for parts in (1, 2):
            register_floor(spark, parts)
            make(bootstrap, f"small-{parts}", parts)
        for when in ("first", "warm"):
            for parts in (1, 2):
                for form in [*forms, f"floor{parts}"]:
                    found = micro_batches(spark, form, bootstrap, f"small-{parts}", parts, args.seconds, 20)
                    result[f"micro-batch, {parts} partitions, {form}, {when}"] = found
        spark.stop()
    result["load after"] = os.getloadavg()[0]
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
