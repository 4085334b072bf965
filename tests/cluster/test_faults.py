"""A cluster of real processes under load: killed, paused, cut off, restarted. Nothing is lost, nothing doubled."""

from __future__ import annotations

import random
import time

import pytest

from headrace.testing.cluster import Cluster
from headrace.testing.ledger import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def opened(cluster: Cluster, **choices: int) -> Ledger:
    ledger = Ledger(cluster.bootstrap_servers, **choices)
    ledger.open(replication_factor=3, configs={"min.insync.replicas": "2"})
    ledger.await_progress()
    return ledger


def test_a_leader_that_is_killed_loses_nothing_and_comes_back(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        ledger = opened(cluster)
        for _ in range(2):
            node = cluster.node(cluster.leader_of(ledger.topic))
            node.kill()
            ledger.await_progress()
            node.start()
            cluster.await_in_sync(ledger.topic, 3)
        assert ledger.close() == [], cluster.logs()


@pytest.mark.slow
def test_a_leader_whose_disk_flipped_a_bit_lets_others_lead_and_copies_theirs(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        ledger = opened(cluster)
        number = cluster.leader_of(ledger.topic)
        node = cluster.node(number)
        node.stop()
        [log] = (node.data_dir / "topics" / f"{ledger.topic}-0").glob("*.log")
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        node.start()
        cluster.await_in_sync(ledger.topic, 3)
        cluster.await_(lambda: cluster.leader_of(ledger.topic) == number, "it leads again, and knows nothing")
        assert ledger.close() == [], cluster.logs()  # reads everything
        assert [path.name for path in (node.data_dir / "stray").iterdir()] == [f"{ledger.topic}-0"]
        cluster.await_in_sync(ledger.topic, 3)


def test_a_leader_that_is_paused_acknowledges_nothing_more(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        ledger = opened(cluster)
        node = cluster.node(cluster.leader_of(ledger.topic))
        node.pause()
        cluster.leader_of(ledger.topic, away=frozenset({node.node_id}))  # another one
        node.resume()
        ledger.await_progress()
        cluster.await_in_sync(ledger.topic, 3)
        assert ledger.close() == [], cluster.logs()


def test_a_leader_that_is_cut_off_by_its_address_is_replaced_and_returns(tmp_path):
    with Cluster(tmp_path, nodes=3, switchboard=True) as cluster:
        assert cluster.board is not None
        ledger = opened(cluster)
        node_id = cluster.leader_of(ledger.topic)
        cluster.board.isolate(node_id)
        cluster.leader_of(ledger.topic, away=frozenset({node_id}))  # another one
        cluster.board.heal()
        ledger.await_progress()
        cluster.await_in_sync(ledger.topic, 3)
        assert ledger.close() == [], cluster.logs()


def test_a_rolling_restart_goes_unnoticed(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        ledger = opened(cluster)
        for node in cluster.nodes:
            assert node.stop() == 0
            node.start()
            cluster.await_in_sync(ledger.topic, 3)
            ledger.await_progress()
        assert ledger.close() == [], cluster.logs()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", [3, 5])
def test_many_faults_one_after_the_other(tmp_path, nodes):
    dice = random.Random(nodes)
    with Cluster(tmp_path, nodes=nodes, switchboard=True) as cluster:
        board = cluster.board
        assert board is not None
        ledger = opened(cluster, partitions=6)
        for _ in range(10):
            node = dice.choice(cluster.nodes)
            fault = dice.choice(["kill", "pause", "cut", "stop"])
            if fault == "kill":
                node.kill()
                time.sleep(dice.uniform(0, 3))
                node.start()
            elif fault == "pause":
                node.pause()
                time.sleep(dice.uniform(0, 5))
                node.resume()
            elif fault == "cut":
                board.isolate(node.node_id)
                time.sleep(dice.uniform(0, 5))
                board.heal()
            else:
                node.stop()
                node.start()
            ledger.await_progress()
            cluster.await_in_sync(ledger.topic, 3)
        assert ledger.close() == [], cluster.logs()
