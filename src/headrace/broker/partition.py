"""One partition of which this broker has a replica: a log, a high watermark, and those who wait for it to move.

Rules:
- One thread owns everything here. Nothing in this module awaits while it holds half-made state.
- A partition leads or follows, as the image says, in one leader epoch after the other. Only a leader takes records from
  clients and answers them; who waits when it stops leading is told NOT_LEADER_OR_FOLLOWER. A follower appends what its
  leader has, as it is, and cuts off what the leader never had.
- The high watermark is what consumers may see and what `acks=all` waits for: the offset that every in-sync replica has
  reached; with too few of them it stands still. Of us that is, with `flush=ack`, the flushed offset, so that an offset
  that was ever seen keeps its value through a power cut; otherwise the end. A follower learns it from its leader, late.
- The last stable offset is what readers of committed records may see. It moves only when the high watermark does.
- A log that failed stays failed: every waiter and every later call gets KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.broker.decisions import state_of
from headrace.broker.guards import Guards
from headrace.broker.image import PartitionRecord
from headrace.broker.waiting import Commit, Poll
from headrace.core.counters import Traffic
from headrace.core.errors import ApiError, CorruptionError, ErrorCode, PassingError, StorageError
from headrace.isr.divergence import EpochEnd, diverging, end_offset_for_epoch
from headrace.isr.leader import LeaderReplicas
from headrace.storage.copying import append_copied
from headrace.storage.log import Appended, Log
from headrace.storage.transactions import Marker, append_marker
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Workers
    from headrace.storage.span import Span
    from headrace.wire.batch import BatchHeader, Record

NOBODY: Final = -1
READ_CHUNK_BYTES = 8 * 1024 * 1024


class Partition:
    """One replica; ours."""

    __slots__ = (
        "_alone",
        "_clock",
        "_commits",
        "_copies",
        "_cut",
        "_grown_bytes",
        "_polls",
        "_stable_offset",
        "_touched",
        "durable_ack",
        "epoch_start_offset",
        "guards",
        "high_watermark",
        "index",
        "leader",
        "leader_epoch",
        "leads",
        "log",
        "may_mark",
        "on_caught_up",
        "on_damaged",
        "on_failed",
        "on_marker",
        "record",
        "replicas",
        "topic",
        "topic_id",
        "traffic",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        log: Log,
        *,
        leader_epoch: int = NOBODY,
        clock: Clock,
        traffic: Traffic,
        touched: Callable[[Partition], None],
    ) -> None:
        """With a `leader_epoch` it leads at once, and alone; otherwise it is to be told."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leads = False
        self.leader = NOBODY  # the node that leads
        self.leader_epoch = NOBODY
        self.record: PartitionRecord | None = None  # as the image has it
        self.replicas: LeaderReplicas | None = None  # of a leader that has others
        self.epoch_start_offset = 0  # where the log ended when we began to lead
        self.traffic = traffic
        self.durable_ack = False
        self.on_damaged: Callable[[tuple[Partition, Span, StorageError]], None] | None = None  # may be in a worker
        self.high_watermark = log.start_offset
        # Who keeps pending records here is asked before a marker is appended (it may raise ApiError), and told of it:
        # (partition, producer id, epoch, commit).
        self.may_mark: Callable[[], object] | None = None
        self.on_marker: Callable[[Partition, int, int, bool], None] | None = None
        self.on_failed: Callable[[Partition, StorageError], None] | None = None  # the log is lost
        self.on_caught_up: Callable[[Partition], None] | None = None  # a follower could be in sync
        self._alone = False  # we lead, and nobody else is in sync or about to be: the high watermark is ours
        self._stable_offset = 0  # as those who wait know it
        self._clock = clock
        self._touched = touched
        self._commits: deque[tuple[int, Commit[Any]]] = deque()
        self._polls: dict[Poll, None] = {}
        self._copies: dict[Poll, None] = {}  # of followers, who need not wait for the high watermark
        self.guards = Guards()
        self._cut: asyncio.Task[None] | None = None
        self._grown_bytes = 0
        self.configured()
        if leader_epoch >= 0:
            self.become_leader(PartitionRecord(topic, index, (0,), (0,), 0, leader_epoch))

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    # ------------------------------------------------------------------ roles

    def configured(self) -> None:
        """Take over what the topic's configuration says about flushing."""
        config = self.log.config
        self.durable_ack = config.flush == "ack" and config.storage == "disk"
        if self.replicas is not None:
            self.replicas.min_isr = config.min_insync_replicas
        if self.leads:
            self.advance()  # never back: what consumers have seen stays seen

    def become_leader(self, record: PartitionRecord) -> None:
        """Lead from now on in the record's epoch, or go on with another set of replicas."""
        if not (self.leads and record.leader_epoch == self.leader_epoch):
            self._resign()
            self.leads = True
            self.leader = record.leader
            self.leader_epoch = record.leader_epoch
            self.epoch_start_offset = self.log.end_offset
            self.replicas = None
            self._grown_bytes = 0
            self._stable_offset = self.last_stable_offset
        self.record = record
        self._meet(record)
        self._alone = self.replicas is None
        self.advance()
        if record.has_few_in_sync(self.log.config.min_insync_replicas):
            self.expire_commits(float("inf"), ErrorCode.not_enough_replicas_after_append)  # nothing moves for now

    def _meet(self, record: PartitionRecord) -> None:
        """Know the other replicas, if there are any."""
        now_s = self._clock.monotonic()
        if len(record.replicas) == 1:
            self.replicas = None
        elif self.replicas is not None:
            self.replicas.committed(state_of(record), now_s)
        else:
            self.replicas = LeaderReplicas(
                record.leader,
                state_of(record),
                end_offset=self.epoch_start_offset,
                high_watermark=self.high_watermark,
                now_s=now_s,
                synced_offset=self.reached_offset,
                min_isr=self.log.config.min_insync_replicas,
            )

    def become_follower(self, record: PartitionRecord) -> None:
        """Follow the record's leader; there may be none."""
        if record.leader_epoch != self.leader_epoch or self.leads:
            self._resign()
            self.leader_epoch = record.leader_epoch
        self.leader = record.leader
        self.record = record

    def retire(self) -> None:
        """This node has no replica any more."""
        self._resign()  # whether the topic is still there is not for us to say
        self.leader = NOBODY
        self.leader_epoch = NOBODY

    def _resign(self) -> None:
        """Lead no more, and tell everyone who waits."""
        if not self.leads:
            return
        self.leads = self._alone = False
        self.replicas = self.may_mark = self.on_marker = None
        self.guards.break_all()
        self.fail(ApiError(ErrorCode.not_leader_or_follower, "Another node leads the partition now."))

    def fenced(self, node: int) -> None:
        """A node is fenced: unless it is in sync nobody waits for it."""
        if self.replicas is not None and self.replicas.fenced(node):
            self.advance()

    @property
    def in_sync(self) -> int:
        """How many replicas have everything that is committed, by what was decided."""
        return 1 if self.record is None else len(self.record.isr)

    @property
    def reached_offset(self) -> int:
        """Everything below is as safe here as the topic wants it."""
        return self.log.flushed_offset if self.durable_ack else self.log.end_offset

    @property
    def offsets_are_known(self) -> bool:
        """Whether the high watermark has reached everything that was ever committed (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    def epoch_end(self, leader_epoch: int) -> EpochEnd:
        """Where an epoch ended, as OffsetForLeaderEpoch has it; (-1, -1) if unknown."""
        return end_offset_for_epoch(self.log.epochs, self.log.end_offset, self.leader_epoch, leader_epoch)

    def asked_by(self, node: int, node_epoch: int, offset: int, last_epoch: int) -> EpochEnd | None:
        """A follower asks for `offset`, and the record before it has `last_epoch` (-1: it has none).

        Returns where its log parts from ours, if it does. If not, it has everything below `offset`.
        Raises ApiError: not_leader_or_follower if it is no replica of ours, offset_out_of_range.
        """
        log, replicas = self.log, self.replicas
        if replicas is None or replicas.follower(node) is None:
            raise ApiError(ErrorCode.not_leader_or_follower, f"Node {node} has no replica.")
        parts = diverging(log.epochs, log.start_offset, log.end_offset, self.leader_epoch, offset, last_epoch)
        if parts is not None:
            return parts
        if not log.start_offset <= offset <= log.end_offset:
            raise ApiError(ErrorCode.offset_out_of_range)
        if replicas.fetched(node, offset, node_epoch, log.end_offset, self._clock.monotonic()):
            self.advance()
        if node not in replicas.state.isr and offset >= self.high_watermark and self.on_caught_up is not None:
            self.on_caught_up(self)
        return None

    # ------------------------------------------------------------------ following

    def append_copied(self, data: bytes, high_watermark: int) -> None:
        """Append batches of our leader, as they are, with the high watermark that came with them.

        Raises StorageError; CorruptionError: they are not whole; ApiError: offsets are missing that should not be.
        """
        now_ms = self._clock.now_ms()
        try:
            append_copied(self.log, data, leader_epoch=self.leader_epoch, high_watermark=high_watermark, now_ms=now_ms)
        except CorruptionError:
            raise  # what was sent is damaged, and nothing else
        except StorageError as error:
            self._storage_fault(error)
            raise
        self._touched(self)

    def learn(self, high_watermark: int, start_offset: int) -> bool:
        """What our leader says of itself. True if segments have to go with the next sync."""
        log = self.log
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.reached_offset))
        if not log.start_offset < start_offset <= log.end_offset:
            return False
        log.delete_before(start_offset)
        return True

    async def cut(self, work: Callable[[], None], workers: Workers) -> None:
        """Let a worker have the log (see `storage.cutting`). No sync or swap may be under way. Raises StorageError."""
        assert not self.leads and not self.log.busy
        self.log.cutting = True
        self._cut = asyncio.get_running_loop().create_task(self._in_worker(work, workers))
        await asyncio.shield(self._cut)  # whatever becomes of the one who waits

    async def _in_worker(self, work: Callable[[], None], workers: Workers) -> None:
        try:
            await workers.run(work)
        except StorageError as error:
            self._storage_fault(error)
            raise
        finally:
            self.log.cutting = False
            self.high_watermark = min(self.high_watermark, self.log.end_offset)

    async def idle(self) -> None:
        """Wait until no worker has the log."""
        if self._cut is not None:
            await asyncio.wait([self._cut])

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` when the worker that has the log is through with it."""
        assert self._cut is not None
        self._cut.add_done_callback(lambda _: then())

    # ------------------------------------------------------------------ leading

    @property
    def last_stable_offset(self) -> int:
        """What readers of committed records may see ends here."""
        log = self.log
        if not log.producers.transactions.unstable:
            return self.high_watermark
        return log.last_stable_offset(self.high_watermark)

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has written here in a transaction that is open, in this epoch."""
        return self.log.producers.is_open(producer_id, producer_epoch)

    def append(self, data: bytearray, headers: Sequence[BatchHeader]) -> Appended:
        """Append checked batches of a client. Raises ApiError; a disk that failed is KAFKA_STORAGE_ERROR."""
        if not self.leads:
            raise ApiError(ErrorCode.not_leader_or_follower)
        log = self.log
        try:
            appended = log.append(data, headers, leader_epoch=self.leader_epoch, now_ms=self._clock.now_ms())
        except StorageError as error:
            raise self._storage_fault(error) from error
        if not appended.duplicate:
            traffic = self.traffic
            traffic.bytes_in += len(data)
            for header in headers:
                traffic.records_in += header.count
            self._grew(len(data))
        return appended

    def _grew(self, size_bytes: int) -> None:
        self._grown_bytes += size_bytes
        if not self.durable_ack:
            self.advance()
        if self._copies:
            for poll in tuple(self._copies):
                poll.wake()
        self._touched(self)

    def _storage_fault(self, error: StorageError) -> ApiError:
        if not isinstance(error, PassingError):
            self.fail(error)
        return ApiError(ErrorCode.kafka_storage_error, str(error))

    def append_internal(self, items: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append records of our own (coordinators) as one batch; returns the offset after the last of them."""
        now_ms = self._clock.now_ms()
        data = bytearray(batch.build(items, timestamp_ms=now_ms))
        headers = list(batch.headers(data))
        return self.append(data, headers).last_offset + 1

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Raises ApiError if the producer was fenced here, or has to end another transaction first."""
        self.log.producers.check_own(producer_id, producer_epoch)

    def append_transactional(
        self, items: Sequence[tuple[bytes, bytes | None]], producer_id: int, producer_epoch: int
    ) -> int:
        """The same, within a producer's transaction. Raises ApiError(invalid_producer_epoch) if it was fenced."""
        data = bytearray(
            batch.build(
                items,
                timestamp_ms=self._clock.now_ms(),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=True,
            )
        )
        return self.append(data, list(batch.headers(data))).last_offset + 1

    def write_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, bumped: bool = False
    ) -> int:
        """End a producer's transaction here; returns the offset after the marker, which is not committed yet.

        `bumped`: its epoch is higher than that of the records that it ends, so that an old one can be told.
        Raises ApiError: invalid_producer_epoch, transaction_coordinator_fenced, kafka_storage_error.
        """
        if not self.leads:
            raise ApiError(ErrorCode.not_leader_or_follower)
        if self.may_mark is not None:
            self.may_mark()
        size_bytes = self.log.size_bytes
        try:
            appended = append_marker(
                self.log,
                producer_id,
                producer_epoch,
                Marker(commit, coordinator_epoch),
                leader_epoch=self.leader_epoch,
                now_ms=self._clock.now_ms(),
                bumped=bumped,
            )
        except StorageError as error:
            raise self._storage_fault(error) from error
        self.guards.break_one(producer_id)
        self._grew(self.log.size_bytes - size_bytes)
        if self.on_marker is not None:
            self.on_marker(self, producer_id, producer_epoch, commit)
        return appended.last_offset + 1

    def advance(self) -> None:
        """Move the high watermark to where the replicas allow it, and wake who waited for that."""
        log = self.log
        reached = log.flushed_offset if self.durable_ack else log.end_offset
        if not self._alone:
            if self.replicas is None:
                return  # our leader decides
            self.replicas.appended(reached, log.end_offset)
            reached = self.replicas.high_watermark
        if reached <= self.high_watermark:
            return
        before, self.high_watermark = self.high_watermark, reached
        commits = self._commits
        while commits and commits[0][0] <= reached:
            commits.popleft()[1].reached()
        grown_bytes, self._grown_bytes = self._grown_bytes, 0
        stable_before, self._stable_offset = self._stable_offset, self.last_stable_offset
        if self._polls:
            all_stable = self._stable_offset == reached and stable_before == before
            for poll in tuple(self._polls):
                if all_stable or not poll.committed_only:
                    poll.grew(grown_bytes)
                elif self._stable_offset > stable_before:
                    poll.wake()  # nobody knows how many bytes that let go

    def when_committed(self, next_offset: int, commit: Commit[Any]) -> bool:
        """Have `commit` told once everything below `next_offset` is committed; False if it is already."""
        if self.high_watermark >= next_offset:
            return False
        self._commits.append((next_offset, commit))
        return True

    def committed(self, next_offset: int) -> asyncio.Future[None]:
        """Resolved when all below `next_offset` is committed, in the epoch of this call; an ApiError if never."""

        def finish() -> None:
            if commit.error is not None:
                raise commit.error

        commit: Commit[None] = Commit(finish)
        if not self.leads:
            commit.failed(ApiError(ErrorCode.not_leader_or_follower))
        return commit.begin(int(self.leads and self.when_committed(next_offset, commit)))

    def watch(self, poll: Poll, *, uncommitted: bool = False) -> None:
        """Tell `poll` of what arrives; of records that are not committed yet, too, if it is a follower's."""
        (self._copies if uncommitted else self._polls)[poll] = None

    def unwatch(self, poll: Poll) -> None:
        self._polls.pop(poll, None)
        self._copies.pop(poll, None)

    def fail(self, error: StorageError | ApiError) -> None:
        """The log is lost to us. Tell everyone who waits."""
        if isinstance(error, StorageError):
            self.log.fail(error)
            if self.on_failed is not None:
                self.on_failed(self, error)
            error = ApiError(ErrorCode.kafka_storage_error, str(error))
        commits, self._commits = self._commits, deque()
        for _, commit in commits:
            commit.failed(error)
        for poll in (*self._polls, *self._copies):
            poll.wake()

    def expire_commits(self, now: float, code: ErrorCode = ErrorCode.request_timed_out) -> None:
        """Answer those whose patience has ended; the records stay, as Kafka has it."""
        late = dict.fromkeys(one for _, one in self._commits if one.deadline is not None and one.deadline <= now)
        self._commits = deque(each for each in self._commits if each[1] not in late) if late else self._commits
        for commit in late:
            commit.failed(ApiError(code))

    def read_all(self) -> Iterator[Record]:
        """Every record from the start to the end. Blocking: for coordinators that load their state."""
        for _, records in self.read_batches():
            yield from records

    def read_batches(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """The same, batch by batch."""
        log, offset = self.log, self.log.start_offset
        while self._must_lead() and (span := log.locate(offset, READ_CHUNK_BYTES, log.end_offset)) is not None:
            try:
                data = span.read()
            except StorageError as error:
                if self.on_damaged is not None:
                    self.on_damaged((self, span, error))
                raise
            for header in batch.headers(data):
                yield header, [record for record in batch.records(data, header) if record.offset >= offset]
            offset = span.next_offset

    def _must_lead(self) -> bool:
        if not self.leads:
            raise ApiError(ErrorCode.not_leader_or_follower)
        return True

    def delete_before(self, offset: int) -> int:
        """Forget records below `offset`; -1 means the high watermark. Returns the new start offset."""
        offset = self.high_watermark if offset == -1 else offset
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(ErrorCode.offset_out_of_range)
        self.log.delete_before(offset)
        return self.log.start_offset
