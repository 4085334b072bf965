"""TxnOffsetCommit, versions 0-5: commit a group's offsets as part of a transaction.

The offsets are pending until the transaction ends. Version 5 is the newer protocol (KIP-890): the group's partition of
the offsets topic joins the transaction by itself. Older versions must have sent AddOffsetsToTxn; that is verified, and
TRANSACTION_ABORTABLE (INVALID_TXN_STATE below version 4) refuses what would be left behind by the end.

Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION; the others are committed. Versions below 2 get
COORDINATOR_NOT_AVAILABLE for COORDINATOR_LOAD_IN_PROGRESS, which their clients do not survive.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.transactions import COMMIT_IMPLICIT_FROM, commit_error
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import OffsetToCommit

LOADING_FROM = 2


async def handle(ctx: Context, request: Any) -> Answer:
    image = ctx.service.image
    asked = [(topic.name, part) for topic in request.topics for part in topic.partitions]
    missing = ErrorCode.unknown_topic_or_partition
    codes = [missing if image.partition(name, part.partition_index) is None else ErrorCode.none for name, part in asked]
    offsets = [_to_commit(*one) for one, code in zip(asked, codes, strict=True) if code is ErrorCode.none]
    if offsets:
        outcomes = iter(await _commit(ctx, request, offsets))
        codes = [next(outcomes) if code is ErrorCode.none else code for code in codes]
    return _answer(ctx, request, codes)


async def _commit(ctx: Context, request: Any, offsets: list[OffsetToCommit]) -> list[ErrorCode]:
    transactions = ctx.service.transactions
    who = (request.transactional_id, request.producer_id, request.producer_epoch)
    partition = await transactions.offsets_partition(request.group_id)
    coordinator = ctx.service.admission.coordinator
    join = coordinator.register if ctx.version >= COMMIT_IMPLICIT_FROM else coordinator.verify
    # Nothing may come between this answer and the append that `commit_transactional` begins with.
    [error] = await join(*who, (partition,))
    if error is ErrorCode.not_leader_or_follower:  # of the partition that keeps the group
        error = ErrorCode.not_coordinator
    if error is not ErrorCode.none:
        return [commit_error(error, ctx.version)] * len(offsets)
    return list(
        await ctx.service.groups.commit_transactional(
            request.group_id,
            getattr(request, "member_id", ""),
            getattr(request, "generation_id", -1),
            getattr(request, "group_instance_id", None),
            request.producer_id,
            request.producer_epoch,
            offsets,
        )
    )


def _to_commit(topic: str, part: Any) -> OffsetToCommit:
    leader_epoch = getattr(part, "committed_leader_epoch", -1)
    return OffsetToCommit(
        topic, part.partition_index, part.committed_offset, leader_epoch, part.committed_metadata or ""
    )


def _answer(ctx: Context, request: Any, codes: list[ErrorCode]) -> Answer:
    left = iter(_understood(code, ctx.version) for code in codes)
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": part.partition_index, "error_code": next(left)} for part in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return {"topics": topics}


def _understood(code: ErrorCode, version: int) -> ErrorCode:
    loading = code is ErrorCode.coordinator_load_in_progress and version < LOADING_FROM
    return ErrorCode.coordinator_not_available if loading else code


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return _answer(ctx, request, [error.code] * sum(len(topic.partitions) for topic in request.topics))


API = Api(key=28, name="TxnOffsetCommit", versions=(0, 5), handle=handle, on_error=on_error)
