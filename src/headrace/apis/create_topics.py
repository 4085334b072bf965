"""CreateTopics, versions 2-7: each topic is created, or refused with its own error.

Counts of -1 stand for the broker's defaults; with an assignment both must be -1. From version 5 on the answer tells
partitions, replication factor and every config in effect. `validate_only` checks and creates nothing.

Differs from Kafka: internal topics cannot be created by clients (INVALID_TOPIC_EXCEPTION); two names in one request
that differ only in '.' and '_' collide; absurd partition counts are INVALID_PARTITIONS. The timeout is not used: the
answer comes when the topic is durable and ready.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.broker.image import TopicImage
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError
from headrace.wire.encoder import Joined
from headrace.wire.messages import element_encoder, joined

CONFIGS_FROM = 5


async def handle(ctx: Context, request: Any) -> Answer:
    wanted = [
        NewTopic(
            name=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=[(item.partition_index, tuple(item.broker_ids)) for item in topic.assignments],
            configs={item.name: item.value for item in topic.configs},
        )
        for topic in request.topics
    ]
    outcomes = await ctx.service.topics.create(wanted, validate_only=request.validate_only, ticket=ctx.ticket)
    described: dict[frozenset[tuple[str, str]], Joined] = {}
    answers = []
    async for outcome in in_turns(ctx, outcomes):
        if outcome.topic is None:
            answers.append(_refused(outcome.name or "", outcome.error))
            continue
        given = frozenset(outcome.topic.configs.items())
        if given not in described and ctx.version >= CONFIGS_FROM:
            write = element_encoder(API.key, ctx.version, "topics", "configs")
            described[given] = joined(write, _configs(ctx, outcome.topic))
        answers.append(_created(outcome.topic, described.get(given)))
    return {"topics": answers}


def _created(topic: TopicImage, configs: Joined | None) -> Answer:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_message": None,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": configs,
    }


def _configs(ctx: Context, topic: TopicImage) -> list[Answer]:
    entries = ctx.service.configs.topic_entries(topic.configs, ctx.service.image)
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "read_only": entry.read_only,
            "config_source": entry.source,
            "is_sensitive": entry.sensitive,
        }
        for entry in sorted(entries, key=lambda entry: entry.name)
    ]


def _refused(name: str, error: ApiError | None) -> Answer:
    assert error is not None
    # Java expects an array of configs from version 5 on, even for a topic that was refused.
    return {"name": name, "error_code": error.code, "error_message": str(error), "configs": []}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"topics": [_refused(topic.name, error) for topic in request.topics]}


API = Api(key=19, name="CreateTopics", versions=(2, 7), handle=handle, on_error=on_error, for_controller=True)
