"""One partition of the offsets topic at work: a groups machine, its log, its timer, its compaction.

Rules:
- Every record is appended in the order of the decisions; an answer goes out when everything that was appended up to
  its decision is committed, in that order.
- If an append or a commit fails, memory may be ahead of the log: the machine is thrown away, everyone who waits is told
  COORDINATOR_NOT_AVAILABLE, and a new machine is built from the log. Until then: COORDINATOR_LOAD_IN_PROGRESS.
- When another node leads the partition the shard is of no more use, and everyone is told NOT_COORDINATOR.
- A caller that goes away loses its answer only; what was decided stays decided.
- Offsets of a transaction are appended as a batch of its producer and are pending until its marker is appended to this
  log, by the transaction coordinator. No marker is let in while the machine is not loaded.
- The log is rewritten as it grows: the live records are appended again, then everything before them is forgotten. A
  crash in between leaves both, and replaying both gives the same state.
- Timeouts are in the loop's monotonic time; the wall clock only dates commits and retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.group.commands import Answer, Command, Commit, Decision, Now, Token
from headrace.group.machine import Groups
from headrace.group.pending import Producer
from headrace.group.records import Record
from headrace.group.topics import Topics, TopicTable
from headrace.storage.transactions import is_commit
from headrace.wire.batch import CONTROL, TRANSACTIONAL

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Workers
    from headrace.group.settings import GroupSettings

logger = logging.getLogger(__name__)

BATCH_BYTES: Final = 512 * 1024
RECORD_OVERHEAD_BYTES: Final = 24  # about what a record's frame adds to key and value
RETRY_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0


class Stored(Protocol):
    """A record that was read back."""

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


class OffsetsLog(Protocol):
    """What coordinators need of a partition."""

    @property
    def log(self) -> Sized: ...

    def append_internal(self, items: Sequence[Record]) -> int:
        """Append one batch; returns the offset after it. Raises ApiError or StorageError: then nothing was added."""

    def committed(self, next_offset: int) -> Awaitable[None]:
        """Wait until everything below `next_offset` is committed. Raises if it never will be."""

    def read_all(self) -> Iterable[Stored]:
        """Every record from start to end. Blocking."""

    def delete_before(self, offset: int) -> object:
        """Forget the records below `offset`."""


class Header(Protocol):
    """What is asked of a batch that was read back."""

    @property
    def base_offset(self) -> int: ...

    @property
    def last_offset_delta(self) -> int: ...

    @property
    def attributes(self) -> int: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...


class GroupLog(OffsetsLog, Protocol):
    """What groups need of a partition besides."""

    on_marker: Callable[[Any, int, int, bool], None] | None
    may_mark: Callable[[], object] | None

    def append_transactional(self, items: Sequence[Record], producer_id: int, producer_epoch: int) -> int:
        """As `append_internal`, within a producer's transaction."""

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Raises ApiError if the producer was fenced, or has to end another transaction first."""

    def read_batches(self) -> Iterable[tuple[Header, Sequence[Stored]]]:
        """Every batch from start to end. Blocking."""


def size_of(records: Iterable[Record]) -> int:
    return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES for key, value in records)


class GroupShard:
    """See the module."""

    def __init__(
        self,
        log: GroupLog,
        settings: GroupSettings,
        *,
        clock: Clock,
        workers: Workers,
        on_loaded: Callable[[GroupShard], None] | None = None,
    ) -> None:
        self.machine: Groups | None = None  # None while it is not loaded
        self._on_loaded = on_loaded
        self._topics: Topics = TopicTable()
        self._log = log
        self._settings = settings
        self._clock = clock
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Token, asyncio.Future[Answer]] = {}
        self._outgoing: deque[tuple[int, tuple[tuple[Token, Answer], ...]]] = deque()
        self._end = 0  # follows the last record that we know of
        self._committed = 0
        self._compact_at_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's handle of a moment that has passed does not know it
        self._loading: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._stopped = False
        self._moved = False
        log.on_marker = self._marked
        log.may_mark = self._ready

    # -- life ----------------------------------------------------------------------------------------------------

    def load(self) -> asyncio.Task[None]:
        """Build the machine from the log, in the background."""
        if self._loading is None:
            self._loading = self._loop.create_task(self._load())
        return self._loading

    async def _load(self) -> None:
        complained = False
        while not self._stopped:
            try:
                machine, end, live_bytes = await self._workers.run(self._build)
            except Exception as error:  # also one that nobody foresaw: who waits shall know why
                if not complained:
                    trace = not isinstance(error, ApiError | StorageError)
                    logger.error("consumer groups cannot be loaded", exc_info=trace, extra={"reason": str(error)})
                complained = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            machine.reading.topics = self._topics
            self.machine, self._end, self._committed = machine, end, 0
            self._compact_at_bytes = max(self._settings.compact_after_bytes, 2 * live_bytes)
            self._loading = None
            self._arm()
            if self._on_loaded is not None:
                self._on_loaded(self)
            return

    def _build(self) -> tuple[Groups, int, int]:
        """Blocking; in a worker. Nobody else writes to this log."""
        now = self._now()
        machine, end = Groups(self._settings, now), 0
        for header, records in self._log.read_batches():
            end = header.base_offset + header.last_offset_delta + 1
            producer = (header.producer_id, header.producer_epoch)
            if header.attributes & CONTROL:
                for record in records:
                    machine.end_transaction(producer[0], commit=is_commit(record.key), now=now)
                continue
            for record in records:
                if record.key is None:
                    continue
                if header.attributes & TRANSACTIONAL:
                    machine.replay_pending(producer, record.key, record.value, now)
                else:
                    machine.replay(record.key, record.value, now)
        return machine, end, size_of(machine.snapshot())

    async def stop(self) -> None:
        """Send what can be sent, refuse the rest."""
        self._stopped = True
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=STOP_SECONDS)
        tasks = [task for task in (self._loading, self._sending, self._compacting) if task is not None]
        self._abandon()
        if self._loading is not None:
            self._loading.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def resign(self) -> None:
        """Another node leads the partition now."""
        self._stopped = self._moved = True
        self._abandon(ErrorCode.not_coordinator)
        if self._loading is not None:
            self._loading.cancel()

    def show(self, topics: Topics) -> None:
        """What there is to read from now on."""
        self._topics = topics
        if self.machine is not None:
            self.machine.reading.topics = topics

    # -- commands ------------------------------------------------------------------------------------------------

    async def ask(self, command: Command) -> Answer:
        """Decide now; return when the answer may go out. Raises ApiError."""
        machine = self._ready()
        if isinstance(command, Commit) and command.producer is not None:
            self._log.check_producer(*command.producer)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[command.token] = future
        try:
            self._act(machine.decide(command, self._now()))
            return await future
        finally:
            self._waiting.pop(command.token, None)

    def _ready(self) -> Groups:
        if self.machine is None:
            if self._moved:
                raise ApiError(ErrorCode.not_coordinator, "The group has another coordinator now.")
            stopped = self._stopped
            raise ApiError(
                ErrorCode.coordinator_not_available if stopped else ErrorCode.coordinator_load_in_progress,
                "The group coordinator is stopping." if stopped else "The group coordinator is loading.",
            )
        return self.machine

    def _marked(self, log: Any, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """A marker was appended: what was pending takes effect, or never will."""
        if self.machine is not None:
            self._end = log.log.end_offset
            self.machine.end_transaction(producer_id, commit=commit, now=self._now())
            self._act(Decision((), ()))

    def _now(self) -> Now:
        return Now(round(self._loop.time() * 1000), self._clock.now_ms())

    def _act(self, decision: Decision) -> None:
        if decision.records and not self._append(decision.records, decision.producer):
            return
        if self._committed >= self._end:
            self._send(decision.answers)
        elif decision.records or decision.answers:
            self._outgoing.append((self._end, decision.answers))
            if self._sending is None:
                self._sending = self._loop.create_task(self._send_in_order())
        self._arm()
        if self._compacting is None and self._log.log.size_bytes > self._compact_at_bytes:
            self._compacting = self._loop.create_task(self._compact())

    def _append(self, records: Sequence[Record], producer: Producer | None = None) -> bool:
        batch: list[Record] = []
        size = 0
        try:
            for record in records:
                batch.append(record)
                size += size_of((record,))
                if size >= BATCH_BYTES:
                    self._append_batch(batch, producer)
                    batch, size = [], 0
            if batch:
                self._append_batch(batch, producer)
        except (ApiError, StorageError) as error:
            self._rebuild(error)
            return False
        return True

    def _append_batch(self, batch: Sequence[Record], producer: Producer | None) -> None:
        if producer is None:
            self._end = self._log.append_internal(batch)
        else:
            self._end = self._log.append_transactional(batch, *producer)

    def _send(self, answers: Iterable[tuple[Token, Answer]]) -> None:
        for token, answer in answers:
            future = self._waiting.get(token)
            if future is not None and not future.done():
                future.set_result(answer)

    async def _send_in_order(self) -> None:
        try:
            while self._outgoing:
                end = self._outgoing[-1][0]
                await self._log.committed(end)
                self._committed = end
                while self._outgoing and self._outgoing[0][0] <= end:
                    self._send(self._outgoing.popleft()[1])
            self._sending = None
        except (ApiError, StorageError) as error:
            self._sending = None
            self._rebuild(error)

    # -- trouble -------------------------------------------------------------------------------------------------

    def _rebuild(self, error: Exception) -> None:
        logger.error("consumer groups lost their log; they are loaded again", extra={"reason": str(error)})
        self._abandon()
        if not self._stopped:
            self.load()

    def _abandon(self, code: ErrorCode = ErrorCode.coordinator_not_available) -> None:
        """Forget the machine and tell everyone who waits."""
        self.machine = None
        self._outgoing.clear()
        for task in (self._sending, self._compacting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._sending = self._compacting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ApiError(code))

    # -- time ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have `_tick` called when the machine is due. A timer that is early does no harm."""
        due_ms = None if self.machine is None else self.machine.due()
        if due_ms is None:
            return
        due = due_ms / 1000
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(due, self._tick), due

    def _tick(self) -> None:
        self._timer = None
        if self.machine is not None:
            self._act(self.machine.tick(self._now()))

    # -- compaction ----------------------------------------------------------------------------------------------

    async def _compact(self) -> None:
        """Write the live records again, a few groups at a time, then forget all that came before them.

        What changes meanwhile is appended in between; since each group is written as it is at that moment, the last
        record of every key is always the true one.
        """
        machine = self.machine
        first, live_bytes = self._end, 0
        batch: list[Record] = []
        for name in [] if machine is None else machine.names():
            assert machine is not None
            batch.extend(machine.snapshot((name,)))
            pending = list(machine.pending(name))
            size = size_of(batch)
            if size < BATCH_BYTES and not pending:
                continue
            if not self._append(batch):
                return
            for producer, records in pending:  # after the rest: the later one of two commits counts
                size += size_of(records)
                if not self._append(records, producer):
                    return
            live_bytes += size
            batch = []
            await asyncio.sleep(0)
        live_bytes += size_of(batch)
        if batch and not self._append(batch):
            return
        try:
            await self._log.committed(self._end)
            self._log.delete_before(first)
        except (ApiError, StorageError) as error:
            self._rebuild(error)
            return
        grown_bytes = max(self._settings.compact_after_bytes, live_bytes)
        self._compact_at_bytes = self._log.log.size_bytes + grown_bytes
        self._compacting = None
