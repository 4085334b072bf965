"""One partition of the transaction topic at work: a transactions machine, its log, its timer, its markers.

Rules:
- Records are appended in the order of the decisions. An answer goes out when everything that was appended for its
  transactional id is committed; so do the markers.
- Markers are tried until they are written. A partition that no longer exists needs none.
- If an append or a commit fails, memory may be ahead of the log: the machine is thrown away and a new one is built from
  the log, which goes on with what was prepared. Until then: COORDINATOR_LOAD_IN_PROGRESS.
- When another node leads the partition the shard is of no more use, and everyone is told NOT_COORDINATOR. Its markers
  carry the leader epoch of its partition: those of a later coordinator count for more.
- A caller that goes away loses its answer only; what was decided stays decided.
- The log is rewritten as it grows: the live records are appended again, then everything before them is forgotten. A
  crash in between leaves both, and replaying both gives the same state.
- Timeouts are in the loop's monotonic time; the wall clock only dates records and tells idle ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.group_shard import BATCH_BYTES, RETRY_SECONDS, STOP_SECONDS, OffsetsLog, size_of
from headrace.broker.markers import EndMarker
from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.txn.commands import Answer, Command, Decision, Markers, MarkersWritten, Now, Verified, Verify
from headrace.txn.machine import Transactions

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Workers
    from headrace.txn.records import Record, TopicPartition
    from headrace.txn.settings import TransactionSettings

logger = logging.getLogger(__name__)

MARKER_RETRY_SECONDS: Final = 0.05
MARKER_RETRY_SECONDS_MAX: Final = 1.0
# The partition has seen a later epoch of this producer: the transaction that the marker would end is over there.
NEEDS_NO_MARKER: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch})


class TransactionLog(OffsetsLog, Protocol):
    """What transactions need of a partition."""

    @property
    def leader_epoch(self) -> int: ...


class MarkerWriter(Protocol):
    """Writes the markers that end a transaction in a partition, wherever its leader is."""

    async def write(self, marker: EndMarker) -> None:
        """Returns when the marker is committed. Raises ApiError; UNKNOWN_TOPIC_OR_PARTITION if there is none."""


class TransactionShard:
    """See the module."""

    def __init__(
        self,
        log: TransactionLog,
        settings: TransactionSettings,
        markers: MarkerWriter,
        *,
        clock: Clock,
        workers: Workers,
    ) -> None:
        self.machine: Transactions | None = None  # None while it is not loaded
        self._log = log
        self._settings = settings
        self._markers = markers
        self._clock = clock
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._ends: dict[str, int] = {}  # transactional id -> the offset after its last record, until that is committed
        self._loaded_end = 0  # the offset after the last record that was loaded, until that is committed
        self._end = 0  # follows the last record that we know of
        self._ending: dict[str, asyncio.Task[None]] = {}  # transactional id -> who writes its markers
        self._compact_at_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's handle of a moment that has passed does not know it
        self._loading: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._stopped = False
        self._moved = False
        self._epoch = log.leader_epoch  # in which this shard coordinates

    # -- life ----------------------------------------------------------------------------------------------------

    def load(self, after_seconds: float = 0.0) -> asyncio.Task[None]:
        """Build the machine from the log, in the background."""
        if self._loading is None:
            self._loading = self._loop.create_task(self._load(after_seconds))
        return self._loading

    async def _load(self, after_seconds: float) -> None:
        if after_seconds:
            await asyncio.sleep(after_seconds)
        complained = False
        while not self._stopped:
            try:
                machine, end, live_bytes = await self._workers.run(self._build)
            except Exception as error:  # also one that nobody foresaw: who waits shall know why
                if not complained:
                    trace = not isinstance(error, ApiError | StorageError)
                    logger.error("transactions cannot be loaded", exc_info=trace, extra={"reason": str(error)})
                complained = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._compact_at_bytes = max(self._settings.compact_after_bytes, 2 * live_bytes)
            self.machine, self._end, self._loading = machine, end, None
            self._loaded_end = end  # a crash could still take away what was read
            self._act(machine.resume(self._now()))
            return

    def _build(self) -> tuple[Transactions, int, int]:
        """Blocking; in a worker. Nobody else writes to this log."""
        now = self._now()
        machine, end = Transactions(self._settings, now), 0
        for record in self._log.read_all():
            end = record.offset + 1
            if record.key is not None:
                machine.replay(record.key, record.value, now)
        return machine, end, size_of(machine.snapshot())

    async def stop(self) -> None:
        """Write the markers that can be written; the others are written after the next start."""
        self._stopped = True
        if self._ending:
            await asyncio.wait(list(self._ending.values()), timeout=STOP_SECONDS)
        tasks = [*self._ending.values()]
        tasks += [task for task in (self._loading, self._compacting) if task is not None]
        self._abandon()
        if self._loading is not None:
            self._loading.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def resign(self) -> None:
        """Another node leads the partition now, and goes on with what was prepared."""
        self._stopped = self._moved = True
        self._abandon()
        if self._loading is not None:
            self._loading.cancel()

    # -- commands ------------------------------------------------------------------------------------------------

    def put(self, command: Command) -> Answer:
        """Decide now. The answer may go out after `settled`. Raises ApiError."""
        decision = self._ready().decide(command, self._now())
        if not self._act(decision, command.transactional_id):
            raise ApiError(ErrorCode.coordinator_not_available, "The transaction log does not take records.")
        return decision.answer

    async def ask(self, command: Command) -> Answer:
        """Decide now; return when the answer may go out. Raises ApiError."""
        answer = self.put(command)
        await self.settled(command.transactional_id)
        return answer

    async def verify(self, command: Verify) -> Verified:
        """Whether the partitions are in the transaction, at the moment of the return: an append that follows without
        awaiting comes before every marker that ends this transaction. Raises ApiError."""
        while True:
            answer = self._ready().decide(command, self._now()).answer
            assert isinstance(answer, Verified)
            if not self._open_end(command.transactional_id):
                return answer
            await self.settled(command.transactional_id)

    async def settle(self) -> None:
        """Wait until everything that was decided is committed. Raises ApiError."""
        self._ready()
        await self._commit(self._end)

    async def ended(self, name: str, seconds: float) -> bool:
        """Wait for the transaction that is prepared to end; False if none is, or if time is up."""
        task = self._ending.get(name)
        if task is None:
            return False
        done, _ = await asyncio.wait([task], timeout=seconds)
        return bool(done)

    def _ready(self) -> Transactions:
        if self.machine is None:
            if self._moved:
                raise ApiError(ErrorCode.not_coordinator, "The transactional id has another coordinator now.")
            stopped = self._stopped
            raise ApiError(
                ErrorCode.coordinator_not_available if stopped else ErrorCode.coordinator_load_in_progress,
                f"The transaction coordinator is {'stopping' if stopped else 'loading'}.",
            )
        return self.machine

    async def settled(self, name: str) -> None:
        """Wait until all records of this id are committed. Raises ApiError."""
        if end := self._open_end(name):
            await self._commit(end)
            if end == self._loaded_end:
                self._loaded_end = 0
            elif self._ends.get(name) == end:
                del self._ends[name]

    def _open_end(self, name: str) -> int:
        """The offset that must be committed before anyone is told about this id, or 0."""
        return self._ends.get(name, self._loaded_end)

    async def _commit(self, end: int) -> None:
        machine = self.machine
        try:
            await self._log.committed(end)
        except (ApiError, StorageError) as error:
            if machine is self.machine is not None:
                self._rebuild(error)
            moved = self._moved or (isinstance(error, ApiError) and error.code is ErrorCode.not_leader_or_follower)
            code = ErrorCode.not_coordinator if moved else ErrorCode.coordinator_not_available
            raise ApiError(code, str(error)) from error

    def _now(self) -> Now:
        return Now(round(self._loop.time() * 1000), self._clock.now_ms())

    def _act(self, decision: Decision, name: str | None = None) -> bool:
        """Append what was decided, and see to its markers; False if it cannot be appended."""
        if decision.records:
            if not self._append(decision.records):
                return False
            if name is not None:
                self._ends[name] = self._end
        for markers in decision.markers:
            self._ends[markers.transactional_id] = self._end
            task = self._loop.create_task(self._finish(markers))
            self._ending[markers.transactional_id] = task
        self._arm()
        if self._compacting is None and self._log.log.size_bytes > self._compact_at_bytes:
            self._compacting = self._loop.create_task(self._compact())
        return True

    def _append(self, records: Sequence[Record]) -> bool:
        batch: list[Record] = []
        size = 0
        try:
            for record in records:
                batch.append(record)
                size += size_of((record,))
                if size >= BATCH_BYTES:
                    self._end = self._log.append_internal(batch)
                    batch, size = [], 0
            if batch:
                self._end = self._log.append_internal(batch)
        except (ApiError, StorageError) as error:
            self._rebuild(error)
            return False
        return True

    # -- markers -------------------------------------------------------------------------------------------------

    async def _finish(self, markers: Markers) -> None:
        """Once the end is decided for good: write it to the partitions, then note that it is written."""
        name = markers.transactional_id
        try:
            await self.settled(name)
        except ApiError:
            return  # the machine that decided this is gone; the next one goes on with what the log has
        if len(markers.partitions) == 1:
            await self._mark(markers, markers.partitions[0])
        else:
            await asyncio.gather(*(self._mark(markers, partition) for partition in markers.partitions))
        if self._ending.get(name) is asyncio.current_task():
            del self._ending[name]
        if self.machine is None:
            return
        written = MarkersWritten(
            transactional_id=name, producer_id=markers.producer_id, producer_epoch=markers.producer_epoch
        )
        self._act(self.machine.decide(written, self._now()), name)

    async def _mark(self, markers: Markers, partition: TopicPartition) -> None:
        seconds = MARKER_RETRY_SECONDS
        about = {"transactional_id": markers.transactional_id, "topic": partition[0], "partition": partition[1]}
        producer = markers.producer_id, markers.producer_epoch
        marker = EndMarker(*partition, *producer, markers.commit, self._epoch, markers.bumped)
        while True:
            try:
                await self._markers.write(marker)
                return
            except ApiError as error:
                if error.code in NEEDS_NO_MARKER:
                    logger.warning("a partition takes no marker", extra={**about, "reason": str(error)})
                    return
                reason = str(error)
            except Exception as error:
                logger.exception("a marker cannot be written", extra=about)
                reason = str(error)
            if seconds == MARKER_RETRY_SECONDS:
                logger.warning("a marker is tried again", extra={**about, "reason": reason})
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, MARKER_RETRY_SECONDS_MAX)

    # -- trouble -------------------------------------------------------------------------------------------------

    def _rebuild(self, error: Exception) -> None:
        logger.error("transactions lost their log; they are loaded again", extra={"reason": str(error)})
        self._abandon()
        if not self._stopped:
            # Not at once: it would write its markers again only to find the disk as full as before.
            self.load(RETRY_SECONDS)

    def _abandon(self) -> None:
        """Forget the machine. Those who wait for a commit are told by the log."""
        self.machine = None
        self._ends, self._loaded_end = {}, 0
        ending, self._ending = self._ending, {}
        for task in (*ending.values(), self._compacting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._compacting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
        """Write the live records again, some at a time, then forget all that came before them.

        What changes meanwhile is appended in between; since each id is written as it is at that moment, the last record
        of every key is always the true one.
        """
        machine = self.machine
        first, size, live_bytes = self._end, 0, 0
        batch: list[Record] = []
        for name in [] if machine is None else machine.names():
            assert machine is not None
            for record in machine.snapshot((name,)):
                batch.append(record)
                size += size_of((record,))
            if size < BATCH_BYTES:
                continue
            if not self._append(batch):
                return
            live_bytes += size
            batch, size = [], 0
            await asyncio.sleep(0)
        live_bytes += size
        if batch and not self._append(batch):
            return
        try:
            await self._log.committed(self._end)
            self._log.delete_before(first)
        except (ApiError, StorageError) as error:
            self._rebuild(error)
            return
        self._compact_at_bytes = self._log.log.size_bytes + max(self._settings.compact_after_bytes, live_bytes)
        self._compacting = None
