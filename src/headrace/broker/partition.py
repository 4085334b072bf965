"""One partition that this broker leads: a log, a high watermark, and those who wait for it to move.

Rules:
- One thread owns everything here. Nothing in this module awaits while it holds half-made state.
- The high watermark is what consumers may see and what `acks=all` waits for. With `flush=ack` it follows the flushed
  offset, so that an offset that was ever seen keeps its value through a power cut; otherwise it follows the end.
- The last stable offset is what readers of committed records may see. It moves only when the high watermark does.
- A log that failed stays failed: every waiter and every later call gets KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.waiting import Commit, Poll
from headrace.core.counters import Traffic
from headrace.core.errors import ApiError, DiskFullError, ErrorCode, StorageError
from headrace.storage.log import Appended, Log
from headrace.storage.transactions import Marker, append_marker
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.core.ports import Clock
    from headrace.wire.batch import BatchHeader, Record

READ_CHUNK_BYTES = 8 * 1024 * 1024


class Partition:
    """One partition that we lead."""

    __slots__ = (
        "_clock",
        "_commits",
        "_grown_bytes",
        "_polls",
        "_stable_offset",
        "_touched",
        "durable_ack",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "may_mark",
        "on_marker",
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
        leader_epoch: int,
        clock: Clock,
        traffic: Traffic,
        touched: Callable[[Partition], None],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.traffic = traffic
        self.durable_ack = False
        self.high_watermark = 0
        # Who keeps pending records here is asked before a marker is appended (it may raise ApiError), and told of it:
        # (partition, producer id, epoch, commit).
        self.may_mark: Callable[[], object] | None = None
        self.on_marker: Callable[[Partition, int, int, bool], None] | None = None
        self._stable_offset = 0  # as those who wait know it
        self._clock = clock
        self._touched = touched
        self._commits: deque[tuple[int, Commit[Any]]] = deque()
        self._polls: dict[Poll, None] = {}
        self._grown_bytes = 0
        self.configured()

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    def configured(self) -> None:
        """Take over what the topic's configuration says about flushing."""
        config = self.log.config
        self.durable_ack = config.flush == "ack" and config.storage == "disk"
        # What consumers have seen stays seen, whatever the new way of flushing has to say about it.
        reached = self.log.flushed_offset if self.durable_ack else self.log.end_offset
        self.high_watermark = max(self.high_watermark, reached)
        self._stable_offset = self.last_stable_offset

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
        self._touched(self)

    def _storage_fault(self, error: StorageError) -> ApiError:
        if not isinstance(error, DiskFullError):
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

    def write_marker(self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int) -> int:
        """End a producer's transaction here; returns the offset after the marker, which is not committed yet.

        Raises ApiError: invalid_producer_epoch, transaction_coordinator_fenced, kafka_storage_error.
        """
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
            )
        except StorageError as error:
            raise self._storage_fault(error) from error
        self._grew(self.log.size_bytes - size_bytes)
        if self.on_marker is not None:
            self.on_marker(self, producer_id, producer_epoch, commit)
        return appended.last_offset + 1

    def advance(self) -> None:
        """Move the high watermark to where the log allows it, and wake who waited for that."""
        log = self.log
        reached = log.flushed_offset if self.durable_ack else log.end_offset
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

    async def committed(self, next_offset: int) -> None:
        """Wait until everything below `next_offset` is committed. Raises ApiError if it never will be."""

        def finish() -> None:
            if commit.error is not None:
                raise commit.error

        commit: Commit[None] = Commit(finish)
        if self.when_committed(next_offset, commit):
            await commit.begin(1)

    def watch(self, poll: Poll) -> None:
        self._polls[poll] = None

    def unwatch(self, poll: Poll) -> None:
        self._polls.pop(poll, None)

    def fail(self, error: StorageError | ApiError) -> None:
        """The log is lost to us. Tell everyone who waits."""
        if isinstance(error, StorageError):
            self.log.fail(error)
            error = ApiError(ErrorCode.kafka_storage_error, str(error))
        commits, self._commits = self._commits, deque()
        for _, commit in commits:
            commit.failed(error)
        for poll in tuple(self._polls):
            poll.wake()

    def expire_commits(self, now: float) -> None:
        """Answer those whose patience has ended; the records stay, as Kafka has it."""
        for _, commit in self._commits:
            if commit.deadline is not None and commit.deadline <= now:
                commit.failed(ApiError(ErrorCode.request_timed_out))

    def read_all(self) -> Iterator[Record]:
        """Every record from the start to the end. Blocking: for coordinators that load their state."""
        for _, records in self.read_batches():
            yield from records

    def read_batches(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """The same, batch by batch."""
        log = self.log
        offset = log.start_offset
        while (span := log.locate(offset, READ_CHUNK_BYTES, log.end_offset)) is not None:
            data = span.read()
            for header in batch.headers(data):
                if not batch.crc_matches(data, header):
                    raise StorageError(f"{self.topic}-{self.index}: bad checksum at offset {header.base_offset}")
                yield header, [record for record in batch.records(data, header) if record.offset >= offset]
            offset = span.next_offset

    def delete_before(self, offset: int) -> int:
        """Forget records below `offset`; -1 means the high watermark. Returns the new start offset."""
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(ErrorCode.offset_out_of_range)
        self.log.delete_before(offset)
        return self.log.start_offset
