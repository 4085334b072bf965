"""What the metrics page tells of the cluster."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

from headrace.broker.image import BrokerRecord, Image, PartitionRecord, TopicRecord, apply
from headrace.core.counters import Counters
from headrace.gateways.http import cluster_metrics
from headrace.isr.leader import LeaderReplicas
from headrace.isr.state import PartitionState
from headrace.raft.records import Membership

NODES = [
    BrokerRecord(1, "h1", 9092),
    BrokerRecord(2, "h2", 9092),
    BrokerRecord(3, "h3", 9092, fenced=True),
    BrokerRecord(4, "h4", 9092, draining=True),
]
PARTITIONS = [
    PartitionRecord("orders", 0, (1, 2), (1, 2), 1, 0),
    PartitionRecord("orders", 1, (1, 2), (1,), 1, 0),
    PartitionRecord("orders", 2, (2, 1), (2, 1), 2, 0, adding=(1,)),
    PartitionRecord("orders", 3, (3,), (3,), -1, 0),
]
IMAGE = apply(Image(), [*NODES, TopicRecord("orders", UUID(int=1)), *PARTITIONS])


def led(record: PartitionRecord, *, start: int, end: int, fetched: dict[int, int]) -> SimpleNamespace:
    state = PartitionState(record.replicas, record.isr, record.leader, record.leader_epoch)
    replicas = LeaderReplicas(record.leader, state, end_offset=end, high_watermark=0, now_s=0.0)
    for node, offset in fetched.items():
        replicas.fetched(node, offset, 0, end, 1.0)
    return SimpleNamespace(record=record, replicas=replicas, log=SimpleNamespace(start_offset=start, end_offset=end))


def told(**changes: object) -> dict[tuple[str, ...], float]:
    fields: dict[str, object] = {
        "node_id": 1,
        "leader": 1,
        "leads": True,
        "term": 5,
        "commit_index": 40,
        "membership": Membership(voters=(1, 2, 3), learners=(4,)),
    }
    quorum = SimpleNamespace(**{**fields, **changes})
    counters = Counters()
    counters.cluster.in_sync_shrinks = 2
    counters.cluster.forwarded = 9
    service = SimpleNamespace(
        counters=counters,
        controller=SimpleNamespace(image=IMAGE, applied_index=39, quorum=quorum),
        council=SimpleNamespace(skew_of={2: -250.0}.get),
        partitions=[
            led(PARTITIONS[0], start=0, end=100, fetched={2: 90}),
            led(PARTITIONS[1], start=80, end=100, fetched={}),
            SimpleNamespace(record=PARTITIONS[2], replicas=None),
        ],
    )
    numbers = cluster_metrics.read(service)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in cluster_metrics.families(numbers)
        for sample in family.samples
    }


def test_the_quorum_is_told():
    found = told()
    assert found["headrace_quorum_role", "leader"] == 1
    assert found["headrace_quorum_role", "follower"] == 0
    assert found["headrace_quorum_leader_id",] == 1
    assert found["headrace_quorum_term",] == 5
    assert found["headrace_quorum_commit_index",] == 40
    assert found["headrace_quorum_applied_index",] == 39
    assert found["headrace_quorum_voters",] == 3


def test_a_node_without_a_controller_says_so():
    found = told(leads=False, leader=None)
    assert found["headrace_quorum_leader_id",] == -1
    assert found["headrace_quorum_role", "follower"] == 1
    assert told(node_id=4, leads=False)["headrace_quorum_role", "learner"] == 1
    assert told(node_id=9, leads=False)["headrace_quorum_role", "none"] == 1


def test_nodes_are_counted_by_state_and_clocks_compared_where_that_is_known():
    found = told()
    assert found["headrace_nodes", "alive"] == 2
    assert found["headrace_nodes", "fenced"] == 1
    assert found["headrace_nodes", "draining"] == 1
    assert found["headrace_clock_skew_seconds", "2"] == -0.25
    assert ("headrace_clock_skew_seconds", "3") not in found


def test_partitions_without_a_leader_and_moves_are_counted():
    found = told()
    assert found["headrace_offline_partitions",] == 1
    assert found["headrace_reassigning_partitions",] == 1
    assert [found["headrace_node_leaders", node] for node in "1234"] == [2, 1, 0, 0]


def test_the_lag_of_a_follower_is_that_of_the_partition_where_it_lacks_most():
    # It has never fetched the second one: it lacks all that is kept there.
    assert told()["headrace_replica_lag_records", "2"] == 20


def test_what_happened_between_nodes_is_counted():
    found = told()
    assert found["headrace_in_sync_shrinks_total",] == 2
    assert found["headrace_requests_forwarded_total",] == 9
    assert found["headrace_fetcher_errors_total",] == 0
