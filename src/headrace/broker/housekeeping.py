"""What a broker does by the clock: retention, rolls, producer expiry, interval flushes, checkpoints, the catalog.

Rules:
- Every round does a little and yields to the loop between partitions.
- A fault of one log is its own: the round goes on with the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.core.errors import PassingError, StorageError

if TYPE_CHECKING:
    from headrace.broker.cataloguing import Cataloguing
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.core.ports import Clock
    from headrace.storage.settings import StorageSettings

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = 0.5
CHECKPOINT_SECONDS = 5.0
CATALOG_SECONDS = 2.0
DOUBT_SECONDS = 0.5  # for which batches that were read and found whole are believed
NEVER_MS = 2**53  # no timer is set for so long


class Housekeeping:
    """See the module."""

    def __init__(
        self,
        partitions: Partitions,
        flusher: Flusher,
        settings: StorageSettings,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._flusher = flusher
        self._settings = settings
        self._clock = clock
        self._cataloguing: Cataloguing | None = None
        self._dirty: dict[Partition, int] = {}
        self._timers: dict[Partition, asyncio.TimerHandle] = {}  # of topics with a `flush.ms` of their own
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, cataloguing: Cataloguing | None) -> None:
        self._cataloguing = cataloguing
        rounds = (
            (EXPIRY_SECONDS, self._expire_waits),
            (self._settings.flush_interval_ms / 1000, self._flush_dirty),
            (CHECKPOINT_SECONDS, self._checkpoint),
            (CATALOG_SECONDS, self._catalogue),
            (DOUBT_SECONDS, self._doubt),
            (self._settings.retention_check_interval_ms / 1000, self._retain),
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._repeat(seconds, work)) for seconds, work in rounds]

    async def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def touched(self, partition: Partition) -> None:
        """`partition` has new bytes: sync them now, soon, or leave it to the system, as its topic says."""
        if partition.durable_ack:
            self._flusher.request(partition)
            return
        log, config = partition.log, partition.log.config
        if config.storage != "disk":
            return
        if log.end_offset - log.flushed_offset >= config.flush_messages:
            self._flusher.request(partition)
        elif config.flush_ms < NEVER_MS and partition not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[partition] = loop.call_later(config.flush_ms / 1000, self._flush_by_time, partition)
        if config.flush == "interval":
            since = self._dirty.setdefault(partition, log.size_bytes)
            if log.size_bytes - since >= self._settings.flush_interval_bytes:
                del self._dirty[partition]
                self._flusher.request(partition)

    def _flush_by_time(self, partition: Partition) -> None:
        del self._timers[partition]
        if partition.log.failed is None:
            self._flusher.request(partition)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                logger.exception("a round of housekeeping failed", extra={"work": work.__name__})

    async def _expire_waits(self) -> None:
        now = asyncio.get_running_loop().time()
        for partition in self._partitions:
            partition.expire_commits(now)

    async def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            self._flusher.request(partition)

    async def _checkpoint(self) -> None:
        for partition in self._partitions:
            log = partition.log
            if partition.durable_ack and log.recovery_point != log.end_offset:
                self._flusher.request(partition, checkpoint=True)
        await self._partitions.known.checkpoint(self._partitions)

    async def _doubt(self) -> None:
        for partition in self._partitions:
            partition.log.doubt()

    async def _catalogue(self) -> None:
        if self._cataloguing is not None:
            await self._cataloguing.update()

    async def _retain(self) -> None:
        now_ms = self._clock.now_ms()

        def retain(partition: Partition) -> None:
            if not partition.leads:  # a follower's log begins where its leader's does
                partition.log.producers.expire(now_ms, partition.log.producer_expiry_ms)
                return
            rolled = partition.log.roll_if_due(now_ms)
            removed = partition.log.retain(now_ms, limit_offset=partition.high_watermark)
            if rolled or removed:
                self._flusher.request(partition)  # files go with the next sync
            if removed:
                about = {"topic": partition.topic, "partition": partition.index, "segments": len(removed)}
                logger.info("retention removed segments", extra=about)

        await self._each(retain)

    async def _each(self, work: Callable[[Partition], object]) -> None:
        for partition in list(self._partitions):
            if partition.log.failed is None:
                try:
                    work(partition)
                except PassingError as error:
                    logger.warning("housekeeping found the disk full", extra={"reason": str(error)})
                except StorageError as error:
                    partition.fail(error)
            await asyncio.sleep(0)
