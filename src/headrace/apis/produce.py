"""Produce, versions 3-13 (0-2 are advertised, because old librdkafka turns compression off without them, and refused).

Each partition's batch is checked (header, CRC, limits, and the records as `headrace.record.validation` says), stamped
and appended as it came. `acks=0` gets no answer, and an error closes the connection, as in Kafka; `acks=1` is answered
from the page cache; `acks=all` waits for the high watermark, which with `flush=ack` means that the batch is synced on
every replica that is in sync. If there are fewer of these than `min.insync.replicas`, the batch is refused
(NOT_ENOUGH_REPLICAS), or, when they became fewer after it was appended, answered with
NOT_ENOUGH_REPLICAS_AFTER_APPEND. The order of appends to a partition is the order of arrival: while the records of a
batch are looked at in a worker, later requests for its partition wait.

A transactional batch is appended if its partition is in the producer's transaction; from version 12 on it is put there
by being sent (KIP-890). If the coordinator has to be asked for that, later requests of the same producer wait, too.

Differs from Kafka: unless `headrace.record.validation` is `full`, not every record is looked at. When a batch of an
idempotent producer is refused for a passing reason, those behind it are, too (`broker/refusals.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.apis.api import Api, Context, Encoded
from headrace.broker.admission import Candidate, Ticket
from headrace.broker.record_validation import KeylessRecordError, at_once
from headrace.broker.refusals import PASSING, Place
from headrace.broker.service import few_in_sync
from headrace.broker.waiting import Commit
from headrace.core import limits
from headrace.core.errors import ApiError, ErrorCode, ProtocolError
from headrace.wire import batch
from headrace.wire.hot import ProducedPartition, produce_answer
from headrace.wire.layout import TRANSACTIONAL
from headrace.wire.produce_request import ProduceRequest, read_produce_request

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.partition import Partition

BY_ID = 13
ACKS = frozenset({-1, 0, 1})
ZSTD_FROM = 7
Verdicts = Mapping[tuple[str, int], ApiError | None]  # by topic and partition: why it is refused; None: it is admitted
NO_VERDICTS: Verdicts = {}
TopicAnswer = tuple[str, "UUID | None", list[ProducedPartition]]
Wait = tuple["Partition", int, list[ProducedPartition], int]  # partition, next offset, where the answer stands
# A batch whose header is right; whether its records are, too, or are still to be looked at.
Examined = tuple["Partition", bytes, list[batch.BatchHeader], bool]
Examinations = list[Examined | ApiError]  # of a request's batches, in their order


def handle(ctx: Context, request: ProduceRequest) -> Encoded | Awaitable[Encoded | None] | None:
    topics = request.topics
    if request.transactional_id is None and request.acks and len(topics) == 1 and len(topics[0][2]) == 1:
        return _handle_one(ctx, request)
    admission = ctx.service.admission
    examined = _examine_all(ctx, request)
    must_wait = any(_is_slow(one) for one in examined)
    candidates = [] if request.transactional_id is None else _candidates(ctx, request)
    if not candidates:
        queues = admission.queues
        if must_wait or (queues and any(place in queues for place in _places(examined))):
            return _wait(ctx, request, examined)
        return _append_all(ctx, request, examined, NO_VERDICTS)
    if any(one[1:3] != candidates[0][1:3] for one in candidates):
        several = ApiError(ErrorCode.invalid_producer_id_mapping, "transactional batches of more than one producer")
        return _append_all(
            ctx,
            request,
            [several if _is_slow(one) else one for one in examined],
            {one.place: several for one in candidates},
        )
    if must_wait or not admission.needs_no_wait(candidates):
        return _wait(ctx, request, examined, candidates)
    return _append_all(ctx, request, examined, NO_VERDICTS)


def _handle_one(ctx: Context, request: ProduceRequest) -> Encoded | Awaitable[Encoded | None]:
    """The common case: one partition, and an answer is wanted."""
    given, topic_id, ((index, records),) = request.topics[0]
    waits: list[Wait] = []
    rows: list[ProducedPartition] = []
    try:
        name = given if topic_id is None else ctx.service.topic_name(topic_id)
        _check_request(ctx, request, name)
        examined = _examine(ctx, name or "", index, records)
        queues = ctx.service.admission.queues
        if not examined[3] or (queues and (name, index) in queues):
            return _wait(ctx, request, [examined])
        rows.append(_append(ctx, request, (given, topic_id, index), examined, NO_VERDICTS, waits, rows))
    except ApiError as error:
        rows.append(_refused(ctx, index, _reason(ctx, (given, topic_id, index), records, error)))
    answers: list[TopicAnswer] = [(given, topic_id, rows)]
    if not waits:
        return Encoded(produce_answer(ctx.version, answers))
    return _when_committed(ctx, request.timeout_ms, answers, waits)


def _candidates(ctx: Context, request: ProduceRequest) -> list[Candidate]:
    """The transactional batches of a request. What is wrong with them is found when they are appended."""
    found = []
    for given, topic_id, batches in request.topics:
        name = given if topic_id is None else ctx.service.topic_name(topic_id)
        if name is None or name in limits.INTERNAL_TOPICS or request.acks not in ACKS:
            continue
        for index, records in batches:
            header = next(batch.headers(records or b""), None)
            if header is None or not batch.is_transactional(header):
                continue
            try:
                partition = ctx.service.partitions.get(name, index)
            except ApiError:
                continue
            found.append(Candidate(partition, header.producer_id, header.producer_epoch, header.base_sequence))
    return found


# -- what is looked at before anything is appended


def _examine_all(ctx: Context, request: ProduceRequest) -> Examinations:
    found: Examinations = []
    for given, topic_id, batches in request.topics:
        name = given if topic_id is None else ctx.service.topic_name(topic_id)
        for index, records in batches:
            try:
                _check_request(ctx, request, name)
                found.append(_examine(ctx, name or "", index, records))
            except ApiError as error:
                found.append(error)
    return found


def _examine(ctx: Context, name: str, index: int, records: bytes | None) -> Examined:
    if name in limits.INTERNAL_TOPICS:
        raise ApiError(ErrorCode.invalid_topic_exception, f"{name} is internal")
    try:
        partition = ctx.service.partitions.get(name, index)
    except ApiError:
        if (fault := limits.topic_name_fault(name)) is not None:
            raise ApiError(ErrorCode.invalid_topic_exception, fault) from None
        raise
    if records is None:
        raise ApiError(ErrorCode.invalid_record, "a partition without records")
    config = partition.log.config
    headers = batch.check(records, max_batch_bytes=config.max_message_bytes, zstd=ctx.version >= ZSTD_FROM)
    right = at_once(records, headers, config, ctx.service.clock.now_ms)
    return (partition, records, headers, False) if right is None else (partition, *right, True)


def _is_slow(one: Examined | ApiError) -> bool:
    return not isinstance(one, ApiError) and not one[3]


def _places(examined: Examinations) -> set[tuple[str, int]]:
    return {(one[0].topic, one[0].index) for one in examined if not isinstance(one, ApiError)}


def _wait(
    ctx: Context, request: ProduceRequest, examined: Examinations, candidates: Sequence[Candidate] = ()
) -> asyncio.Task[Encoded | None]:
    """Append when all is known, and those who came before have appended."""
    keys = {candidates[0].producer_id} if candidates else _places(examined)
    ticket = ctx.service.admission.enter(keys)  # now: the order of arrival counts
    task = asyncio.get_running_loop().create_task(_in_turn(ctx, request, examined, candidates, ticket))
    task.add_done_callback(ticket.leave)  # even if it is cancelled before it begins
    return task


async def _in_turn(
    ctx: Context, request: ProduceRequest, examined: Examinations, candidates: Sequence[Candidate], ticket: Ticket
) -> Encoded | None:
    examined = [await _examine_slowly(ctx, one) for one in examined]
    await ticket.turn()
    verdicts = NO_VERDICTS
    if candidates:
        assert request.transactional_id is not None
        verdicts = await ctx.service.admission.admit(request.transactional_id, candidates, ctx.version)
    outcome = _append_all(ctx, request, examined, verdicts)
    ticket.leave()
    return await outcome if isinstance(outcome, asyncio.Future) else outcome


async def _examine_slowly(ctx: Context, one: Examined | ApiError) -> Examined | ApiError:
    if isinstance(one, ApiError) or one[3]:
        return one
    partition, records, headers, _ = one
    service = ctx.service
    try:
        right = await service.validation.in_turns(
            records, headers, partition.log.config, service.clock.now_ms, service.workers
        )
    except ApiError as error:
        return error
    return partition, *right, True


# -- appending


def _check_request(ctx: Context, request: ProduceRequest, name: str | None) -> None:
    if name is None or (name == "" and ctx.version >= BY_ID):
        raise ApiError(ErrorCode.unknown_topic_id)
    if request.acks not in ACKS:
        raise ApiError(ErrorCode.invalid_required_acks)


def _append_all(
    ctx: Context, request: ProduceRequest, examined: Examinations, verdicts: Verdicts
) -> Encoded | asyncio.Future[Encoded] | None:
    acks = request.acks
    waits: list[Wait] = []
    answers: list[TopicAnswer] = []
    seen: set[tuple[str, int]] = set()
    each = iter(examined)
    for given, topic_id, batches in request.topics:
        rows: list[ProducedPartition] = []
        answers.append((given, topic_id, rows))
        for index, records in batches:
            place = (given, topic_id, index)
            try:
                one = next(each)
                if isinstance(one, ApiError):
                    raise one
                where = (one[0].topic, index)
                if where in seen:
                    raise ApiError(ErrorCode.invalid_request, "a partition may appear once in a request")
                seen.add(where)
                if verdicts and (fault := verdicts.get(where)) is not None:
                    raise fault
                row = _append(ctx, request, place, one, verdicts, waits, rows)
            except ApiError as error:
                reason = _reason(ctx, place, records, error)
                if acks == 0:
                    raise ProtocolError(f"Produce with acks=0 failed: {reason}") from error
                row = _refused(ctx, index, reason)
            rows.append(row)
    if acks == 0:
        return None
    if not waits:
        return Encoded(produce_answer(ctx.version, answers))
    return _when_committed(ctx, request.timeout_ms, answers, waits)


def _append(
    ctx: Context,
    request: ProduceRequest,
    place: Place,
    examined: Examined,
    verdicts: Verdicts,
    waits: list[Wait],
    rows: list[ProducedPartition],
) -> ProducedPartition:
    partition, records, headers, _ = examined
    log = partition.log
    if request.acks == -1 and few_in_sync(partition):
        raise ApiError(ErrorCode.not_enough_replicas)
    if headers[0].attributes & TRANSACTIONAL:
        _check_admitted(request, partition, headers[0], verdicts)
    if ctx.service.refusals:
        is_known = log.producers.get(headers[0].producer_id) is not None
        ctx.service.refusals.check(place, headers[0], ctx.service.clock.monotonic(), is_known=is_known)
    appended = partition.append(bytearray(records), headers)
    if request.acks == -1 and partition.high_watermark <= appended.last_offset:
        waits.append((partition, appended.last_offset + 1, rows, len(rows)))
    return ProducedPartition(place[2], 0, appended.base_offset, appended.append_time_ms, log.start_offset)


def _reason(ctx: Context, place: Place, records: bytes | None, error: ApiError) -> ApiError:
    """What a refused batch is answered with; a refusal that passes is remembered (`broker/refusals.py`)."""
    refusals = ctx.service.refusals
    is_passing = error.code in PASSING
    if not is_passing and (not refusals or error.code is not ErrorCode.out_of_order_sequence_number):
        return error
    header = next(batch.headers(records or b""), None)
    if header is None:
        return error
    now_s = ctx.service.clock.monotonic()
    if not is_passing:
        return refusals.reason_of(place, header, now_s) or error
    name = place[0] if place[1] is None else ctx.service.topic_name(place[1])
    replica = ctx.service.partitions.replica(name or "", place[2])
    refusals.note(place, header, error, now_s, None if replica is None else replica.log.producers)
    return error


def _check_admitted(
    request: ProduceRequest, partition: Partition, header: batch.BatchHeader, verdicts: Verdicts
) -> None:
    if request.transactional_id is None:
        raise ApiError(
            ErrorCode.transactional_id_authorization_failed, "a transactional batch without a transactional id"
        )
    place = (partition.topic, partition.index)
    if place not in verdicts and not partition.in_transaction(header.producer_id, header.producer_epoch):
        raise ApiError(ErrorCode.unknown_topic_or_partition)  # it came into being while the others were asked for


def _refused(ctx: Context, index: int, error: ApiError) -> ProducedPartition:
    ctx.service.count_error("Produce", error.code)
    record_errors: Sequence[tuple[int, str | None]] = ()
    if isinstance(error, KeylessRecordError):
        record_errors = [(number, error.message) for number in error.numbers]
    return ProducedPartition(index, error.code, -1, -1, -1, error.message or None, record_errors)


def _when_committed(
    ctx: Context, timeout_ms: int, answers: list[TopicAnswer], waits: list[Wait]
) -> asyncio.Future[Encoded]:
    def finish() -> Encoded:
        for partition, next_offset, rows, place in waits:
            if commit.error is not None and (partition.high_watermark < next_offset or not partition.leads):
                rows[place] = _refused(ctx, rows[place].index, commit.error)
            elif few_in_sync(partition):
                few = ApiError(ErrorCode.not_enough_replicas_after_append)
                rows[place] = _refused(ctx, rows[place].index, few)
        return Encoded(produce_answer(ctx.version, answers))

    deadline = asyncio.get_running_loop().time() + max(0, timeout_ms) / 1000
    commit: Commit[Encoded] = Commit(finish, deadline)
    for partition, next_offset, _, _ in waits:
        partition.when_committed(next_offset, commit)
    return commit.begin(len(waits))


API = Api(
    key=0,
    name="Produce",
    versions=(3, 13),
    handle=handle,
    decode=read_produce_request,
    hot=True,
    advertise_from=0,
    max_request_bytes=limits.FRAME_BYTES,
)
