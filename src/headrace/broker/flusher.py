"""Group commit: one sync for everything that was appended while the last one ran.

Rules:
- Requests are collected for the rest of the loop's turn; while a sync runs, the next group gathers.
- The loop never waits for a disk: syncs run in workers, several files side by side.
- A failed sync is never tried again and never acknowledged; the directory is given up by `on_failure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.errors import DiskFailedError, StorageError

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.core.counters import Counters
    from headrace.core.ports import Clock, Workers
    from headrace.storage.log import Sync

PARALLEL_SYNCS = 4


class Flusher:
    """See the module."""

    def __init__(
        self, workers: Workers, clock: Clock, counters: Counters, on_failure: Callable[[StorageError], None]
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._counters = counters
        self._on_failure = on_failure
        self._waiting: dict[Partition, None] = {}
        self._running: asyncio.Task[None] | None = None

    def request(self, partition: Partition) -> None:
        """See that everything appended to `partition` so far gets synced, soon."""
        self._waiting[partition] = None
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="flusher")

    async def drain(self) -> None:
        """Wait until nothing is left to sync."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, {}
                await self._sync(group)
        finally:
            self._running = None

    async def _sync(self, group: dict[Partition, None]) -> None:
        pairs = [(p, sync) for p in group if p.log.failed is None and (sync := p.log.begin_sync()) is not None]
        if not pairs:
            return
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
                self._on_failure(failure)
                return
        for partition, sync in pairs:
            if partition.log.failed is None:
                partition.log.end_sync(sync)
                partition.advance()


def _all(syncs: list[Sync]) -> Callable[[], None]:
    def run() -> None:
        for sync in syncs:
            sync.run()

    return run
