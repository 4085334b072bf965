"""Metadata, versions 0-13: the brokers, and the partitions of some or all topics.

Topics: null asks for all, an empty list for none (in version 0 an empty list asks for all). From version 12 on they can
be named by id; versions 10 and 11 carry ids but refuse them, as Kafka does. A topic that does not exist is created if
the request and the broker allow it (versions below 4 always allow it), and is answered ready to use. Nodes that have
been fenced for a while are not told; a partition without a leader has leader -1 and LEADER_NOT_AVAILABLE. While the
leader of a partition seems to have just died, the answer waits for the next one, for a moment (`broker/departures.py`).

Differs from Kafka: a fenced node is not dropped at once, and an answer may wait for a leader, as said above. A topic
created by this request is in the answer at once, where Kafka answers LEADER_NOT_AVAILABLE and waits for the client to
ask again. Internal topics are not created by asking for them.
"""

from __future__ import annotations

from typing import Any

from headrace.apis import operations
from headrace.apis.api import Answer, Api, Context
from headrace.broker.image import Image, PartitionRecord, TopicImage
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import INTERNAL_TOPICS, topic_name_fault

IDS_FROM = 12


async def handle(ctx: Context, request: Any) -> Answer:
    asked = request.topics
    _check(ctx.version, asked)
    departures = ctx.service.departures
    if departures.is_in_doubt:
        await departures.settled(lambda: _leaders(ctx.service.image, asked))
    topics: list[Answer]
    if asked is None or (ctx.version == 0 and not asked):
        image = ctx.service.image
        topics = [_topic(image, topic) for topic in image.topics.values()]
    elif any(_id(topic) is not None for topic in asked):
        topics = [_by_id(ctx.service.image, topic_id) for topic_id in dict.fromkeys(map(_id, asked)) if topic_id]
    else:
        names = list(dict.fromkeys(topic.name for topic in asked))
        topics = await _by_name(ctx, names, create=getattr(request, "allow_auto_topic_creation", True))
    if getattr(request, "include_topic_authorized_operations", False):
        topics = [{**topic, "topic_authorized_operations": operations.ON_TOPIC} for topic in topics]
    cluster_asked = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
            for broker in ctx.service.image.brokers.values()
            if not broker.fenced or departures.lingers(broker.node_id)
        ],
        "cluster_id": ctx.service.cluster_id,
        "controller_id": ctx.service.controller_id,
        "topics": topics,
        "cluster_authorized_operations": operations.ON_CLUSTER if cluster_asked else operations.NOT_ASKED,
    }


def _leaders(image: Image, asked: Any) -> set[int]:
    """Of the topics that are asked for; of all if it is easier to tell."""
    if not asked or any(_id(topic) is not None for topic in asked):
        found = list(image.topics.values())
    else:
        found = [topic for one in asked if (topic := image.topics.get(one.name)) is not None]
    return {record.leader for topic in found for record in topic.partitions}


def _id(topic: Any) -> Any:
    return getattr(topic, "topic_id", None)


def _check(version: int, asked: Any) -> None:
    for topic in asked or ():
        if topic.name is None and (version < IDS_FROM or _id(topic) is None):
            raise ApiError(ErrorCode.invalid_request, f"Topic name can not be null for version {version}")
        if _id(topic) is not None and version < IDS_FROM:
            raise ApiError(ErrorCode.invalid_request, f"Topic IDs are not supported in requests for version {version}")


async def _by_name(ctx: Context, names: list[str], *, create: bool) -> list[Answer]:
    service = ctx.service
    errors: dict[str, ErrorCode] = {}
    missing = []
    for name in names:
        if name not in service.image.topics:
            if topic_name_fault(name) is not None:
                errors[name] = ErrorCode.invalid_topic_exception
            elif create and service.settings.broker.auto_create_topics and name not in INTERNAL_TOPICS:
                missing.append(NewTopic(name))
    if missing:
        for outcome in await service.topics.ensure(missing):
            if outcome.error is not None and outcome.name is not None:
                errors[outcome.name] = outcome.error.code
    image = service.image
    return [
        _topic(image, topic)
        if (topic := image.topics.get(name)) is not None
        else _absent(name, errors.get(name, ErrorCode.unknown_topic_or_partition))
        for name in names
    ]


def _by_id(image: Image, topic_id: Any) -> Answer:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": []}
    return _topic(image, topic)


def _absent(name: str, error: ErrorCode) -> Answer:
    return {"error_code": error, "name": name, "is_internal": name in INTERNAL_TOPICS, "partitions": []}


def _topic(image: Image, topic: TopicImage) -> Answer:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [_partition(image, record) for record in topic.partitions],
    }


def _partition(image: Image, record: PartitionRecord) -> Answer:
    return {
        "error_code": ErrorCode.none if record.leader >= 0 else ErrorCode.leader_not_available,
        "partition_index": record.index,
        "leader_id": record.leader,
        "leader_epoch": record.leader_epoch,
        "replica_nodes": record.replicas,
        "isr_nodes": record.isr,
        "offline_replicas": [replica for replica in record.replicas if not _is_there(image, replica)],
    }


def _is_there(image: Image, node_id: int) -> bool:
    node = image.brokers.get(node_id)
    return node is not None and not node.fenced


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {
        "brokers": [],
        "topics": [
            {"error_code": error.code, "name": topic.name or "", "topic_id": _id(topic), "partitions": []}
            for topic in request.topics or ()
        ],
        "error_code": error.code,
    }


API = Api(key=3, name="Metadata", versions=(0, 13), handle=handle, on_error=on_error)
