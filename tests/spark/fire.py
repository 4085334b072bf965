"""Exactly once under fire: a query from topic to topic, killed again and again, and compared row by row.

    python -m tests.spark.fire --runs 20            the campaign
    python -m tests.spark.fire --runs 1 --seed 7    one run of it again

Every run copies a topic with one delivery while a driver, Python workers and the broker are killed (SIGKILL) at random
moments; a query that ends with an error is started again. Then a plain consumer of committed records must find every
record once, and nothing else. What is random comes from the seed; what is not (the machine) cannot be repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process import BrokerProcess

PARTITIONS = 2
KINDS = ("worker", "broker", "driver")
DELIVERIES = ("exactly_once", "exactly_once_partitioned")
RUN_SECONDS = 600.0


# ------------------------------------------------------------------------------------------ the query, in its process


def query(config: dict[str, Any]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(config["master"]).appName("headrace-fire")
    for name, value in {**SPARK, **config.get("spark", {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("subscribe", config["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", config["per_batch"])
        .load()
        .select("key", "value")
    )
    if config["delivery"] == "exactly_once_partitioned":
        frame = frame.repartition(3, "key")  # repeats itself, in another order
    if "slow" in config:
        frame = frame.mapInArrow(SlowFirst(config["slow"]), "key binary, value binary")
    running = (
        frame.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .option("topic", config["target"])
        .option("delivery", config["delivery"])
        .options(**({"stageAboveBytes": "4096"} if config["delivery"] == "exactly_once" else {}))
        .option("checkpointLocation", config["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()


class SlowFirst:
    """The first attempt at partition 0 of the first batch dawdles, for speculation. Every attempt leaves a file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if batch_id == "0" and context.partitionId() == 0:
            Path(self._folder, str(context.attemptNumber())).touch()
            if context.attemptNumber() == 0:
                yield from batches
                time.sleep(20)
        yield from batches


SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.speculation": "true",
    "spark.log.level": "ERROR",
}


class Driver:
    """The query's process, and all processes that it starts."""

    def __init__(self, config: dict[str, Any], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.fire", "--query", json.dumps(config)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """All of them, whoever still lives."""
        for process in self._session():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)

    def workers(self) -> list[psutil.Process]:
        return [process for process in self._session() if _is_worker(process)]

    def executors(self) -> list[psutil.Process]:
        return [process for process in self._session() if "CoarseGrainedExecutorBackend" in " ".join(_words(process))]

    def _session(self) -> list[psutil.Process]:
        """By session, for what a dead parent left has another one."""
        return [process for process in psutil.process_iter() if _session_of(process.pid) == self.process.pid]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _is_worker(process: psutil.Process) -> bool:
    return any(word.startswith("pyspark.") for word in _words(process))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


# ------------------------------------------------------------------------------------------ one run


@dataclass
class Run:
    """One query, from start to a good end."""

    folder: Path
    seed: int
    delivery: str
    records: int = 6000
    per_batch: int = 500
    kills: tuple[str, ...] = KINDS
    master: str = "local[2,4]"
    more: dict[str, Any] = field(default_factory=dict)  # for `query`
    done: list[str] = field(default_factory=list)  # kills, as they came
    starts: int = 0

    def go(self) -> None:
        """Raises AssertionError if a record is missing or double."""
        rng = random.Random(self.seed)
        with BrokerProcess(self.folder / "broker", "--log-level", "warning") as broker:
            self._fill(broker.bootstrap_servers)
            self._copy(broker, rng)
            self.compare(broker.bootstrap_servers)

    def _fill(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("in", "out")]).values():
            future.result(10)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
        for number in range(self.records):
            producer.produce("in", _value(number), _key(number), number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(30) == 0

    def _copy(self, broker: BrokerProcess, rng: random.Random) -> None:
        checkpoint = self.folder / "checkpoint"
        config = {
            "bootstrap": broker.bootstrap_servers,
            "source": "in",
            "target": "out",
            "checkpoint": str(checkpoint),
            "delivery": self.delivery,
            "per_batch": self.per_batch,
            "master": self.master,
            **self.more,
        }
        left = list(self.kills)
        rng.shuffle(left)
        deadline = time.monotonic() + RUN_SECONDS
        driver = self._start(config)
        try:
            fire_at, moment = self._aim(checkpoint, rng)
            while driver.process.poll() != 0:
                assert time.monotonic() < deadline, f"no good end in {RUN_SECONDS:.0f} s; {self.done}\n{self.tail()}"
                if driver.process.poll() is not None:
                    driver.kill()  # whatever the JVM left
                    driver = self._start(config)
                elif left and _batches(checkpoint) >= fire_at and time.monotonic() >= moment:
                    self._fire(left.pop(), driver, broker, rng)
                    fire_at, moment = self._aim(checkpoint, rng)
                time.sleep(0.02)
                if _batches(checkpoint) < fire_at:
                    moment = time.monotonic() + rng.random()
        finally:
            driver.kill()
        assert not left, f"the query ended before {left} could be killed; use more records"

    def _aim(self, checkpoint: Path, rng: random.Random) -> tuple[int, float]:
        return _batches(checkpoint) + rng.randint(1, 2), time.monotonic() + rng.random()

    def _fire(self, kind: str, driver: Driver, broker: BrokerProcess, rng: random.Random) -> None:
        self.done.append(kind)
        if kind == "driver":
            driver.kill()
        elif kind == "broker":
            broker.kill()
            time.sleep(rng.random())
            broker.start()
        else:
            found = driver.executors() if kind == "executor" else driver.workers()
            for process in rng.sample(found, min(1 if kind == "executor" else 2, len(found))):
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue

    def _start(self, config: dict[str, Any]) -> Driver:
        self.starts += 1
        assert self.starts <= 2 + len(self.done), f"the query fails although nothing was killed\n{self.tail()}"
        return Driver(config, self.folder / "driver.log")

    def tail(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-3000:]

    def compare(self, bootstrap: str) -> None:
        found = Counter(committed(bootstrap, "out"))
        wanted = Counter((_key(number), _value(number)) for number in range(self.records))
        double = found - wanted
        missing = wanted - found
        assert not missing and not double, (
            f"missing {len(missing)}, double or strange {len(double)}: {list(double)[:3]}"
        )


def _key(number: int) -> bytes:
    return b"k%d" % (number % 97)


def _value(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number % 50)


def _batches(checkpoint: Path) -> int:
    try:
        return sum(name.isdigit() for name in os.listdir(checkpoint / "commits"))
    except FileNotFoundError:
        return 0


def committed(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> list[tuple[bytes, bytes]]:
    """Keys and values, as a plain consumer of committed records sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, left = [], partitions
    while left:
        message = consumer.poll(30)
        assert message is not None, "a reader of committed records waits in vain: a transaction is open"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left -= 1
        else:
            found.append((message.key(), message.value()))
    consumer.close()
    return found


# ------------------------------------------------------------------------------------------ the campaign


def campaign(runs: int, seed: int, kills: int) -> int:
    failures = 0
    for number in range(runs):
        rng = random.Random(seed + number)
        kinds = tuple(KINDS[(number + index) % len(KINDS)] for index in range(kills))
        with tempfile.TemporaryDirectory() as folder:
            run = Run(
                Path(folder), seed + number, DELIVERIES[number % 2], kills=kinds, per_batch=rng.choice((300, 500))
            )
            started = time.monotonic()
            try:
                run.go()
                outcome = "exactly once"
            except AssertionError as error:
                failures += 1
                outcome = f"FAILED: {error}"
            seconds = time.monotonic() - started
            print(
                f"run {number + 1}/{runs} seed {run.seed} {run.delivery}: killed {', '.join(run.done)}; "
                f"{run.starts} starts, {seconds:.0f} s: {outcome}",
                flush=True,
            )
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=4, help="per run")
    parser.add_argument("--query", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.query:
        query(json.loads(given.query))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(1 if campaign(given.runs, given.seed, given.kills) else 0)


if __name__ == "__main__":
    main()
