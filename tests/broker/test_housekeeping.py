"""What a broker does by the clock, with the clock in the test's hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from headrace.broker.flusher import Flusher
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.known_logs import KnownLogs
from headrace.broker.partition import Partition
from headrace.core.counters import Counters, Traffic
from headrace.storage.log import Log
from headrace.storage.manifest import Manifest
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.wire import batch

DAY_MS = 24 * 60 * 60 * 1000


class Clock:
    def __init__(self) -> None:
        self.ms = 100 * DAY_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class InlineWorkers:
    """Does the work at once, as a very fast disk would."""

    def run(self, work: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future


class Shelf(list[Partition]):
    """The partitions, as housekeeping sees them."""

    known: KnownLogs

    def __iter__(self) -> Iterator[Partition]:
        return super().__iter__()


class House:
    def __init__(self, configs: dict[str, str], **settings: Any) -> None:
        self.files, self.clock = FaultyFiles(), Clock()
        storage = StorageSettings(**settings)
        log = Log.open(self.files, "topics/t-0", TopicConfig.of(configs, storage), now_ms=self.clock.ms)
        self.flusher = Flusher(InlineWorkers(), self.clock, Counters(), lambda error: None)
        self.shelf = Shelf()
        self.shelf.known = KnownLogs(Manifest(self.files), InlineWorkers())
        self.housekeeping = Housekeeping(self.shelf, self.flusher, storage, self.clock)  # type: ignore[arg-type]
        self.partition = Partition(
            "t",
            UUID(int=1),
            0,
            log,
            leader_epoch=0,
            clock=self.clock,
            traffic=Traffic(),
            touched=self.housekeeping.touched,
        )
        self.shelf.append(self.partition)

    def append(self, size: int = 100) -> None:
        data = bytearray(batch.build([(None, bytes(size))], timestamp_ms=self.clock.ms))
        self.partition.append(data, list(batch.headers(data)))

    async def round(self, name: str) -> None:
        await getattr(self.housekeeping, name)()
        await self.flusher.drain()


def test_retention_by_time_removes_old_segments_and_keeps_offsets() -> None:
    async def main() -> None:
        house = House({"retention.ms": str(DAY_MS), "segment.ms": "1000", "headrace.flush": "os"})
        house.append()
        house.clock.ms += 2 * DAY_MS
        house.append()
        await house.round("_retain")
        assert house.partition.log.start_offset == 1
        assert house.partition.log.end_offset == 2
        assert [path for path in house.files.paths() if path.endswith("00000.log")] == []

    asyncio.run(main())


def test_an_old_segment_is_sealed_even_if_nothing_more_comes() -> None:
    async def main() -> None:
        house = House({"segment.ms": "1000", "headrace.flush": "os"})
        house.append()
        await house.round("_retain")
        assert len(house.partition.log.segments()) == 1
        house.clock.ms += 1001
        await house.round("_retain")
        assert [segment.sealed for segment in house.partition.log.segments()] == [True, False]

    asyncio.run(main())


def test_interval_flushing_syncs_what_was_written_since() -> None:
    async def main() -> None:
        house = House({"headrace.flush": "interval"})
        house.append()
        log = house.partition.log
        assert log.flushed_offset == 0
        assert house.partition.high_watermark == 1, "the acknowledgement does not wait for the interval"
        await house.round("_flush_dirty")
        assert log.flushed_offset == 1

    asyncio.run(main())


def test_interval_flushing_does_not_wait_when_much_was_written() -> None:
    async def main() -> None:
        house = House({"headrace.flush": "interval"}, flush_interval_bytes=1000)
        for _ in range(12):
            house.append()
        await house.flusher.drain()
        assert house.partition.log.flushed_offset > 0

    asyncio.run(main())


def test_the_recovery_point_follows_durable_topics() -> None:
    async def main() -> None:
        house = House({})
        house.append()
        await house.flusher.drain()
        assert house.partition.log.recovery_point == 0
        await house.round("_checkpoint")
        assert house.partition.log.recovery_point == 1

    asyncio.run(main())


def test_a_log_that_fails_in_a_round_does_not_stop_the_others() -> None:
    async def main() -> None:
        first, second = House({}), House({"retention.ms": "1", "segment.ms": "1", "headrace.flush": "os"})
        first.partition.log.failed = None
        second.append()
        second.clock.ms += DAY_MS
        second.append()
        second.shelf.insert(0, first.partition)

        def broken(*args: Any, **more: Any) -> None:
            from headrace.core.errors import DiskFailedError

            raise DiskFailedError("gone")

        class Broken:
            failed = None
            config = first.partition.log.config
            roll_if_due = retain = staticmethod(broken)

            def fail(self, error: Any) -> None:
                self.failed = error

        first.partition.log = Broken()  # type: ignore[assignment]
        await second.round("_retain")
        assert first.partition.log.failed is not None
        assert second.partition.log.start_offset == 1

    asyncio.run(main())
