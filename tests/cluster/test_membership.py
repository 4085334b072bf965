"""Nodes come and go under load: replicas and leaderships move, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli.operating import open_cluster
from headrace.client.cluster import Cluster as Operator
from headrace.client.cluster import NodeView
from headrace.client.errors import ClientError
from headrace.testing.cluster import Cluster
from headrace.testing.ledger import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PATIENCE_S = 120.0


def seen(operator: Operator, node_id: int) -> NodeView | None:
    """A node as the controller sees it."""
    return next((node for node in operator.describe().nodes if node.node_id == node_id), None)


def holds_nothing(operator: Operator, node_id: int) -> bool:
    node = seen(operator, node_id)
    return node is not None and node.replicas == 0 and not operator.reassignments()


def moves_on(operator: Operator) -> bool:
    """Have replicas moved, where they are not on their way yet; False, for there is something to wait for."""
    operator.rebalance()
    return False


def settles(cluster: Cluster, what: str, step: Callable[[], object]) -> None:
    """Until a step is taken: a controller that is just changing refuses it, or does not answer."""

    def done() -> bool:
        try:
            return step() is not False
        except ClientError:
            return False

    cluster.await_(done, what, PATIENCE_S)


def test_a_node_is_added_and_another_drained_and_removed_under_load(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster, open_cluster(cluster.bootstrap_servers, [], 20.0) as operator:
        ledger = Ledger(cluster.bootstrap_servers)
        ledger.open(replication_factor=3, configs={"min.insync.replicas": "2"})
        ledger.await_progress()

        cluster.add(4)
        ledger.await_progress()
        cluster.await_in_sync(ledger.topic, 3)  # and so has a leader
        leaving = cluster.leader_of(ledger.topic)

        settles(cluster, "the node is draining", lambda: operator.drain(leaving))
        settles(cluster, "it leads nothing", lambda: getattr(seen(operator, leaving), "leaders", -1) == 0)
        ledger.await_progress()
        # Said again until it is done: an answer may be lost, and a node that is missed for a moment hinders it.
        settles(cluster, "it holds nothing", lambda: holds_nothing(operator, leaving) or moves_on(operator))
        ledger.await_progress()

        assert cluster.node(leaving).stop() == 0
        settles(cluster, "the node is removed", lambda: seen(operator, leaving) is None or operator.remove(leaving))
        settles(cluster, "it is gone", lambda: seen(operator, leaving) is None)
        ledger.await_progress()
        cluster.await_in_sync(ledger.topic, 3)

        def is_elsewhere() -> bool:
            found = cluster.metadata(away=frozenset({leaving})).topics.get(ledger.topic)
            partitions = found.partitions.values() if found is not None else ()
            return bool(partitions) and all(leaving not in part.replicas and 4 in part.replicas for part in partitions)

        cluster.await_(is_elsewhere, "every node knows who holds what")
        assert ledger.close() == [], cluster.logs()
