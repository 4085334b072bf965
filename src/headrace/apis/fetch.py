"""Fetch, versions 4-18.

Whole batches are returned as they lie in the log, from the one that holds the fetch offset. `max_bytes` and
`partition_max_bytes` are kept, but the first batch of the first partition that has data always comes, so that a large
one cannot block a consumer. The partition that is served first moves on from request to request, so that small limits
reach every partition. A fetch that finds less than `min_bytes` waits up to `max_wait`, unless there is more that the
answer cannot hold, or that lies in the next segment: then waiting brings nothing. Data that is not in the page cache is
read by a worker. When memory for answers is short, an answer is smaller than asked for; where not even a small one can
be made of whole batches, it waits. With isolation level `read_committed` nothing from the last stable offset on is
returned, and the answer names the aborted transactions whose records it holds.

Every batch is checked when it is read. What is whole before a damaged one is returned; at the damage the answer is
KAFKA_STORAGE_ERROR if another replica has it whole, and will lead, or else CORRUPT_MESSAGE. A disk that cannot be
read is KAFKA_STORAGE_ERROR.

A follower (another node of the cluster that names itself as a replica) reads up to the end of the log, not to the high
watermark, and is woken by every append. That it asks for an offset tells that it has everything below, unless its log
parts from ours: then the answer says where, and nothing else. Anyone else who names a replica is refused.

Differs from Kafka: fetch sessions are not kept. A client that asks for one gets session 0 and goes on with full
fetches; an unknown session is FETCH_SESSION_ID_NOT_FOUND. Consumers read from leaders only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.apis.api import Api, Context, Encoded
from headrace.broker.waiting import Poll
from headrace.core import limits
from headrace.core.errors import ApiError, CorruptionError, ErrorCode, StorageError
from headrace.wire.hot import FetchedPartition, fetch_answer

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.partition import Partition
    from headrace.storage.log import Log, Span

READ_COMMITTED = 1
STATE_FROM = 15  # from here on a replica tells the epoch of its registration, too


class Wanted(NamedTuple):
    """One partition of the request."""

    topic: str | None
    topic_id: UUID | None
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int = -1  # of the record before, in a follower's log
    start_offset: int = -1  # of a follower's log


class Copier(NamedTuple):
    """A follower that asks."""

    node_id: int
    epoch: int


class Reading:
    """One pass over the wanted partitions: what was read, and what is still cold."""

    __slots__ = ("cold", "failed", "full", "rows", "size_bytes", "starved", "watched")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, UUID | None], list[FetchedPartition]] = {}
        self.watched: list[Partition] = []
        self.cold: list[tuple[list[FetchedPartition], int, Span, Partition]] = []
        self.size_bytes = 0
        self.failed = False
        self.full = False  # there is more than this answer may hold, or than one segment has: nothing to wait for
        self.starved = False  # there is something, and no memory for it

    def forget(self) -> None:
        """Drop what was read: it is too little to be sent, and shall not be held while the rest is waited for."""
        self.rows.clear()


def handle(ctx: Context, request: Any) -> Encoded | Awaitable[Encoded]:
    copier = None
    if _replica_id(request) >= 0:
        if ctx.peer is None or ctx.peer != _replica_id(request):
            return _top_level(ctx, ErrorCode.cluster_authorization_failed)
        copier = Copier(ctx.peer, request.replica_state.replica_epoch if ctx.version >= STATE_FROM else -1)
        known = ctx.service.image.brokers.get(ctx.peer)
        if known is not None and known.epoch > copier.epoch:
            return _top_level(ctx, ErrorCode.stale_broker_epoch)
    if getattr(request, "session_id", 0) != 0:
        return _top_level(ctx, ErrorCode.fetch_session_id_not_found)
    wanted = _wanted(ctx, request)
    max_bytes = min(max(getattr(request, "max_bytes", limits.FETCH_BYTES), 0), limits.FETCH_BYTES)
    min_bytes = min(request.min_bytes, max_bytes)
    committed_only = request.isolation_level == READ_COMMITTED
    wait_seconds = min(request.max_wait.total_seconds(), limits.FETCH_WAIT_MS / 1000)
    if granted := ctx.memory.grant():
        reading = _read(ctx, wanted, min(max_bytes, granted), committed_only, copier)
    else:
        reading = _read_some(ctx, wanted, max_bytes, committed_only, copier)
    if reading.cold:
        return _warm(ctx, reading, copier)
    enough = reading.size_bytes >= min_bytes or reading.full
    if (enough or reading.failed or wait_seconds <= 0 or not reading.watched) and not reading.starved:
        return _encode(ctx, reading)
    reading.forget()
    return _wait(ctx, wanted, max_bytes, committed_only, copier, reading, min_bytes, wait_seconds)


def _replica_id(request: Any) -> int:
    state = getattr(request, "replica_state", None)
    return int(state.replica_id) if state is not None else int(getattr(request, "replica_id", -1))


def _top_level(ctx: Context, code: ErrorCode) -> Encoded:
    ctx.service.count_error("Fetch", code)
    return Encoded(fetch_answer(ctx.version, code, 0, []))


def _wanted(ctx: Context, request: Any) -> list[Wanted]:
    by_id = ctx.version >= 13
    found = []
    for topic in request.topics:
        topic_id = topic.topic_id if by_id else None
        name = ctx.service.topic_name(topic_id) if by_id else topic.topic
        for part in topic.partitions:
            epoch = getattr(part, "current_leader_epoch", -1)
            last_epoch = getattr(part, "last_fetched_epoch", -1)
            limit, start = max(part.partition_max_bytes, 0), getattr(part, "log_start_offset", -1)
            found.append(Wanted(name, topic_id, part.partition, part.fetch_offset, limit, epoch, last_epoch, start))
    if len(found) > 1:
        turn = ctx.service.next_turn() % len(found)
        found = found[turn:] + found[:turn]
    return found


def _read_some(
    ctx: Context, wanted: list[Wanted], max_bytes: int, committed_only: bool, copier: Copier | None, again: bool = False
) -> Reading:
    """As much as there is memory for."""
    granted = ctx.memory.grant()
    if granted:
        return _read(ctx, wanted, min(max_bytes, granted), committed_only, copier, again=again)
    small = min(max_bytes, limits.SMALL_BYTES)
    reading = _read(ctx, wanted, small, committed_only, copier, again=again, whatever_size=False)
    reading.starved = reading.full and not reading.size_bytes and not reading.failed
    return reading


def _read(
    ctx: Context,
    wanted: list[Wanted],
    max_bytes: int,
    committed_only: bool,
    copier: Copier | None,
    *,
    again: bool = False,
    whatever_size: bool = True,
) -> Reading:
    """`whatever_size`: the first batch comes even if it is too large."""
    reading = Reading()
    left = max_bytes
    for want in wanted:
        rows = reading.rows.setdefault((want.topic or "", want.topic_id), [])
        found: tuple[Partition, Span] | None = None
        try:
            partition = _partition(ctx, want)
            if copier is not None and not again and (row := _note(partition, want, copier)) is not None:
                reading.failed = True
                rows.append(row)
                continue
            log, watermark, stable_offset = partition.log, partition.high_watermark, partition.last_stable_offset
            limit_offset = stable_offset if committed_only else watermark
            if copier is not None:
                limit_offset = log.end_offset
            span = _locate(reading, log, want, left, limit_offset, whatever_size)
            data: bytes | bytearray | None = b""
            if span is not None:
                found = partition, span
                data = span.read_now()
        except ApiError as error:
            reading.failed = True
            rows.append(_refused(ctx, want, error))
            continue
        except StorageError as fault:
            reading.failed = True
            rows.append(_refused(ctx, want, _storage_fault(ctx, fault, found, copier)))
            continue
        size_bytes = 0 if span is None else span.size_bytes
        if data is None:
            assert span is not None
            reading.cold.append((rows, len(rows), span, partition))
            data = b""
        partition.traffic.bytes_out += size_bytes
        partition.traffic.fetch_requests += 1
        reading.size_bytes += size_bytes
        left -= size_bytes
        reading.watched.append(partition)
        if span is not None and span.damage is not None:
            ctx.service.partitions.suspect(partition, span.verify, span.damage)
        aborted = None
        if committed_only:
            aborted = [] if span is None else log.aborted_between(want.offset, span.limit_offset)
        rows.append(FetchedPartition(want.partition, 0, watermark, stable_offset, log.start_offset, data, aborted))
    return reading


def _locate(reading: Reading, log: Log, want: Wanted, left: int, limit_offset: int, whatever_size: bool) -> Span | None:
    """What comes next of a log, if it has a place in the answer."""
    if left <= 0 and reading.size_bytes:
        return None
    limit = min(want.max_bytes, left)
    span = log.locate(want.offset, limit, limit_offset)
    if span is not None and (reading.size_bytes or not whatever_size) and span.size_bytes > limit:
        reading.full = True
        return None
    if span is not None and span.next_offset < limit_offset:
        reading.full = True
    return span


def _partition(ctx: Context, want: Wanted) -> Partition:
    if want.topic is None:
        raise ApiError(ErrorCode.unknown_topic_id)
    partition = ctx.service.partitions.get(want.topic, want.partition)
    ctx.service.check_epoch(partition, want.leader_epoch)
    return partition


def _note(partition: Partition, want: Wanted, copier: Copier) -> FetchedPartition | None:
    """Take notice of how far a follower has come. The answer, if there is nothing to be read before it does something.

    Raises ApiError.
    """
    start_offset = partition.log.start_offset
    try:
        parts = partition.asked_by(copier.node_id, copier.epoch, want.offset, want.last_epoch)
    except ApiError as error:
        if error.code is not ErrorCode.offset_out_of_range:
            raise
        return FetchedPartition(want.partition, error.code, partition.high_watermark, -1, start_offset)
    if parts is None:
        assert partition.replicas is not None
        partition.replicas.begins(copier.node_id, want.start_offset)
        return None
    return FetchedPartition(want.partition, 0, partition.high_watermark, -1, start_offset, diverging_epoch=parts)


def _storage_fault(
    ctx: Context, fault: StorageError, found: tuple[Partition, Span] | None, copier: Copier | None
) -> ApiError:
    """What a client is told of a read that went wrong; the broker is told, too."""
    code = ErrorCode.kafka_storage_error  # the client looks for another leader, and tries again
    if found is not None and found[0].log.failed is None:
        partition, span = found
        if copier is not None and partition.replicas is not None:
            partition.replicas.unserved(copier.node_id, ctx.service.clock.monotonic())
        others_have = ctx.service.partitions.suspect(partition, span.verify, fault)
        if isinstance(fault, CorruptionError) and not others_have:
            code = ErrorCode.corrupt_message
    return ApiError(code, str(fault))


def _refused(ctx: Context, want: Wanted, error: ApiError) -> FetchedPartition:
    ctx.service.count_error("Fetch", error.code)
    return FetchedPartition(want.partition, error.code, -1, -1, -1, b"")


def _warm(ctx: Context, reading: Reading, copier: Copier | None) -> Awaitable[Encoded]:
    """Read what only the disk has."""
    ctx.memory.reserve(reading.size_bytes)
    return _read_cold(ctx, reading, copier)


async def _read_cold(ctx: Context, reading: Reading, copier: Copier | None) -> Encoded:
    for rows, place, span, partition in reading.cold:
        row = rows[place]
        try:
            rows[place] = row._replace(records=await ctx.service.workers.run(span.read))
            if span.damage is not None:
                ctx.service.partitions.suspect(partition, span.verify, span.damage)
        except ApiError as error:
            rows[place] = row._replace(error_code=error.code)
        except StorageError as fault:
            rows[place] = row._replace(error_code=_storage_fault(ctx, fault, (partition, span), copier).code)
    return _encode(ctx, reading, reserved=reading.size_bytes)


async def _wait(
    ctx: Context,
    wanted: list[Wanted],
    max_bytes: int,
    committed_only: bool,
    copier: Copier | None,
    reading: Reading,
    min_bytes: int,
    seconds: float,
) -> Encoded:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        if reading.starved:
            await ctx.memory.granted()
        poll = Poll(min_bytes - reading.size_bytes, committed_only=committed_only)
        watched = reading.watched
        for partition in watched:
            partition.watch(poll, uncommitted=copier is not None)
        try:
            # Read again now that we watch: something may have come since the last look.
            reading = _read_some(ctx, wanted, max_bytes, committed_only, copier, again=True)
            if reading.cold:
                return await _warm(ctx, reading, copier)
            if reading.starved:
                continue
            enough = reading.size_bytes >= min_bytes or reading.full
            if enough or reading.failed or not reading.watched or loop.time() >= deadline:
                ctx.memory.reserve(reading.size_bytes)
                return _encode(ctx, reading, reserved=reading.size_bytes)
            reading.forget()
            await poll.wait(max(0.0, deadline - loop.time()))
        finally:
            for partition in watched:
                partition.unwatch(poll)


def _encode(ctx: Context, reading: Reading, reserved: int = 0) -> Encoded:
    topics = [(name, topic_id, rows) for (name, topic_id), rows in reading.rows.items()]
    return Encoded(fetch_answer(ctx.version, 0, 0, topics), reserved)


API = Api(key=1, name="Fetch", versions=(4, 18), handle=handle, hot=True)
