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

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from headrace.apis import operations
from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.broker.image import Image, PartitionRecord, TopicImage
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import INTERNAL_TOPICS, topic_name_fault
from headrace.wire.encoder import Joined
from headrace.wire.messages import element_encoder

IDS_FROM = 12
T = TypeVar("T")


async def handle(ctx: Context, request: Any) -> Answer:
    asked = request.topics
    _check(ctx.version, asked)
    departures = ctx.service.departures
    if departures.is_in_doubt:
        await departures.settled(lambda: _leaders(ctx.service.image, asked))
    by_id = any(_id(topic) is not None for topic in asked or ())
    create = asked and not by_id and getattr(request, "allow_auto_topic_creation", True)
    errors = await _create_missing(ctx, asked) if create else {}
    image = ctx.service.image
    entries = _Entries(ctx, image, with_operations=getattr(request, "include_topic_authorized_operations", False))
    if asked is None or (ctx.version == 0 and not asked):
        topics = await entries.everything()
    elif by_id:
        topics = await entries.join(_by_id, dict.fromkeys(topic_id for one in asked if (topic_id := _id(one))))
    else:
        names = dict.fromkeys(topic.name for topic in asked)
        topics = await entries.join(lambda image, name: _by_name(image, name, errors), names)
    cluster_asked = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
            for broker in image.brokers.values()
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


async def _create_missing(ctx: Context, asked: Any) -> dict[str, ErrorCode]:
    """Create topics that are asked for by name and do not exist, if this broker does so. What became of the others."""
    service = ctx.service
    if not service.settings.broker.auto_create_topics:
        return {}
    missing = [
        NewTopic(name)
        for name in dict.fromkeys(topic.name for topic in asked)
        if name not in service.image.topics and name not in INTERNAL_TOPICS and topic_name_fault(name) is None
    ]
    outcomes = await service.topics.ensure(missing) if missing else ()
    return {outcome.name: outcome.error.code for outcome in outcomes if outcome.name and outcome.error is not None}


class _Entries:
    """The topics of one answer, each encoded once for all answers of its kind."""

    def __init__(self, ctx: Context, image: Image, *, with_operations: bool) -> None:
        self._ctx = ctx
        self._image = image
        self._more = {"topic_authorized_operations": operations.ON_TOPIC} if with_operations else {}
        self._write = element_encoder(API.key, ctx.version, "topics")
        self._kept = ctx.service.encoded_topics.of((ctx.version, with_operations), image)

    async def everything(self) -> Joined:
        whole = self._kept.whole(self._image)
        if whole is None:
            topics = self._image.topics.values()
            parts = [self._kept.get(topic, self._encode) async for topic in in_turns(self._ctx, topics)]
            whole = Joined(len(parts), b"".join(parts))
            self._kept.keep_whole(self._image, whole)
        return whole

    async def join(self, find: Callable[[Image, T], TopicImage | Answer], asked: Iterable[T]) -> Joined:
        """`find` knows the topic, or what is answered instead."""
        parts = []
        async for each in in_turns(self._ctx, asked):
            found = find(self._image, each)
            if isinstance(found, TopicImage):
                parts.append(self._kept.get(found, self._encode))
            else:
                parts.append(self._encoded(found))
        return Joined(len(parts), b"".join(parts))

    def _encode(self, topic: TopicImage) -> bytes:
        return self._encoded(_topic(self._image, topic))

    def _encoded(self, row: Answer) -> bytes:
        out = bytearray()
        self._write(out, {**row, **self._more})
        return bytes(out)


def _by_name(image: Image, name: str, errors: Mapping[str, ErrorCode]) -> TopicImage | Answer:
    found = image.topics.get(name)
    if found is not None:
        return found
    fault = (
        ErrorCode.unknown_topic_or_partition if topic_name_fault(name) is None else ErrorCode.invalid_topic_exception
    )
    return _absent(name, errors.get(name, fault))


def _by_id(image: Image, topic_id: Any) -> TopicImage | Answer:
    found = image.topic_by_id(topic_id)
    if found is not None:
        return found
    return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": []}


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
