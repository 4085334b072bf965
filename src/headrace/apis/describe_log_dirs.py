"""DescribeLogDirs, versions 1-5: the data directory, and the sizes of the partitions in it.

Null asks for all partitions; those that this broker does not have, or has given up, are left out. A data directory that
has failed has the error KAFKA_STORAGE_ERROR.

Differs from Kafka: the totals of versions 4 and up are unknown (-1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.partition import Partition


async def handle(ctx: Context, request: Any) -> Answer:
    topics: dict[str, list[Answer]] = {}
    async for partition in in_turns(ctx, list(_partitions(ctx, request.topics))):
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.index,
                "partition_size": partition.log.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
        )
    found = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    offline = ctx.service.partitions.disk_fault is not None
    code = ErrorCode.kafka_storage_error if offline else ErrorCode.none
    return {"results": [{"error_code": code, "log_dir": ctx.service.data_dir, "topics": found}]}


def _partitions(ctx: Context, asked: Any) -> Iterable[Partition]:
    if asked is None:
        yield from ctx.service.partitions
        return
    for name, index in dict.fromkeys((topic.topic, index) for topic in asked for index in topic.partitions):
        if (partition := ctx.service.partitions.replica(name, index)) is not None:
            yield partition


API = Api(key=35, name="DescribeLogDirs", versions=(1, 5), handle=handle)
