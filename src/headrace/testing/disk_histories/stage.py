"""The nodes of a history: one, or a cluster of three; started, killed, looked at.

`ailments` says what is wrong, as anybody can see it from outside: metadata and readiness. Synced acknowledgements are
the default of a broker on a disk. On three nodes every partition has three replicas, two of which must have what is
acknowledged.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import Cluster
from headrace.testing.disk_histories.clients import BRISK, PARTITIONS
from headrace.testing.disk_histories.shim import Shim, build
from headrace.testing.process import BrokerProcess, NotReadyError
from headrace.testing.topics import create

FLAGS: Final = (
    *("--log-level", "info", "--log-format", "json"),
    *("--group-offsets-partitions", "2", "--transactions-partitions", "2"),
)
CONFIGS: Final = {"segment.ms": "2000"}  # so that there are sealed segments, indexes and snapshots
ANSWER_SECONDS: Final = 5.0
UNTOLD: Final = "no answer"  # a busy machine may be why
READY_SECONDS: Final = 90.0


class Stage:
    """All nodes. They are numbered from 0 on here."""

    def __init__(self, home: Path, nodes: int) -> None:
        self.nodes: list[Any] = []  # BrokerProcess
        self.shims: list[Shim] = []
        self.replicas = 3 if nodes > 1 else 1
        self._home = home
        self._count = nodes
        self._copies: dict[int, Path] = {}
        self._admin: AdminClient | None = None
        self._cluster: Cluster | None = None

    def open(self) -> None:
        library = build(self._home)
        if library is not None:
            self.shims = [Shim(library, self._home / f"shim-{number}") for number in range(self._count)]
        if self._count == 1:
            node = BrokerProcess(self._home / "node-1", *FLAGS)
            node.environ = self._environ(1)
            self.nodes = [node]
            node.start()
        else:
            self._cluster = Cluster(self._home, *FLAGS, nodes=self._count, environ=self._environ)
            self._cluster.start()
            self.nodes = self._cluster.nodes
        self._admin = AdminClient({**BRISK, "bootstrap.servers": self.servers})
        configs = CONFIGS | ({"min.insync.replicas": "2"} if self.replicas > 1 else {})
        for topic, count in PARTITIONS.items():
            create(self._admin, NewTopic(topic, count, self.replicas, config=configs))

    def _environ(self, node_id: int) -> dict[str, str]:
        return self.shims[node_id - 1].environ if self.shims else {}

    @property
    def servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def close(self) -> None:
        for node in self._cluster.nodes if self._cluster is not None else self.nodes:
            try:
                node.resume()
            except (AssertionError, ProcessLookupError):
                continue
            node.kill()

    def start(self, numbers: Iterable[int], seconds: float = READY_SECONDS) -> dict[int, NotReadyError]:
        """Start nodes side by side; those that did not begin to serve, and why."""
        numbers = list(numbers)
        for number in numbers:
            self.nodes[number].launch()
        failed = {}
        for number in numbers:
            try:
                self.nodes[number].await_ready(seconds)
            except NotReadyError as error:
                failed[number] = error
        return failed

    # -- looking ---------------------------------------------------------------------------------------------------

    def ailments(self) -> list[str]:
        """What is wrong: nodes that do not run or are not ready, partitions without leader or with too few replicas."""
        found = [f"node {n + 1} does not run" for n, node in enumerate(self.nodes) if not node.is_running]
        for number, node in enumerate(self.nodes):
            if node.is_running:
                found += [f"node {number + 1}: {reason}" for reason in readiness(node)]
        try:
            topics = self._metadata()
        except KafkaException as error:
            return [*found, f"metadata: {UNTOLD}: {error}"]
        for name in PARTITIONS:
            if name not in topics:
                found.append(f"{name} is not there")
        for name, topic in topics.items():
            for index, one in topic.partitions.items():
                if one.leader < 0 or one.error is not None:
                    found.append(f"{name}-{index} has no leader ({one.error})")
                elif len(one.isrs) < self.replicas:
                    found.append(f"{name}-{index} has {sorted(one.isrs)} in sync")
        return found

    def await_health(self, seconds: float) -> list[str]:
        """Wait until nothing is wrong, twice in a row. What is, in the end."""
        deadline = time.monotonic() + seconds
        well = 0
        while True:
            found = self.ailments()
            well = 0 if found else well + 1
            if well > 1 or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def leader(self, topic: str, index: int) -> int | None:
        """The number of the node that leads."""
        try:
            leader: int = self._metadata()[topic].partitions[index].leader
        except (KafkaException, KeyError):
            return None
        return leader - 1 if self._count > 1 else 0

    def _metadata(self) -> Any:
        assert self._admin is not None
        return self._admin.list_topics(timeout=ANSWER_SECONDS).topics

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(f"-- node {number + 1}\n{node.log_tail(lines)}" for number, node in enumerate(self.nodes))

    # -- copies ----------------------------------------------------------------------------------------------------

    def copy(self, number: int) -> Path:
        """Copy a node's directory as it is at this moment; the node stands still meanwhile."""
        node, target = self.nodes[number], self._home / f"copy-{number + 1}"
        shutil.rmtree(target, ignore_errors=True)
        node.pause()
        try:
            shutil.copytree(node.data_dir, target)
        finally:
            node.resume()
        self._copies[number] = target
        return target

    def copied(self, number: int) -> Path:
        """The last copy of a node's directory."""
        return self._copies[number]


def readiness(node: BrokerProcess) -> list[str]:
    """Why a node is not ready; nothing if it is."""
    try:
        with urllib.request.urlopen(f"{node.http_url}/readyz", timeout=ANSWER_SECONDS):
            return []
    except urllib.error.HTTPError as error:
        try:
            return [str(reason) for reason in json.loads(error.read())["reasons"]]
        except (ValueError, KeyError):
            return [str(error)]
    except OSError as error:
        return [f"readiness: {UNTOLD}: {error}"]


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
