"""What a history is played on: one broker, or a cluster of nodes. It deals the blows that fall on them.

- `Lone`: one broker process, behind a proxy if wanted.
- `Several`: nodes behind a switchboard; topics have three copies, two of which must have what is acknowledged. A blow
  takes one node at a time (a rolling restart: one after the other), and ends when all copies are in sync again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from headrace.testing.cluster import Cluster, ClusterNode
from headrace.testing.exactly_once.plan import ANY, Blow, Fault
from headrace.testing.exactly_once.transformer import PARTITIONS
from headrace.testing.process import BrokerProcess
from headrace.testing.proxy import Faults, Proxy

LOG_LINES: Final = 500
IN_SYNC_SECONDS: Final = 120.0
# Before version 2 of the protocol nothing tells a late EndTxn or TxnOffsetCommit from one of the next transaction, and
# no broker can: for librdkafka only what carries sequences is doubled or late.
MISHAPS: Final = Faults(
    lose_answer=0.01, delay_answer=0.05, lose_request=0.005, repeat=0.05, late=0.01, longest_delay_s=0.05
)


class Patience(NamedTuple):
    """How long things may take here."""

    blow_s: float  # until the next blow can be dealt
    finish_s: float  # until everything is billed, or a transformer has ended
    stable_s: float  # until no transaction is open
    transaction_timeout_ms: int
    straggler_timeout_ms: int  # as a start
    session_timeout_ms: int
    give_up_s: float  # see the transformer


class Stage(Protocol):
    """See the module."""

    patience: Patience
    replication_factor: int
    offsets_partitions: int

    @property
    def servers(self) -> str: ...

    @property
    def mishaps(self) -> Counter[str]: ...

    def open(self, stack: ExitStack) -> None: ...

    def disturb(self) -> None:
        """From now on, if ever, the network is bad."""

    def deal(self, blow: Blow) -> None:
        """Raises TimeoutError if what was hit does not come back."""

    def calm(self) -> None:
        """All is well from now on."""

    def log_tail(self, lines: int = 30) -> str: ...


class Lone:
    """One broker."""

    patience = Patience(90.0, 120.0, 60.0, 60_000, 3000, 20_000, 0.0)
    replication_factor = 1
    offsets_partitions = 8

    def __init__(self, folder: Path, *, seed: int, proxy: bool) -> None:
        self._proxy = Proxy(Faults(), seed=seed) if proxy else None
        flags = ["--log-level", "warning", "--transactions-partitions", "2"]
        if self._proxy is not None:
            flags += ["--advertised-port", str(self._proxy.port)]
        self._broker = BrokerProcess(folder / "broker", *flags)

    @property
    def servers(self) -> str:
        return self._broker.bootstrap_servers if self._proxy is None else f"127.0.0.1:{self._proxy.port}"

    @property
    def mishaps(self) -> Counter[str]:
        return Counter() if self._proxy is None else self._proxy.counts

    def open(self, stack: ExitStack) -> None:
        stack.enter_context(self._broker)
        if self._proxy is not None:
            stack.enter_context(self._proxy)
            self._proxy.upstream = "127.0.0.1", self._broker.port

    def disturb(self) -> None:
        if self._proxy is not None:
            self._proxy.faults = MISHAPS

    def deal(self, blow: Blow) -> None:
        assert blow.fault is Fault.KILL_BROKER
        self._broker.kill()
        self._broker.start()

    def calm(self) -> None:
        if self._proxy is not None:
            self._proxy.faults = Faults()

    def log_tail(self, lines: int = 30) -> str:
        return self._broker.log_tail(lines)


class Several:
    """A cluster."""

    patience = Patience(120.0, 180.0, 90.0, 60_000, 4000, 20_000, 15.0)
    replication_factor = 3
    offsets_partitions = 4

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self.mishaps: Counter[str] = Counter()
        self._cluster = Cluster(folder, nodes=nodes, switchboard=True)

    @property
    def servers(self) -> str:
        return self._cluster.bootstrap_servers

    def open(self, stack: ExitStack) -> None:
        stack.callback(self._cluster.stop)
        self._cluster.start()

    def disturb(self) -> None:
        """Nothing but blows happens here."""

    def deal(self, blow: Blow) -> None:
        if blow.fault is Fault.ROLLING_RESTART:
            for node in self._cluster.nodes:
                node.stop()
                node.start()
                self._await_in_sync()
            return
        node, board = self._victim(blow), self._cluster.board
        assert board is not None
        match blow.fault:
            case Fault.KILL_BROKER:
                node.kill()
                time.sleep(blow.pause_s)
                node.start()
            case Fault.PAUSE_NODE:
                node.pause()
                time.sleep(blow.pause_s)
                node.resume()
            case Fault.CUT_NODE:
                board.isolate(node.node_id)
                time.sleep(blow.pause_s)
                board.heal()
        self._await_in_sync()

    def calm(self) -> None:
        """Every blow ends well."""

    def log_tail(self, lines: int = 30) -> str:
        return self._cluster.logs(lines)

    def _victim(self, blow: Blow) -> ClusterNode:
        """Whoever leads what the blow is meant for."""
        topic, index = blow.target
        nodes = self._cluster.nodes
        if topic == ANY:
            return nodes[index % len(nodes)]
        found: list[int] = []

        def is_led() -> bool:
            there = self._cluster.metadata().topics.get(topic)
            found[:] = [there.partitions[index % len(there.partitions)].leader if there is not None else -1]
            return found[0] >= 0

        self._cluster.await_(is_led, f"{topic} is led", IN_SYNC_SECONDS)
        return self._cluster.node(found[0])

    def _await_in_sync(self) -> None:
        def reached() -> bool:
            topics = self._cluster.metadata().topics  # the node that answers may not have heard of all of them yet
            return all(name in topics and _is_whole(topics[name].partitions.values()) for name in PARTITIONS)

        self._cluster.await_(reached, "every partition has its replicas in sync", IN_SYNC_SECONDS)


def _is_whole(partitions: Sequence[object]) -> bool:
    return all(one.leader >= 0 and len(one.isrs) >= Several.replication_factor for one in partitions)  # type: ignore[attr-defined]
