"""A cluster of real `headrace serve` processes, each on a loopback address of its own.

    with Cluster(tmp_path, nodes=3) as cluster:
        ... cluster.bootstrap_servers ...
        cluster.node(2).kill()
        cluster.node(2).start()

With `switchboard=True` nodes reach each other, and clients reach nodes, through `cluster.board`, which can be cut.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.client.cluster import Cluster as Operator
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.testing.ports import free_port
from headrace.testing.process import BrokerProcess
from headrace.testing.switchboard import Switchboard

FLAGS = (
    *("--log-level", "info", "--log-format", "json"),
    *("--broker-default-replication-factor", "3", "--broker-min-insync-replicas", "2"),
    *("--group-offsets-partitions", "4", "--transactions-partitions", "4"),
)
VOTERS = 5  # at most, as nodes have it by default
ANSWER_SECONDS = 30.0


class ClusterNode(BrokerProcess):
    """One of them."""

    def __init__(self, data_dir: Path, *flags: str, node_id: int, host: str, port: int) -> None:
        super().__init__(
            data_dir, "--broker-node-id", str(node_id), "--host", host, "--http-host", host, *flags, port=port
        )
        self.node_id = node_id
        self.host = host


class Cluster:
    """See the module."""

    def __init__(
        self,
        home: Path,
        *flags: str,
        nodes: int = 3,
        switchboard: bool = False,
        environ: Callable[[int], dict[str, str]] = lambda _: {},
    ) -> None:
        """`environ`: what a node's process gets besides our own environment."""
        self._home = home
        self._environ = environ
        self._flags = flags
        ids = range(1, nodes + 1)
        self._listens = {node: (_host(node), free_port(_host(node))) for node in ids}
        self.board = Switchboard(self._listens) if switchboard else None
        self._nodes: dict[int, ClusterNode] = {}

    @property
    def nodes(self) -> list[ClusterNode]:
        return list(self._nodes.values())

    def node(self, node_id: int) -> ClusterNode:
        return self._nodes[node_id]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self._address, self._nodes))

    def _address(self, node_id: int) -> tuple[str, int]:
        return self.board.addresses[node_id] if self.board is not None else self._listens[node_id]

    def start(self) -> Self:
        if self.board is not None:
            self.board.start()
        for node_id in self._listens:
            self.add(node_id)
        self.await_formed()
        return self

    def add(self, node_id: int, *flags: str) -> ClusterNode:
        """Make a node and start it; all but the first join."""
        if node_id not in self._listens:
            self._listens[node_id] = _host(node_id), free_port(_host(node_id))
        host, port = self._listens[node_id]
        join = ["--cluster-join", self.bootstrap_servers] if self._nodes else []
        if self.board is not None:
            advertised = self.board.addresses[node_id]
            join += ["--advertised-host", advertised[0], "--advertised-port", str(advertised[1])]
        words = (*FLAGS, *self._flags, *join, *flags)
        node = ClusterNode(self._home / f"node-{node_id}", *words, node_id=node_id, host=host, port=port)
        node.environ = self._environ(node_id)
        self._nodes[node_id] = node
        node.start()
        return node

    def stop(self) -> None:
        for node in self.nodes:
            try:
                node.resume()
            except (AssertionError, ProcessLookupError):
                continue
            node.kill()
        if self.board is not None:
            self.board.stop()

    def logs(self, lines: int = 20) -> str:
        return "\n".join(f"-- node {node.node_id}\n{node.log_tail(lines)}" for node in self.nodes)

    def metadata(self, *, away: frozenset[int] = frozenset()) -> Any:
        """The cluster as a client sees it through the nodes that are not `away`."""
        from confluent_kafka.admin import AdminClient

        servers = ",".join(":".join(map(str, self._address(node))) for node in self._nodes if node not in away)
        return AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=ANSWER_SECONDS)

    def await_(self, condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        """Until it holds. A cluster that gives no answer does not fulfil it."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:.0f} s: {what}\n{self.logs()}")
            time.sleep(0.05)

    def await_formed(self) -> None:
        """Until all are there, and as many decide together as can: before that, the loss of one may be the loss of
        the quorum.
        """
        count = min(len(self._nodes), VOTERS)
        count -= (count + 1) % 2

        def reached() -> bool:
            try:
                alive = sum(node.state == "alive" for node in operator.describe().nodes)
                return alive >= len(self._nodes) and sum(member.votes for member in operator.quorum()) >= count
            except ClientError:
                return False

        with Operator(Connection(self.bootstrap_servers, timeout_s=ANSWER_SECONDS)) as operator:
            self.await_(reached, f"all are there, and {count} nodes vote")

    def leader_of(self, topic: str, partition: int = 0, *, away: frozenset[int] = frozenset()) -> int:
        """Who leads, as soon as somebody does who is not `away`."""
        found = -1

        def is_led() -> bool:
            nonlocal found
            there = self.metadata(away=away).topics.get(topic)  # the node that answers may not have heard of it yet
            found = there.partitions[partition].leader if there is not None and partition in there.partitions else -1
            return found >= 0 and found not in away

        self.await_(is_led, f"somebody leads {topic}-{partition}")
        return found

    def await_in_sync(self, topic: str, replicas: int, seconds: float = 120.0) -> None:
        """Until every partition of a topic has so many replicas in sync, and a leader."""

        def reached() -> bool:
            found = self.metadata().topics.get(topic)  # the node that answers may not have heard of it yet
            partitions = found.partitions.values() if found is not None else ()
            return bool(partitions) and all(len(one.isrs) >= replicas and one.leader >= 0 for one in partitions)

        self.await_(reached, f"{topic} has {replicas} replicas in sync", seconds)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _host(node_id: int) -> str:
    """Clusters of two processes that run side by side have no address in common, and so no port to lose."""
    own = os.getpid() % 64_000
    return f"127.{1 + own // 256}.{own % 256}.{10 + node_id}"
