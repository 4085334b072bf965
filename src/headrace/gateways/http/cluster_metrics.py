"""What the metrics page tells of the cluster.

Rules:
- `read` runs on the loop and copies a few numbers per partition that is led here. The image never changes: what takes a
  look at all partitions of the cluster is counted in the worker that encodes the page.
- What is true of the whole cluster (nodes, partitions without a leader, moves) every node tells as it knows it; a
  node that is cut off tells what it knew last.
- Labels are node ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.core.counters import ClusterCounters
from headrace.gateways.http.observed import Observed, ObservedImage, ObservedPartition

ROLES: Final = ("leader", "follower", "learner", "none")
NODE: Final = ["node"]


@dataclass(frozen=True, slots=True)
class ClusterNumbers:
    """One reading."""

    image: ObservedImage
    counters: ClusterCounters
    role: str  # one of ROLES
    leader: int  # -1: none is known
    term: int
    commit_index: int
    applied_index: int
    voters: int
    lags: dict[int, int]  # by follower of partitions that are led here: how many records it lacks, at most
    skews_ms: dict[int, float]


def read(service: Observed) -> ClusterNumbers:
    controller, quorum = service.controller, service.controller.quorum
    membership, leader = quorum.membership, quorum.leader
    skews = ((node, service.council.skew_of(node)) for node in controller.image.brokers)
    return ClusterNumbers(
        image=controller.image,
        counters=replace(service.counters.cluster),
        role=_role(quorum.leads, quorum.node_id in membership.voters, quorum.node_id in membership.learners),
        leader=-1 if leader is None else leader,
        term=quorum.term,
        commit_index=quorum.commit_index,
        applied_index=controller.applied_index,
        voters=len(membership.voters),
        lags=_lags(service.partitions),
        skews_ms={node: skew_ms for node, skew_ms in skews if skew_ms is not None},
    )


def _role(leads: bool, votes: bool, listens: bool) -> str:
    return "leader" if leads else "follower" if votes else "learner" if listens else "none"


def _lags(partitions: Iterable[ObservedPartition]) -> dict[int, int]:
    lags: dict[int, int] = {}
    for partition in partitions:
        replicas, record = partition.replicas, partition.record
        if replicas is None or record is None:
            continue
        log = partition.log
        for node in record.replicas:
            if (follower := replicas.follower(node)) is not None:
                lag = log.end_offset - max(follower.end_offset, log.start_offset)
                lags[node] = max(lags.get(node, 0), lag)
    return lags


def families(numbers: ClusterNumbers) -> Iterator[Metric]:
    yield from _quorum(numbers)
    yield from _nodes(numbers)
    yield from _partitions(numbers.image)
    yield from _copying(numbers)


def _quorum(numbers: ClusterNumbers) -> Iterator[Metric]:
    roles = GaugeMetricFamily("headrace_quorum_role", "1 for this node's role in the quorum.", labels=["role"])
    for role in ROLES:
        roles.add_metric([role], float(role == numbers.role))
    yield roles
    for name, text, value in (
        ("leader_id", "The node that decides; -1 while none is known.", numbers.leader),
        ("term", "The term of the quorum.", numbers.term),
        ("commit_index", "Metadata below is decided.", numbers.commit_index),
        ("applied_index", "Metadata below is in force on this node.", numbers.applied_index),
        ("voters", "Nodes that vote.", numbers.voters),
    ):
        yield GaugeMetricFamily(f"headrace_quorum_{name}", text, value=value)


def _nodes(numbers: ClusterNumbers) -> Iterator[Metric]:
    brokers = numbers.image.brokers.values()
    states = Counter("fenced" if node.fenced else "draining" if node.draining else "alive" for node in brokers)
    nodes = GaugeMetricFamily("headrace_nodes", "Nodes of the cluster by state.", labels=["state"])
    for state in ("alive", "draining", "fenced"):
        nodes.add_metric([state], states[state])
    yield nodes
    skews = GaugeMetricFamily(
        "headrace_clock_skew_seconds", "How far a node's clock is ahead of this one's, as gossip sees it.", labels=NODE
    )
    for node_id, skew_ms in numbers.skews_ms.items():
        skews.add_metric([str(node_id)], skew_ms / 1000)
    yield skews


def _partitions(image: ObservedImage) -> Iterator[Metric]:
    leaders: Counter[int] = Counter(dict.fromkeys(image.brokers, 0))
    moving = 0
    for topic in image.topics.values():
        for record in topic.partitions:
            leaders[record.leader] += 1
            moving += bool(record.adding or record.removing)
    offline = leaders.pop(-1, 0)
    led = GaugeMetricFamily("headrace_node_leaders", "Partitions that a node leads.", labels=NODE)
    for node_id, count in leaders.items():
        led.add_metric([str(node_id)], count)
    yield led
    yield GaugeMetricFamily("headrace_offline_partitions", "Partitions without a leader.", value=offline)
    yield GaugeMetricFamily("headrace_reassigning_partitions", "Partitions that are being moved.", value=moving)


def _copying(numbers: ClusterNumbers) -> Iterator[Metric]:
    lags = GaugeMetricFamily(
        "headrace_replica_lag_records",
        "Records that a follower of this node's partitions lacks, of the partition where it lacks most.",
        labels=NODE,
    )
    for node_id, lag in numbers.lags.items():
        lags.add_metric([str(node_id)], lag)
    yield lags
    counters = numbers.counters
    for name, text, value in (
        ("in_sync_shrinks", "Times a replica left an in-sync set of this node's partitions.", counters.in_sync_shrinks),
        ("in_sync_expands", "Times a replica joined one.", counters.in_sync_expands),
        ("leaders_gained", "Leaderships that came to this node.", counters.leaders_gained),
        ("fetcher_errors", "Times this node could not copy from a leader.", counters.fetcher_errors),
        ("requests_forwarded", "Requests of clients that were handed on to the controller.", counters.forwarded),
    ):
        yield CounterMetricFamily(f"headrace_{name}", text, value=value)
