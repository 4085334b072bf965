"""DescribeQuorum, versions 0-2: who votes on metadata, who leads, and how far everybody is. The controller answers.

The quorum stands under the name of Kafka's metadata topic, `__cluster_metadata`, partition 0; offsets are indexes of
its log, the epoch is its term. Anything else is UNKNOWN_TOPIC_OR_PARTITION.

Differs from Kafka: when a follower last fetched is not known to the millisecond; it is -1, but for the leader.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.topics import METADATA_TOPIC
from headrace.core.errors import ApiError, ErrorCode

LISTENER = "PLAINTEXT"


def handle(ctx: Context, request: Any) -> Answer:
    service = ctx.service
    if not service.controller.leads:
        raise ApiError(ErrorCode.not_controller)
    members = service.controller.quorum.membership.members
    nodes = [service.image.brokers[node] for node in members if node in service.image.brokers]
    return {
        "error_message": None,
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [_partition(ctx, topic.topic_name, each.partition_index) for each in topic.partitions],
            }
            for topic in request.topics
        ],
        "nodes": [
            {"node_id": node.node_id, "listeners": [{"name": LISTENER, "host": node.host, "port": node.port}]}
            for node in nodes
        ],
    }


def _partition(ctx: Context, topic: str, index: int) -> Answer:
    quorum = ctx.service.controller.quorum
    if topic != METADATA_TOPIC or index != 0:
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": None,
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
            "current_voters": [],
            "observers": [],
        }
    members = quorum.membership
    return {
        "partition_index": 0,
        "error_message": None,
        "leader_id": quorum.node_id,
        "leader_epoch": quorum.term,
        "high_watermark": quorum.commit_index,
        "current_voters": [_replica(ctx, node) for node in members.voters],
        "observers": [_replica(ctx, node) for node in members.learners],
    }


def _replica(ctx: Context, node: int) -> Answer:
    quorum = ctx.service.controller.quorum
    is_self = node == quorum.node_id
    follower = quorum.followers.get(node)
    now_ms = ctx.service.clock.now_ms() if is_self else -1
    return {
        "replica_id": node,
        "log_end_offset": quorum.last_index if is_self else follower.match if follower is not None else -1,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "error_message": str(error), "topics": [], "nodes": []}


API = Api(key=55, name="DescribeQuorum", versions=(0, 2), handle=handle, on_error=on_error, for_controller=True)
