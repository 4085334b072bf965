"""Three real processes become a cluster: they find each other, decide together, and survive each other.

What one node knows, another may know a moment later: whatever is looked at through "any node" is waited for.
"""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import Cluster
from headrace.testing.topics import create

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

ALL = frozenset({1, 2, 3})


def admin(cluster: Cluster, node_id: int) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.node(node_id).bootstrap_servers, "log_level": 0})


def brokers(cluster: Cluster, *, away: frozenset[int] = frozenset()) -> set[int]:
    return set(cluster.metadata(away=away).brokers)


def leaders(cluster: Cluster, topic: str, *, away: frozenset[int] = frozenset()) -> set[int]:
    found = cluster.metadata(away=away).topics.get(topic)
    return {partition.leader for partition in found.partitions.values()} if found is not None else set()


def partitions(cluster: Cluster, topic: str) -> int:
    found = cluster.metadata().topics.get(topic)
    return len(found.partitions) if found is not None else 0


def are_led_by(cluster: Cluster, topic: str, nodes: frozenset[int], away: frozenset[int]) -> bool:
    found = leaders(cluster, topic, away=away)
    return bool(found) and found <= nodes


def controller_of(cluster: Cluster, *, away: frozenset[int] = frozenset()) -> int:
    """Who decides; it is waited for, and is not one of those that are away."""
    found = -1

    def is_there() -> bool:
        nonlocal found
        found = cluster.metadata(away=away).controller_id
        return found in ALL - away

    cluster.await_(is_there, "somebody decides")
    return found


def test_three_processes_form_a_cluster_that_outlives_its_controller(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        cluster.await_(lambda: brokers(cluster) == ALL, "everybody is there")
        # Through a node that does not decide; what any node knows, all will know.
        other = admin(cluster, next(iter(ALL - {controller_of(cluster)})))
        create(other, NewTopic("orders", 6, 3))
        cluster.await_(lambda: partitions(cluster, "orders") == 6, "the topic is there")

        dead = controller_of(cluster)
        away, others = frozenset({dead}), ALL - {dead}
        cluster.node(dead).kill()
        cluster.await_(lambda: brokers(cluster, away=away) == others, "the dead node is fenced")
        assert controller_of(cluster, away=away) in others
        cluster.await_(lambda: are_led_by(cluster, "orders", others, away), "others lead")
        create(admin(cluster, min(others)), NewTopic("more", 2, 2))

        cluster.node(dead).port = 0  # it comes back elsewhere, and is found there
        cluster.node(dead).start()

        def is_found_there() -> bool:
            found = cluster.metadata().brokers
            return set(found) == ALL and found[dead].port == cluster.node(dead).port

        cluster.await_(is_found_there, "the dead node is back, where it says")
        cluster.await_(
            lambda: {"orders", "more"} <= set(admin(cluster, dead).list_topics(timeout=30).topics),
            "it knows all topics",
        )


def test_a_node_that_stops_gives_everything_away_and_all_come_back(tmp_path):
    # Nobody would be missed so soon: whatever moves, moves because the node said goodbye.
    with Cluster(tmp_path, "--cluster-session-ms", "300000", nodes=3) as cluster:
        cluster.await_(lambda: brokers(cluster) == ALL, "everybody is there")
        create(admin(cluster, 2), NewTopic("orders", 6, 3))
        cluster.await_in_sync("orders", 3)
        assert cluster.node(1).stop() == 0
        away, others = frozenset({1}), frozenset({2, 3})
        cluster.await_(lambda: are_led_by(cluster, "orders", others, away), "others lead, for it said goodbye")
        for node in (2, 3):
            cluster.node(node).kill()
        for node in cluster.nodes:
            node.launch()
        cluster.await_(lambda: brokers(cluster) == ALL, "the cluster is back after all nodes were down")
        cluster.await_(lambda: "orders" in cluster.metadata().topics, "the topic is back")
