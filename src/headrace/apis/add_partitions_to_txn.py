"""AddPartitionsToTxn, versions 0-5: put partitions into a producer's transaction.

Versions 0-3 are a client's, for one transaction. Versions 4 and newer are for other nodes: several transactions at
once, and `verify_only` asks whether the partitions are in; clients get CLUSTER_AUTHORIZATION_FAILED. If one partition
does not exist, or is of an internal topic, none is added: the others get OPERATION_NOT_ATTEMPTED. Versions below 2 get
INVALID_PRODUCER_EPOCH for PRODUCER_FENCED.

Differs from Kafka: versions 4 and 5 are not advertised. Kafka's own clients never use them, and a client that takes the
newest one there is works that way, too.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.apis.init_producer_id import fenced_as_known
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import INTERNAL_TOPICS

BATCHED_FROM = 4
FENCED_FROM = 2


async def handle(ctx: Context, request: Any) -> Answer:
    if ctx.version < BATCHED_FROM:
        codes = await _add(
            ctx,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
            verify_only=False,
        )
        return {"results_by_topic_v3_and_below": _rows(request.v3_and_below_topics, codes)}
    if ctx.peer is None:
        raise ApiError(ErrorCode.cluster_authorization_failed, "Transactions of others are for the cluster's nodes.")
    results = []
    for asked in request.transactions:
        try:
            codes = await _add(
                ctx,
                asked.transactional_id,
                asked.producer_id,
                asked.producer_epoch,
                asked.topics,
                verify_only=asked.verify_only,
            )
        except ApiError as error:
            codes = [error.code] * _count(asked.topics)
        results.append({"transactional_id": asked.transactional_id, "topic_results": _rows(asked.topics, codes)})
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add(
    ctx: Context, transactional_id: str, producer_id: int, producer_epoch: int, topics: Any, *, verify_only: bool
) -> list[ErrorCode]:
    """An error per partition, in order."""
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    faults = [_fault(ctx, name, index) for name, index in partitions]
    if any(faults):
        return [fault or ErrorCode.operation_not_attempted for fault in faults]
    transactions = ctx.service.transactions
    if verify_only:
        return await transactions.verify(transactional_id, producer_id, producer_epoch, partitions)
    error = await transactions.add_partitions(transactional_id, producer_id, producer_epoch, partitions)
    return [fenced_as_known(error, ctx.version >= FENCED_FROM)] * len(partitions)


def _fault(ctx: Context, topic: str, partition: int) -> ErrorCode:
    if ctx.version < BATCHED_FROM and topic in INTERNAL_TOPICS:
        return ErrorCode.topic_authorization_failed
    known = ctx.service.image.partition(topic, partition) is not None
    return ErrorCode.none if known else ErrorCode.unknown_topic_or_partition


def _count(topics: Any) -> int:
    return sum(len(topic.partitions) for topic in topics)


def _rows(topics: Any, codes: list[ErrorCode]) -> list[Answer]:
    left = iter(codes)
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": next(left)} for index in topic.partitions
            ],
        }
        for topic in topics
    ]


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    if ctx.version >= BATCHED_FROM:
        return {"error_code": error.code}
    topics = request.v3_and_below_topics
    return {"results_by_topic_v3_and_below": _rows(topics, [error.code] * _count(topics))}


API = Api(key=24, name="AddPartitionsToTxn", versions=(0, 5), handle=handle, on_error=on_error, for_peers_from=4)
