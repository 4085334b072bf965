"""DescribeTopicPartitions, version 0: partitions of some or all topics, by name, in pages.

An answer holds at most `response_partition_limit` partitions (and never more than 2,000); `next_cursor` says where to
go on. No topics asks for all. Eligible leader replicas (KIP-966) are those that may lead beyond the in-sync set.
`last_known_elr` holds the last leader, or the last eligible replica, of a partition without a leader.
"""

from __future__ import annotations

from typing import Any

from headrace.apis import operations
from headrace.apis.api import Answer, Api, Context
from headrace.broker.image import Image, PartitionRecord, TopicImage
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import INTERNAL_TOPICS, topic_name_fault

PARTITIONS_PER_ANSWER = 2000


def handle(ctx: Context, request: Any) -> Answer:
    image = ctx.service.image
    first, first_partition = _cursor(request)
    everything = not request.topics
    asked = image.topics if everything else {topic.name for topic in request.topics}
    room = max(1, min(PARTITIONS_PER_ANSWER, request.response_partition_limit))
    topics: list[Answer] = []
    next_cursor: Answer | None = None
    for name in sorted(name for name in asked if name >= first):
        if room == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_absent(name))
            continue
        begin = first_partition if name == first else 0
        shown = topic.partitions[begin : begin + room]
        topics.append(_topic(image, topic, shown))
        room -= len(shown)
        if begin + len(shown) < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": begin + len(shown)}
            break
    return {"topics": topics, "next_cursor": next_cursor}


def _cursor(request: Any) -> tuple[str, int]:
    cursor = request.cursor
    if cursor is None:
        return "", 0
    if request.topics and all(topic.name != cursor.topic_name for topic in request.topics):
        raise ApiError(ErrorCode.invalid_request, f"the topic list must contain the cursor's topic {cursor.topic_name}")
    if cursor.partition_index < 0:
        raise ApiError(ErrorCode.invalid_request, f"the cursor's partition {cursor.partition_index} is not valid")
    return cursor.topic_name, cursor.partition_index


def _absent(name: str) -> Answer:
    valid = topic_name_fault(name) is None
    return {
        "error_code": ErrorCode.unknown_topic_or_partition if valid else ErrorCode.invalid_topic_exception,
        "name": name,
        "topic_id": None,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
        "topic_authorized_operations": operations.ON_TOPIC,
    }


def _topic(image: Image, topic: TopicImage, shown: tuple[PartitionRecord, ...]) -> Answer:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [_partition(image, record) for record in shown],
        "topic_authorized_operations": operations.ON_TOPIC,
    }


def _partition(image: Image, record: PartitionRecord) -> Answer:
    return {
        "error_code": ErrorCode.none if record.leader >= 0 else ErrorCode.leader_not_available,
        "partition_index": record.index,
        "leader_id": record.leader,
        "leader_epoch": record.leader_epoch,
        "replica_nodes": record.replicas,
        "isr_nodes": record.isr,
        "eligible_leader_replicas": record.elr,
        "last_known_elr": record.last_known_elr,
        "offline_replicas": [replica for replica in record.replicas if not image.is_up(replica)],
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"topics": [{**_absent(topic.name), "error_code": error.code} for topic in request.topics]}


API = Api(key=75, name="DescribeTopicPartitions", versions=(0, 0), handle=handle, on_error=on_error)
