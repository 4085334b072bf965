"""Three real processes become a cluster: they find each other, decide together, and survive each other."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.cluster import Cluster


def admin(cluster: Cluster, node_id: int) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.node(node_id).bootstrap_servers, "log_level": 0})


def brokers(cluster: Cluster, *, away: frozenset[int] = frozenset()) -> set[int]:
    return set(cluster.metadata(away=away).brokers)


def test_three_processes_form_a_cluster_that_outlives_its_controller(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        cluster.await_(lambda: brokers(cluster) == {1, 2, 3}, "everybody is there")
        # Through a node that does not decide; and it knows the topic when it says so.
        other = admin(cluster, 3)
        other.create_topics([NewTopic("orders", 6, 3)])["orders"].result(30)
        assert len(other.list_topics("orders", timeout=10).topics["orders"].partitions) == 6
        cluster.await_(lambda: cluster.metadata().controller_id == 1, "the founder is the controller")

        cluster.node(1).kill()
        away = frozenset({1})
        cluster.await_(lambda: brokers(cluster, away=away) == {2, 3}, "the dead node is fenced")
        cluster.await_(lambda: cluster.metadata(away=away).controller_id in (2, 3), "another node leads")
        topics = cluster.metadata(away=away).topics["orders"].partitions.values()
        assert {partition.leader for partition in topics} <= {2, 3}
        other.create_topics([NewTopic("more", 2, 2)])["more"].result(30)

        cluster.node(1).port = 0  # it comes back elsewhere, and is found there
        cluster.node(1).start()
        cluster.await_(lambda: brokers(cluster) == {1, 2, 3}, "the dead node is back")
        assert cluster.metadata().brokers[1].port == cluster.node(1).port
        assert {"orders", "more"} <= set(admin(cluster, 1).list_topics(timeout=10).topics)


def test_a_node_that_stops_gives_everything_away_and_all_come_back(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        cluster.await_(lambda: brokers(cluster) == {1, 2, 3}, "everybody is there")
        other = admin(cluster, 2)
        other.create_topics([NewTopic("orders", 6, 3)])["orders"].result(30)
        assert cluster.node(1).stop() == 0
        away = frozenset({1})
        topics = cluster.metadata(away=away).topics["orders"].partitions.values()
        assert {partition.leader for partition in topics} <= {2, 3}  # at once: it has said goodbye
        for node in (2, 3):
            cluster.node(node).kill()
        for node in cluster.nodes:
            node.launch()
        cluster.await_(lambda: brokers(cluster) == {1, 2, 3}, "the cluster is back after all nodes were down")
        assert "orders" in cluster.metadata().topics
