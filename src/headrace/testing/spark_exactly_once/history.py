"""One history: a broker, a driver of Spark, blows, and the count of rows at the end.

Rules:
- Records come in portions, one before each blow and one after the last: whatever is killed has work to do. Nothing is
  waited for but progress, so that a history takes longer on a slow machine, and is the same.
- Whoever dies is started again, on the same directory and port; a driver that fails more often than it was hit is a
  fault of its own.
- No process outlives its history: a driver and all that it starts share a session of the operating system.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process import BrokerProcess
from headrace.testing.spark_exactly_once import flows as what
from headrace.testing.spark_exactly_once.driver import ENOUGH, Orders

KINDS: Final = ("worker", "broker", "driver")
BATCHES_PER_PORTION: Final = 3
RUN_SECONDS: Final = 900.0
_LOOK_SECONDS: Final = 0.05
_STARTS_PER_BLOW: Final = 2
_SPARE_STARTS: Final = 4  # Spark gives a Python worker some seconds to answer; a busy machine may take longer


class HistoryError(AssertionError):
    """A history broke a promise."""


class DriverProcess:
    """The driver's process, and all processes that it starts."""

    def __init__(self, orders: Orders, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.testing.spark_exactly_once.driver", json.dumps(orders._asdict())],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> int:
        """All of them, whoever still lives; how many."""
        killed = sum(_killed(process) for process in self._session())
        self._process.wait(30)
        return killed

    def workers(self) -> list[psutil.Process]:
        """Python's part of tasks, planning and commits."""
        return [each for each in self._session() if any(word.startswith("pyspark.") for word in _words(each))]

    def executors(self) -> list[psutil.Process]:
        return [each for each in self._session() if "CoarseGrainedExecutorBackend" in " ".join(_words(each))]

    def _session(self) -> list[psutil.Process]:
        """By session, for what a dead parent left has another one."""
        return [each for each in psutil.process_iter() if _session_of(each.pid) == self._process.pid]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []


def _killed(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


@dataclass
class History:
    """See the module. `blows` come in a random order."""

    folder: Path
    seed: int
    flows: tuple[str, ...]
    blows: tuple[str, ...] = KINDS
    per_batch: int = 400
    master: str = "local[2,4]"
    conf: dict[str, str] = field(default_factory=dict)
    transform: str = ""
    done: list[str] = field(default_factory=list)  # blows, as they came
    killed: int = 0  # processes
    starts: int = 0
    records: int = 0  # that went in

    def run(self) -> None:
        """Raises HistoryError if a row is missing or double, or if the flows get stuck."""
        self._rng = random.Random(self.seed)
        self._deadline = time.monotonic() + RUN_SECONDS
        with BrokerProcess(self.folder / "broker", "--log-level", "warning") as self._broker:
            self._make_topics()
            self._driver = self._start()
            try:
                for kind in self._rng.sample(self.blows, len(self.blows)):
                    before = self._batches()
                    self._feed()
                    self._await_batches(before, self._rng.randint(1, BATCHES_PER_PORTION - 1))
                    self._strike(kind)
                self._feed()
                (self.folder / ENOUGH).touch()
                while self._driver.poll() != 0:
                    self._look()
            finally:
                self._driver.kill()
            self._judge()

    def _make_topics(self) -> None:
        names = [what.SOURCE, *(topic for flow in self.flows for topic in what.topics(flow))]
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers, "log_level": 3})
        for future in admin.create_topics([NewTopic(name, what.PARTITIONS, 1) for name in names]).values():
            future.result(60)

    def _feed(self) -> None:
        """The next portion."""
        producer = Producer({"bootstrap.servers": self._broker.bootstrap_servers, "linger.ms": 20, "acks": "all"})
        for number in range(self.records, self.records + BATCHES_PER_PORTION * self.per_batch):
            producer.produce(what.SOURCE, what.value(number), what.key(number), number % what.PARTITIONS)
            producer.poll(0)
        if producer.flush(60):
            raise HistoryError("the broker does not take records")
        self.records += BATCHES_PER_PORTION * self.per_batch

    def _await_batches(self, before: list[int], count: int) -> None:
        """Until one of the flows has done some more batches, and a moment longer."""
        while not any(now - then >= count for now, then in zip(self._batches(), before, strict=True)):
            self._look()
        until = time.monotonic() + self._rng.random()
        while time.monotonic() < until:
            self._look()

    def _look(self) -> None:
        if time.monotonic() > self._deadline:
            raise HistoryError(f"no end in {RUN_SECONDS:.0f} s; {self}\n{self.tail()}")
        if self._driver.poll() not in (None, 0):
            self._driver.kill()  # whatever is left of it
            self._driver = self._start()
        time.sleep(_LOOK_SECONDS)

    def _batches(self) -> list[int]:
        """How many batches each flow has done, as the checkpoints say."""
        return [
            sum(path.name.isdigit() for path in self.folder.glob(f"{flow}/checkpoint/*/commits/*"))
            for flow in self.flows
        ]

    def _strike(self, kind: str) -> None:
        self.done.append(kind)
        if kind == "driver":
            self.killed += self._driver.kill()
            self._driver = self._start()
        elif kind == "broker":
            self._broker.kill()
            self.killed += 1
            time.sleep(self._rng.random())
            self._broker.start()
        else:
            found = self._driver.executors() if kind == "executor" else self._driver.workers()
            chosen = self._rng.sample(found, min(1 if kind == "executor" else 2, len(found)))
            self.killed += sum(map(_killed, chosen))

    def _start(self) -> DriverProcess:
        self.starts += 1
        if self.starts > _SPARE_STARTS + _STARTS_PER_BLOW * len(self.done):
            raise HistoryError(f"the driver fails although nothing was killed; {self}\n{self.tail()}")
        orders = Orders(
            str(self.folder),
            self._broker.bootstrap_servers,
            list(self.flows),
            self.per_batch,
            self.master,
            {"spark.speculation": "true", **self.conf},
            self.transform,
        )
        return DriverProcess(orders, self.folder / "driver.log")

    def tail(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-3000:]

    def _judge(self) -> None:
        bootstrap = self._broker.bootstrap_servers
        found = [each for flow in self.flows for each in what.complaints(flow, bootstrap, self.folder, self.records)]
        if found:
            raise HistoryError("\n".join([f"{self}:", *found, self.tail()]))

    def __str__(self) -> str:
        blows = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(self.done).items()))
        return (
            f"seed {self.seed} {'+'.join(self.flows)}: {self.records} records, blows: {blows or 'none'} "
            f"({self.killed} processes killed), {self.starts} starts"
        )
