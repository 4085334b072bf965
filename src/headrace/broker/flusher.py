"""Group commit: one sync for everything that was appended while the last one ran.

Rules:
- Requests are collected for the rest of the loop's turn; while a sync runs, the next group gathers.
- The loop never waits for a disk: syncs run in workers, several files side by side.
- A failed sync is never tried again and never acknowledged; the directory is given up by `on_failure`. One that could
  not begin, because no file could be opened, has not failed: it is tried again, for PATIENCE_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.errors import ApiError, DiskFailedError, DiskFullError, ErrorCode, PassingError, StorageError

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.core.counters import Counters
    from headrace.core.ports import Clock, Workers
    from headrace.storage.log import Sync

PARALLEL_SYNCS = 4
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.1


class Flusher:
    """See the module."""

    def __init__(
        self, workers: Workers, clock: Clock, counters: Counters, on_failure: Callable[[StorageError], None]
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._counters = counters
        self._on_failure = on_failure
        self._waiting: dict[Partition, list[asyncio.Future[None]]] = {}
        self._checkpoints: dict[Partition, None] = {}
        self._running: asyncio.Task[None] | None = None
        self._stuck_since: float | None = None

    def request(self, partition: Partition, *, checkpoint: bool = False) -> None:
        """See that everything appended to `partition` so far gets synced, soon; its recovery point, too, if asked."""
        if checkpoint:
            self._checkpoints[partition] = None
        if partition not in self._waiting:
            self._waiting[partition] = []
            if self._running is None:
                self._running = asyncio.get_running_loop().create_task(self._run(), name="flusher")

    async def flush(self, partition: Partition) -> None:
        """Wait until everything that `partition` holds now is synced. Raises ApiError(kafka_storage_error)."""
        self.request(partition)
        done = asyncio.get_running_loop().create_future()
        self._waiting[partition].append(done)
        await done

    async def drain(self) -> None:
        """Wait until nothing is left to sync."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, {}
                checkpoints, self._checkpoints = self._checkpoints, {}
                if not await self._sync(list(group), checkpoints):
                    for partition, waiting in group.items():
                        self._waiting.setdefault(partition, [])[:0] = waiting
                    self._checkpoints.update(checkpoints)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                self._stuck_since = None
                for partition, waiting in group.items():
                    _settle(waiting, partition.log.failed)
        finally:
            self._running = None

    async def _sync(self, group: list[Partition], checkpoints: dict[Partition, None]) -> bool:
        """False if it could not begin, and may be tried again."""
        pairs = []
        for partition in group:
            if partition.log.failed is None:
                sync = partition.log.begin_sync(checkpoint=partition in checkpoints)
                if sync is not None:
                    pairs.append((partition, sync))
        if not pairs:
            return True
        begun = self._clock.monotonic()
        syncs = [sync for _, sync in pairs]
        lanes = min(PARALLEL_SYNCS, len(syncs))
        lane_work = [self._workers.run(_all(syncs[lane::lanes])) for lane in range(lanes)]
        results = await asyncio.gather(*lane_work, return_exceptions=True)
        self._counters.sync_seconds.observe(self._clock.monotonic() - begun)
        self._counters.sync_logs.observe(len(pairs))
        for result in results:
            if isinstance(result, Exception):
                failure = result if isinstance(result, StorageError) else DiskFailedError(f"sync failed: {result!r}")
                if self._may_wait(failure):
                    return False
                self._on_failure(failure)
                return True
        for partition, sync in pairs:
            partition.log.end_sync(sync)  # also of a log that was given up meanwhile: no worker has it any more
            if partition.log.failed is None:
                partition.advance()
        return True

    def _may_wait(self, failure: StorageError) -> bool:
        """Whether nothing was lost: no descriptor could be had, which passes."""
        if not isinstance(failure, PassingError) or isinstance(failure, DiskFullError):
            return False  # a sync that found no space has begun, and is never tried again
        now = self._clock.monotonic()
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        return now - self._stuck_since < PATIENCE_SECONDS


def _settle(waiting: list[asyncio.Future[None]], fault: StorageError | None) -> None:
    for future in waiting:
        if future.done():
            continue
        if fault is None:
            future.set_result(None)
        else:
            future.set_exception(ApiError(ErrorCode.kafka_storage_error, str(fault)))


def _all(syncs: list[Sync]) -> Callable[[], None]:
    def run() -> None:
        for sync in syncs:
            sync.run()

    return run
