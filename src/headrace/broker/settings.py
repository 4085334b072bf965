"""What a broker is called and what it grants: the section `broker`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import at_least, between, setting
from headrace.core.limits import PARTITIONS_PER_TOPIC


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    node_id: int = setting(
        1, help="This node's number in its cluster.", check=between(0, 2**31 - 1), kafka="node.id", flag="--node-id"
    )
    rack: str | None = setting(None, help="Where the node stands, for clients that fetch nearby.", kafka="broker.rack")
    auto_create_topics: bool = setting(
        True, help="Create a topic when a client first names it.", kafka="auto.create.topics.enable"
    )
    num_partitions: int = setting(
        1,
        help="Partitions of a topic whose creator does not say.",
        check=between(1, PARTITIONS_PER_TOPIC),
        kafka="num.partitions",
    )
    max_partitions: int = setting(
        100_000,
        help="Most partitions of the cluster, of all topics but internal ones; more are refused (POLICY_VIOLATION).",
        check=at_least(1),
    )
    default_replication_factor: int = setting(
        1,
        help="Replicas of a topic whose creator does not say.",
        check=between(1, 2**15 - 1),
        kafka="default.replication.factor",
    )
    min_insync_replicas: int = setting(
        1,
        help="Replicas that must have a record before it is acknowledged to a producer with acks=all.",
        check=at_least(1),
        kafka="min.insync.replicas",
    )
    delete_topics: bool = setting(True, help="Whether topics may be deleted.", kafka="delete.topic.enable")
