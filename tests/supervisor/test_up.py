"""`headrace cluster up` as somebody uses it: a process, its console from outside, brokers that die, messages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.client import Consumer, Producer
from headrace.client.cluster import Cluster
from headrace.client.connection import Connection
from headrace.client.errors import ClientError

PATIENCE_S = 120.0
ANSWER_S = 30.0


def free_ports(count: int) -> int:
    """The first of so many ports that are free, one after the other."""
    for first in range(21_000 + os.getpid() % 5000, 32_000, count):
        taken = []
        try:
            for port in range(first, first + count):
                one = socket.socket()
                taken.append(one)
                one.bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in taken:
                one.close()
    raise AssertionError("no free ports")


class Up:
    """The process, and its console."""

    def __init__(self, home: Path, *more: str, first: int | None = None) -> None:
        self.first = first = first or free_ports(8)
        self.bootstrap_servers = ",".join(f"127.0.0.1:{first + number}" for number in range(3))
        config = home / "up.yml"
        config.write_text(
            f"coordinator: {{port: {first + 3}, console_port: {first + 4}}}\n"
            f"broker: {{base_port: {first}, http_base_port: {first + 5}}}\n"
            "topics: {default_partitions: 3, replication_factor: 2}\n"
        )
        self._said = home / "said"
        command = [sys.executable, "-m", "headrace", "cluster", "up", "--nodes", "3", "--config", config, *more]
        with self._said.open("wb") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL)

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("cluster ready: "), self.said
        return line

    def console(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "headrace", "console", "-a", f"127.0.0.1:{self.first + 4}", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def states(self) -> dict[str, tuple[str, int | None]]:
        """State and process of each service, as `status` shows them."""
        rows = [line.split() for line in self.console("status").splitlines()[1:]]
        return {row[0]: (row[2], int(row[3]) if row[3].isdigit() else None) for row in rows}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path, "--memory")
    try:
        yield running
    finally:
        running.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def read(servers: str, count: int) -> list[str]:
    """What there is, as far as `count`; once each, for a producer that hears nothing sends again."""
    with Consumer("orders", bootstrap=Connection(servers, timeout_s=ANSWER_S)) as consumer:
        found: set[str] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll()
            if message is not None and message.value is not None:
                found.add(message.value.decode())
        return sorted(found, key=int)


def write(servers: str, numbers: range) -> None:
    with Producer(Connection(servers, timeout_s=ANSWER_S), delivery_s=PATIENCE_S) as producer:
        for number in numbers:
            producer.send_and_wait("orders", f"{number}")


def is_whole(servers: str) -> bool:
    """Whether all vote, and both copies of every partition are in sync, so that any broker may go."""
    try:
        with Cluster(Connection(servers, timeout_s=ANSWER_S)) as cluster:
            voters = sum(member.votes for member in cluster.quorum())
        known = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=ANSWER_S)
    except (ClientError, KafkaException):  # the controller has just moved
        return False
    found = known.topics.get("orders")
    return voters == 3 and found is not None and all(len(each.isrs) == 2 for each in found.partitions.values())


@pytest.mark.timeout(600)
def test_a_cluster_comes_up_survives_its_brokers_and_stops(up):
    line = up.ready()
    assert up.bootstrap_servers in line
    until(lambda: {state for state, _ in up.states().values()} == {"ready"})
    write(up.bootstrap_servers, range(10))
    until(lambda: is_whole(up.bootstrap_servers))

    assert up.console("broker", "stop", "2") == "broker-2 has stopped\n"
    assert up.states()["broker-2"] == ("stopped", None)
    write(up.bootstrap_servers, range(10, 15))
    assert "is starting" in up.console("broker", "start", "2")
    until(lambda: up.states()["broker-2"][0] == "ready")
    until(lambda: is_whole(up.bootstrap_servers))

    _, victim = up.states()["broker-1"]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    until(lambda: (found := up.states()["broker-1"])[0] == "ready" and found[1] != victim)
    assert re.search(r"broker-1 has ended by itself \(-9\)", up.said)
    until(lambda: re.search(r"broker-1 is back on ", up.said) is not None)
    assert up.console("broker", "stop", "7", code=1) == "no broker 7; there are 0 to 2\n"
    assert read(up.bootstrap_servers, 15) == [str(number) for number in range(15)]

    _, pid = up.states()["broker-0"]
    assert pid is not None
    assert up.console("quit") == "bye\n"
    assert up.process.poll() is None, "quit from outside ends the console alone"
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(PATIENCE_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.timeout(600)
def test_a_cluster_starts_again_on_its_own_data_and_a_founder_without_data_founds_no_second_one(tmp_path):
    data = tmp_path / "data"
    running = Up(tmp_path, "--data-dir", str(data))
    try:
        running.ready()
        write(running.bootstrap_servers, range(5))
        until(lambda: is_whole(running.bootstrap_servers))
        founded = (data / "broker-1" / "meta.json").read_text()
        running.stop()

        running = Up(tmp_path, "--data-dir", str(data), first=running.first)
        running.ready()
        assert read(running.bootstrap_servers, 5) == [str(number) for number in range(5)]
        assert (data / "broker-1" / "meta.json").read_text() == founded
        running.stop()

        shutil.rmtree(data / "broker-0")
        running = Up(tmp_path, "--data-dir", str(data), first=running.first)
        until(lambda: "another data directory" in running.said + (data / "broker-0.log").read_text(errors="replace"))
        until(lambda: running.states()["broker-1"][0] == "ready")
    finally:
        running.stop()
