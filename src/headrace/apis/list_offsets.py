"""ListOffsets, versions 1-11.

Earliest (-2), latest (-1), the record with the largest timestamp (-3), and the first record at or after a timestamp.
Earliest local (-4) is the earliest; latest tiered (-5) is none: nothing is tiered. Lookups by time open one batch,
in a worker if it is not in memory. For readers of committed records the log ends at the last stable offset.

A leader that has just been elected may not know yet how much is committed. Until it does, nobody is told of an end that
might be too low (KIP-207): OFFSET_NOT_AVAILABLE, or LEADER_NOT_AVAILABLE below version 5. Followers answer nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.core.errors import ApiError, ErrorCode, StorageError

if TYPE_CHECKING:
    from headrace.broker.partition import Partition

READ_COMMITTED = 1
UNKNOWN_FROM = 5  # from here on clients know OFFSET_NOT_AVAILABLE
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


async def handle(ctx: Context, request: Any) -> Answer:
    committed_only = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics: list[dict[str, Any]] = [{"name": topic.name, "partitions": []} for topic in request.topics]
    places = ((at, topic.name, part) for at, topic in enumerate(request.topics) for part in topic.partitions)
    seen: set[tuple[str, int]] = set()
    async for at, name, part in in_turns(ctx, places):
        try:
            if (name, part.partition_index) in seen:
                raise ApiError(ErrorCode.invalid_request, "a partition may appear once in a request")
            seen.add((name, part.partition_index))
            timestamp, offset, epoch = await _lookup(ctx, name, part, committed_only)
            row: Answer = {"timestamp": timestamp, "offset": offset, "leader_epoch": epoch}
        except ApiError as error:
            ctx.service.count_error("ListOffsets", error.code)
            row = {"error_code": error.code, "timestamp": -1, "offset": -1, "leader_epoch": -1}
        except StorageError:
            row = {"error_code": ErrorCode.kafka_storage_error, "timestamp": -1, "offset": -1, "leader_epoch": -1}
        topics[at]["partitions"].append({"partition_index": part.partition_index, **row})
    return {"topics": topics}


async def _lookup(ctx: Context, topic: str, part: Any, committed_only: bool) -> tuple[int, int, int]:
    partition = ctx.service.partitions.get(topic, part.partition_index)
    ctx.service.check_epoch(partition, getattr(part, "current_leader_epoch", -1))
    log, wanted = partition.log, part.timestamp
    if wanted == LATEST:
        _check_known(ctx, partition)
        end_offset = partition.last_stable_offset if committed_only else partition.high_watermark
        return -1, end_offset, partition.leader_epoch
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.epochs.epoch_at(log.start_offset)
        return -1, log.start_offset, epoch
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if wanted < 0 and wanted != MAX_TIMESTAMP:
        raise ApiError(ErrorCode.unsupported_version, f"timestamp {wanted} has no meaning")
    search = log.find_latest_time() if wanted == MAX_TIMESTAMP else log.find_time(wanted)
    try:
        found = await ctx.service.workers.run(search.run)
    except StorageError as fault:
        ctx.service.partitions.suspect(partition, search.run, fault)
        raise
    if found is None or found.offset >= (partition.last_stable_offset if committed_only else partition.high_watermark):
        _check_known(ctx, partition)
        return -1, -1, -1
    return found.timestamp, found.offset, found.leader_epoch


def _check_known(ctx: Context, partition: Partition) -> None:
    if not partition.offsets_are_known:
        code = ErrorCode.offset_not_available if ctx.version >= UNKNOWN_FROM else ErrorCode.leader_not_available
        raise ApiError(code, "The new leader does not know yet how much is committed.")


API = Api(key=2, name="ListOffsets", versions=(1, 11), handle=handle)
