"""The cases: what is measured, one broker process per durability level."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.testing.load import clients, raw
from headrace.testing.load.crew import LoadError, Tally, Work, crew
from headrace.testing.load.machine import cpu_seconds, resident_bytes
from headrace.testing.load.results import LEVELS, Measured, rates
from headrace.testing.peer import Peer
from headrace.testing.process import BrokerProcess
from headrace.wire import batch

MODES = ("raw", "client", "latency", "startup", "memory")
FETCH_FILL_BYTES = 256 << 20
CONSUME_FILL_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how much."""

    seconds: float = 3.0
    value_bytes: tuple[int, ...] = (100, 1000)
    flushes: tuple[str, ...] = ("os", "ack")
    modes: tuple[str, ...] = MODES
    clients: int = 1
    connections: int = 4
    in_flight: int = 32
    data_dir: Path | None = None
    announce: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Target:
    """A broker that is measured."""

    system: str
    level: str
    host: str
    port: int
    pid: int | None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    def load(self, work: Work, *options: dict[str, Any]) -> tuple[list[Tally], float | None]:
        """Let processes work on it; what they did, and the processor time that the broker took for it."""
        with crew(work, options) as go:
            before = None if self.pid is None else cpu_seconds(self.pid)
            tallies = go()
            after = None if self.pid is None else cpu_seconds(self.pid)
        return tallies, None if before is None or after is None else after - before


def run(plan: Plan) -> Iterator[Measured]:
    """Everything that the plan names, row by row."""
    for flush in plan.flushes:
        if {"raw", "client", "latency"} & set(plan.modes):
            with broker(plan, flush) as target:
                yield from on_target(plan, target)
    if "startup" in plan.modes:
        yield from startup(plan)
    if "memory" in plan.modes:
        yield from memory(plan)


def on_target(plan: Plan, target: Target) -> Iterator[Measured]:
    """The cases that need a running broker, ours or Apache Kafka."""
    for mode, cases in (("raw", raw_cases), ("client", client_cases), ("latency", latency_cases)):
        if mode in plan.modes:
            for value_bytes in plan.value_bytes:
                plan.announce(f"{target.system} {mode} {target.level} {value_bytes} B")
                yield from cases(plan, target, value_bytes)


@contextmanager
def broker(plan: Plan, flush: str) -> Iterator[Target]:
    """Our own broker in a process of its own, on a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=plan.data_dir) as directory:
        process = BrokerProcess(Path(directory) / "data", "--storage-flush", flush, "--log-level", "warning")
        with process:
            yield Target("headrace", LEVELS[flush], "127.0.0.1", process.port, process.pid)
            process.stop()


# -- raw sockets


def raw_cases(plan: Plan, target: Target, value_bytes: int) -> Iterator[Measured]:
    single = raw.values(1, value_bytes)
    yield _pumped(plan, target, "produce, 1 record", value_bytes, single, plan.in_flight, plan.connections)
    for batch_bytes in (1 << 14, 1 << 17, 1 << 20):
        count = max(1, (batch_bytes - 70) // (value_bytes + 12))
        name = f"produce, {batch_bytes >> 10} KiB batches"
        yield _pumped(plan, target, name, value_bytes, raw.values(count, value_bytes), 4, plan.connections)
    if target.level != "synced":  # reading does not depend on the level
        yield from _fetched(plan, target, value_bytes)


def _pumped(
    plan: Plan,
    target: Target,
    case: str,
    value_bytes: int,
    records: list[tuple[None, bytes]],
    in_flight: int,
    connections: int,
) -> Measured:
    topic = _topic(target, case, value_bytes)
    raw.create_topic(target.bootstrap_servers, topic, retention_bytes="268435456")
    request = raw.produce_request(topic, batch.build(records, timestamp_ms=raw.TIMESTAMP_MS))
    answers = raw.ProduceAnswers.learn(target.bootstrap_servers, topic, request)
    options = {
        "host": target.host,
        "port": target.port,
        "request": request,
        "take": answers.take,
        "in_flight": in_flight,
        "connections": connections,
        "seconds": plan.seconds,
    }
    tallies, cpu_s = target.load(raw.pump, options)
    found = rates(tallies, cpu_s=cpu_s)
    found["messages_per_s"] = found["requests_per_s"] * len(records)
    note = in_flight_note(connections, in_flight)
    return Measured(target.system, "raw produce", case, target.level, value_bytes, **found, note=note)


def in_flight_note(connections: int, in_flight: int) -> str:
    return f"{_several(connections, 'connection')}, {in_flight} in flight each"


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _fetched(plan: Plan, target: Target, value_bytes: int) -> Iterator[Measured]:
    topic = _topic(target, "fetch", value_bytes)
    raw.create_topic(target.bootstrap_servers, topic)
    per_batch = raw.fill(target.bootstrap_servers, topic, FETCH_FILL_BYTES, value_bytes)
    end = raw.end_offset(target.bootstrap_servers, topic)
    for max_bytes in (1 << 20, 8 << 20):
        last = max(1, end - (max_bytes // value_bytes) - per_batch)
        step = max(1, max_bytes // (1 << 16)) * per_batch
        requests = [raw.fetch_request(topic, offset, max_bytes) for offset in range(0, last, step)]
        for processes, discard in ((1, False), (2, False), (1, True)):
            options = [
                {
                    "host": target.host,
                    "port": target.port,
                    "requests": turned,
                    "seconds": plan.seconds,
                    "discard": discard,
                }
                for turned in (requests[at * 7 % len(requests) :] + requests for at in range(processes))
            ]
            tallies, cpu_s = target.load(raw.fetch, *options)
            note = _several(processes, "reader")
            note += ", bytes dropped by the kernel" if discard else ""
            found = rates(tallies, cpu_s=cpu_s)
            yield Measured(
                target.system, "raw fetch", f"fetch, {max_bytes >> 20} MiB", "", value_bytes, **found, note=note
            )


# -- real clients


def client_cases(plan: Plan, target: Target, value_bytes: int) -> Iterator[Measured]:
    for processes in sorted({1, plan.clients, 2}):
        topic = _topic(target, f"client-{processes}", value_bytes)
        raw.create_topic(target.bootstrap_servers, topic, processes)
        common = {"bootstrap_servers": target.bootstrap_servers, "topic": topic, "seconds": plan.seconds}
        options = [
            {**common, "partitions": [index], "value_bytes": value_bytes, "properties": {}}
            for index in range(processes)
        ]
        tallies, cpu_s = target.load(clients.produce, *options)
        sent = sum(tally.done for tally in tallies)
        arrived = sum(raw.end_offset(target.bootstrap_servers, topic, index) for index in range(processes))
        if arrived != sent:
            raise LoadError(f"{sent} messages were sent and {arrived} are in the log")
        yield _by_message(
            target, "client produce", _several(processes, "producer"), target.level, value_bytes, tallies, cpu_s
        )
        if target.level != "synced":
            reads = [{**common, "partitions": [index], "group": f"bench-{index}"} for index in range(processes)]
            tallies, cpu_s = target.load(clients.consume, *reads)
            yield _by_message(
                target, "client consume", _several(processes, "consumer"), "", value_bytes, tallies, cpu_s
            )


def _by_message(
    target: Target, mode: str, case: str, level: str, value_bytes: int, tallies: list[Tally], cpu_s: float | None
) -> Measured:
    found = rates(tallies)
    done = sum(tally.done for tally in tallies)
    note = "" if cpu_s is None or not done else f"broker: {cpu_s / done * 1e6:.2f} us of CPU per message"
    return Measured(
        *(target.system, mode, case, level, value_bytes),
        messages_per_s=found["requests_per_s"],
        mb_per_s=found["mb_per_s"],
        note=note,
    )


# -- one at a time


def latency_cases(plan: Plan, target: Target, value_bytes: int) -> Iterator[Measured]:
    topic = _topic(target, "latency", value_bytes)
    raw.create_topic(target.bootstrap_servers, topic)
    records = batch.build(raw.values(1, value_bytes), timestamp_ms=raw.TIMESTAMP_MS)
    request = raw.produce_request(topic, records)
    answers = raw.ProduceAnswers.learn(target.bootstrap_servers, topic, request)
    link = {"host": target.host, "port": target.port, "seconds": plan.seconds}
    tallies, cpu_s = target.load(raw.produce_latency, {**link, "request": request, "take": answers.take})
    found = rates(tallies, cpu_s=cpu_s)
    yield Measured(target.system, "latency", "produce, raw", target.level, value_bytes, **found, note="one in flight")
    common = {"bootstrap_servers": target.bootstrap_servers, "topic": topic, "seconds": plan.seconds}
    tallies, _ = target.load(clients.end_to_end, {**common, "value_bytes": value_bytes})
    note = "confluent-kafka, one in flight"
    yield Measured(
        target.system, "latency", "produce to consume", target.level, value_bytes, **rates(tallies), note=note
    )


# -- start and rest


def startup(plan: Plan, times: int = 5) -> Iterator[Measured]:
    """From the command to the ready line and to the first answer; and `Broker()` in a warm process."""
    plan.announce("start-up")
    ready, answered = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=plan.data_dir) as directory:
            process = BrokerProcess(Path(directory) / "data")
            begun = time.perf_counter()
            with process:
                ready.append(time.perf_counter() - begun)
                with Peer(process.bootstrap_servers) as peer:
                    peer.call(18, 0)
                answered.append(time.perf_counter() - begun)
    yield _timed("headrace serve, to the ready line", ready)
    yield _timed("headrace serve, to the first answer", answered)
    code = (
        "import time\nfrom headrace import Broker\n"
        "for _ in range(6):\n"
        "    begun = time.perf_counter()\n    broker = Broker().start()\n"
        "    print(time.perf_counter() - begun, flush=True)\n    broker.stop()\n"
    )
    lines = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=60, text=True)
    cold, *warm = map(float, lines.stdout.split())
    yield _timed("Broker(), first of a process", [cold])
    yield _timed("Broker(), warm process", warm)


def _timed(case: str, seconds: list[float]) -> Measured:
    note = f"best of {len(seconds)}: {min(seconds) * 1e3:.0f} ms" if len(seconds) > 1 else ""
    p50 = statistics.median(seconds) * 1e3
    return Measured("headrace", "start-up", case, "", p50_ms=p50, note=note)


def memory(plan: Plan) -> Iterator[Measured]:
    """Resident memory of an idle broker, once everything is loaded."""
    plan.announce("idle memory")
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=plan.data_dir) as directory,
        BrokerProcess(Path(directory) / "data") as process,
    ):
        time.sleep(2.0)
        resident = resident_bytes(process.pid)
    if resident is None:
        raise LoadError("this system does not tell a process's memory; install psutil")
    yield Measured("headrace", "idle memory", "headrace serve", "", note=f"{resident / 1e6:.1f} MB resident")


def _topic(target: Target, case: str, value_bytes: int) -> str:
    words = "".join(char if char.isalnum() else "-" for char in case)
    return f"bench-{words}-{value_bytes}"[:100]
