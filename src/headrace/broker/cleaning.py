"""Compaction at work: which log is next, how fast, and what became of it.

Rules:
- One log at a time, the dirtiest first. The topics of coordinators are not ours: they rewrite their logs themselves.
- The loop only plans and swaps objects. Reading and writing happen in a worker, in slices of half a millisecond, so
  that the interpreter's lock is never held for long. While clients are at work there is a rest after each slice.
- No more than `storage.cleaner_bytes_per_second` are read and written.
- What is wrong with one log is its own: a damaged one is left alone until the next start, unless other replicas have it
  whole (`broker/log_faults.py`); a full disk is tried again.
- `stop` waits for the slice that runs; what was not finished is undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.core.counters import Cleanable
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, PassingError, StorageError
from headrace.core.limits import INTERNAL_TOPICS
from headrace.storage.compaction import Compaction, Dirt, lags_behind, survey
from headrace.storage.log import Log, verify
from headrace.storage.swapping import complete, finish, install, reap

if TYPE_CHECKING:
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.core.counters import Counters
    from headrace.core.ports import Clock, Workers
    from headrace.storage.settings import StorageSettings
    from headrace.storage.swapping import Swap

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.0005
POLITE = 3.0  # while requests are answered, a rest is so many times as long as the slice before
LONG_SECONDS = 0.05  # a shorter rest is not broken off
FULL_SECONDS = 1.0  # until a full disk is tried again


class Cleaning:
    """See the module."""

    def __init__(
        self,
        partitions: Partitions,
        flusher: Flusher,
        settings: StorageSettings,
        *,
        clock: Clock,
        workers: Workers,
        counters: Counters,
        on_failure: Callable[[StorageError], None],
    ) -> None:
        """`on_failure` gives the data directory up."""
        self._partitions = partitions
        self._flusher = flusher
        self._settings = settings
        self._clock = clock
        self._workers = workers
        self._counters = counters.cleaner
        self._requests = counters.requests
        self._answered = 0
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._spoilt: set[Partition] = set()  # logs that must not be compacted
        self._postponed = False  # the disk is full: this round is over

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cleaner")

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not await self._rest(self._settings.cleaner_interval_ms / 1000):
            try:
                await self.round()
            except Exception:
                logger.exception("a round of compaction failed")

    async def _rest(self, seconds: float) -> bool:
        """True if it is time to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass
        return self._stop.is_set()

    async def round(self) -> None:
        """Compact everything that is due."""
        await self._prepare()
        self._postponed = False
        while not (self._postponed or self._stop.is_set()) and (chosen := self._dirtiest()) is not None:
            await self._compact(*chosen)

    async def _prepare(self) -> None:
        """Seal what is old enough, make sealed segments durable, let go of what was replaced."""
        now_ms = self._clock.now_ms()
        waiting = []
        for partition in list(self._partitions):
            log = partition.log
            if log.failed is not None:
                continue
            reap(log, now_ms)
            if self._is_ours(partition) and (log.roll_if_due(now_ms) or lags_behind(log)):
                self._flusher.request(partition, checkpoint=True)
                waiting.append(partition)
        for partition in waiting:
            await self._flush(partition)

    def _is_ours(self, partition: Partition) -> bool:
        return (
            partition.log.config.compacts and partition.topic not in INTERNAL_TOPICS and partition not in self._spoilt
        )

    def _dirtiest(self) -> tuple[Partition, Dirt] | None:
        now_ms = self._clock.now_ms()
        found: tuple[Partition, Dirt] | None = None
        cleanable: dict[tuple[str, int], Cleanable] = {}
        for partition in self._partitions:
            log = partition.log
            if not self._is_ours(partition) or log.failed is not None:
                continue
            dirt = survey(log, now_ms, partition.last_stable_offset)
            cleanable[partition.topic, partition.index] = Cleanable(
                dirt.ratio, dirt.dirty_bytes, dirt.first_dirty_offset
            )
            if dirt.is_due(log.config.min_cleanable_dirty_ratio) and (found is None or dirt.ratio > found[1].ratio):
                found = partition, dirt
        self._counters.cleanable = cleanable
        return found

    async def _compact(self, partition: Partition, dirt: Dirt) -> None:
        begun, size_bytes = self._clock.monotonic(), partition.log.size_bytes
        map_bytes = self._settings.cleaner_map_bytes
        work = Compaction(partition.log, dirt, now_ms=self._clock.now_ms(), map_bytes=map_bytes)
        try:
            finished = await self._work(partition, work)
        except StorageError as error:
            finished = False
            self._failed(partition, work, error)
        if not finished:
            await self._workers.run(partial(_quietly, work.abandon))
        counters = self._counters
        counters.bytes_read += work.bytes_read
        counters.bytes_written += work.bytes_written
        counters.last_seconds = self._clock.monotonic() - begun
        counters.passes += finished
        if finished:
            logger.info(
                "a log was compacted",
                extra={
                    "topic": partition.topic,
                    "partition": partition.index,
                    "bytes_before": size_bytes,
                    "bytes_after": partition.log.size_bytes,
                    "seconds": round(counters.last_seconds, 3),
                },
            )

    async def _work(self, partition: Partition, work: Compaction) -> bool:
        """False if the pass must be abandoned."""
        log = partition.log
        begun = self._clock.monotonic()
        while not work.finished:
            started = self._clock.monotonic()
            swap = await self._workers.run(partial(work.step, self._slice()))
            took = self._clock.monotonic() - started
            if log.failed is not None or (swap is not None and not install(log, swap, self._clock.now_ms())):
                if swap is not None:
                    await self._workers.run(partial(_quietly, swap.discard))
                return False
            if swap is not None:
                await self._swap(partition, swap)
            done_bytes = work.bytes_read + work.bytes_written
            ahead = done_bytes / self._settings.cleaner_bytes_per_second - (self._clock.monotonic() - begun)
            await self._give_way(ahead, took)
            if self._stop.is_set():
                return False
        finish(log, work.first_dirty_offset, work.gone)
        await self._flush(partition)
        return log.failed is None

    async def _give_way(self, seconds: float, took: float) -> None:
        """Rest for the sake of the rate limit, and of clients if there are any at work.

        A slice that took long met a busy machine: the rest is long, too.
        """
        answered = sum(sum(histogram.counts) for histogram in self._requests.values())
        if answered != self._answered:
            self._answered = answered
            seconds = max(seconds, min(took * POLITE, LONG_SECONDS))
        if seconds > LONG_SECONDS:
            await self._rest(seconds)
        elif seconds > 0:
            await asyncio.sleep(seconds)

    async def _swap(self, partition: Partition, swap: Swap) -> None:
        """Nothing is dropped from the log until it is done. If the broker stops before, the next start settles it."""
        log = partition.log
        await self._flush(partition)
        while log.failed is None:
            try:
                await self._workers.run(swap.run)
                if swap.done:
                    complete(log, swap)
                return
            except PassingError as error:
                logger.warning("a swap of segments has to wait", extra={"reason": str(error)})
                if await self._rest(FULL_SECONDS):
                    return
            except StorageError as error:
                if log.failed is None:
                    self._on_failure(error)
                return

    def _slice(self) -> Callable[[], bool]:
        monotonic = self._clock.monotonic
        end: float | None = None

        def go_on() -> bool:
            nonlocal end
            now = monotonic()
            if end is None:
                end = now + SLICE_SECONDS  # it begins when a worker begins
            return now < end and not self._stop.is_set()

        return go_on

    async def _flush(self, partition: Partition) -> None:
        try:
            await self._flusher.flush(partition)
        except ApiError:
            pass  # the log has failed, and says so itself

    def _failed(self, partition: Partition, work: Compaction, error: StorageError) -> None:
        if work.overtaken or partition.log.failed is not None:
            return  # retention or deletion was faster
        about = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
        if isinstance(error, DiskFailedError | CorruptionError):
            self._spoilt.add(partition)
            self._counters.faults += 1
            logger.error("a log cannot be compacted; it is left alone", extra=about)
            self._partitions.suspect(partition, partial(_check, partition.log), error)
        else:
            self._postponed = True
            logger.warning("compaction has to wait", extra=about)


def _check(log: Log) -> None:
    """Read all that compaction reads of a log. Blocking. Raises StorageError."""
    for fault in verify(log, sealed_only=True):
        raise CorruptionError(f"{log.path}: offset {fault.offset}, position {fault.position}: {fault.reason}")


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except StorageError as error:
        logger.warning("compaction left a file behind", extra={"reason": str(error)})
