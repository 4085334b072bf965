"""The driver of compaction: which log, when, and what happens when something else comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.cleaning import Cleaning
from headrace.broker.flusher import Flusher
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.partition import Partition
from headrace.core.counters import Counters, Traffic
from headrace.storage.log import Log, verify
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import read_records
from headrace.testing.sim.loop import SimLoop
from headrace.wire import batch

EAGER = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.ms": "100",
    "file.delete.delay.ms": "5",
}


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Here:
    """Workers that work at once; `before` may come between."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None

    def run(self, work: Callable[[], Any]) -> Awaitable[Any]:
        async def go() -> Any:
            await asyncio.sleep(0)
            self.before()
            return work()

        return asyncio.ensure_future(go())


class Stage:
    """Some partitions with everything around them."""

    def __init__(self) -> None:
        self.files = FaultyFiles()
        self.clock = Clock()
        self.workers = Here()
        self.counters = Counters()
        self.partitions: list[Partition] = []
        self.suspects: list[Partition] = []
        settings = StorageSettings()
        self.flusher = Flusher(self.workers, self.clock, self.counters, self.lost)
        self.housekeeping = Housekeeping(self, self.flusher, settings, self.clock)  # type: ignore[arg-type]
        self.cleaning = Cleaning(
            self,  # type: ignore[arg-type]
            self.flusher,
            settings,
            clock=self.clock,
            workers=self.workers,
            counters=self.counters,
            on_failure=self.lost,
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def lost(self, error: Exception) -> None:
        raise AssertionError(error)

    def suspect(self, partition: Partition, check: Callable[[], object], error: Exception) -> bool:
        self.suspects.append(partition)
        with pytest.raises(type(error)):
            check()
        return False

    def add(self, topic: str, **configs: str) -> Partition:
        overrides = {**EAGER, **{name.replace("_", "."): text for name, text in configs.items()}}
        config = TopicConfig.of(overrides, StorageSettings())
        log = Log.open(self.files, f"topics/{topic}-0", config, now_ms=0)
        partition = Partition(
            topic,
            UUID(int=1),
            0,
            log,
            leader_epoch=0,
            clock=self.clock,
            traffic=Traffic(),
            touched=self.housekeeping.touched,
        )
        self.partitions.append(partition)
        return partition

    async def fill(self, partition: Partition, count: int, keys: int = 3) -> None:
        for number in range(count):
            items = [(b"k%d" % (number % keys), b"%d" % number)]
            data = bytearray(batch.build(items, timestamp_ms=self.clock.ms))
            partition.append(data, list(batch.headers(data)))
        await self.flusher.drain()

    async def round(self, milliseconds: int = 200) -> None:
        self.clock.ms += milliseconds
        await self.cleaning.round()
        await self.flusher.drain()


def test_a_log_is_rolled_and_compacted_when_its_segment_is_old_enough() -> None:
    async def scenario() -> None:
        stage = Stage()
        partition = stage.add("orders")
        await stage.fill(partition, 50)
        await stage.round(100)
        assert len(read_records(partition.log)) == 50
        await stage.round(1)
        assert [offset for offset, _ in read_records(partition.log)] == [47, 48, 49]
        assert partition.log.mark.first_dirty_offset == partition.log.end_offset == 50
        assert stage.counters.cleaner.passes == 1
        assert stage.counters.cleaner.bytes_read > 0 < stage.counters.cleaner.bytes_written
        await stage.round()
        assert not [path for path in stage.files.paths() if path.endswith((".cleaned", ".swap"))]
        assert stage.counters.cleaner.passes == 1, "nothing was left to do"
        assert stage.counters.cleaner.cleanable["orders", 0].dirty_ratio == 0

    asyncio.run(scenario())


def test_a_log_that_is_not_synced_by_others_is_synced_to_be_compacted() -> None:
    async def scenario() -> None:
        stage = Stage()
        partition = stage.add("orders", headrace_flush="os")
        await stage.fill(partition, 20)
        await stage.round()
        assert len(read_records(partition.log)) == 3

    asyncio.run(scenario())


def test_topics_that_only_delete_and_those_of_coordinators_are_left_alone() -> None:
    async def scenario() -> None:
        stage = Stage()
        logs = [stage.add("plain", cleanup_policy="delete"), stage.add("__consumer_offsets")]
        for partition in logs:
            await stage.fill(partition, 20)
        await stage.round()
        assert [len(read_records(partition.log)) for partition in logs] == [20, 20]

    asyncio.run(scenario())


def test_the_dirtiest_log_comes_first() -> None:
    async def scenario() -> None:
        stage = Stage()
        clean, dirty = stage.add("clean"), stage.add("dirty")
        await stage.fill(clean, 300, keys=300)
        await stage.round()
        await stage.fill(clean, 20)
        await stage.fill(dirty, 20)
        order = []
        compact = stage.cleaning._compact

        async def watched(partition: Partition, dirt: Any) -> None:
            order.append(partition.topic)
            await compact(partition, dirt)

        stage.cleaning._compact = watched  # type: ignore[method-assign]
        await stage.round()
        assert order == ["dirty", "clean"]

    asyncio.run(scenario())


def test_readers_and_writers_go_on_while_a_log_is_compacted() -> None:
    async def scenario() -> None:
        stage = Stage()
        partition = stage.add("orders")
        partition.log.config = replace(partition.log.config, segment_bytes=2000)
        await stage.fill(partition, 400)
        written = 400

        def between() -> None:
            nonlocal written
            stage.workers.before = lambda: None
            data = bytearray(batch.build([(b"new", b"%d" % written)], timestamp_ms=stage.clock.ms))
            partition.append(data, list(batch.headers(data)))
            written += 1
            found = dict(read_records(partition.log))
            assert [found[offset] for offset in range(397, 400)] == [b"397", b"398", b"399"]
            if written < 460:
                stage.workers.before = between

        stage.workers.before = between
        await stage.round()
        assert partition.log.end_offset == written == 460
        assert verify(partition.log) == []
        kept = [offset for offset, _ in read_records(partition.log) if offset < partition.log.mark.first_dirty_offset]
        assert [offset for offset in kept if offset < 400] == [397, 398, 399]

    asyncio.run(scenario())


def test_a_damaged_log_is_left_alone_and_the_others_are_not() -> None:
    async def scenario() -> None:
        stage = Stage()
        bad, good = stage.add("bad"), stage.add("good")
        for partition in (bad, good):
            await stage.fill(partition, 30)
        stage.files.flip(f"topics/bad-0/{0:020d}.log", 8 * 200)
        await stage.round()
        await stage.round()
        assert stage.counters.cleaner.faults == 1
        assert stage.suspects == [bad]
        assert len(read_records(good.log)) == 3
        assert bad.log.failed is None, "what is not damaged can still be read"

    asyncio.run(scenario())


def test_a_full_disk_is_tried_again() -> None:
    async def scenario() -> None:
        stage = Stage()
        partition = stage.add("orders")
        await stage.fill(partition, 50)
        stage.clock.ms += 101
        partition.log.roll_if_due(stage.clock.ms)
        await stage.flusher.flush(partition)
        stage.files.space_left = 10
        await stage.round()
        assert len(read_records(partition.log)) == 50
        assert not [path for path in stage.files.paths() if path.endswith(".cleaned")]
        stage.files.heal()
        await stage.round()
        assert len(read_records(partition.log)) == 3

    asyncio.run(scenario())


def test_a_topic_that_is_deleted_meanwhile_ends_the_pass() -> None:
    async def scenario() -> None:
        stage = Stage()
        partition = stage.add("orders")
        await stage.fill(partition, 50)
        steps = 0

        def before() -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                stage.partitions.clear()
                partition.log.delete()

        stage.workers.before = before
        await stage.round()
        assert stage.files.paths() == []

    asyncio.run(scenario())


def test_stopping_undoes_what_is_not_finished() -> None:
    async def scenario() -> None:
        stage = Stage()
        partition = stage.add("orders")
        await stage.fill(partition, 50)
        stage.workers.before = stage.cleaning._stop.set
        await stage.round()
        assert len(read_records(partition.log)) == 50
        assert not [path for path in stage.files.paths() if path.endswith(".cleaned")]

    asyncio.run(scenario())


def test_flush_messages_and_flush_ms_force_a_sync() -> None:
    async def scenario() -> None:
        stage = Stage()
        by_count = stage.add("count", headrace_flush="os", flush_messages="10")
        by_time = stage.add("time", headrace_flush="os", flush_ms="20")
        never = stage.add("never", headrace_flush="os")
        for partition in (by_count, by_time, never):
            await stage.fill(partition, 9)
        assert by_count.log.flushed_offset == 0
        await stage.fill(by_count, 1)
        assert by_count.log.flushed_offset == 10
        assert by_time.log.flushed_offset == 0
        await asyncio.sleep(0.019)
        assert by_time.log.flushed_offset == 0
        await asyncio.sleep(0.002)
        assert by_time.log.flushed_offset == 9
        assert never.log.flushed_offset == 0

    SimLoop().run_until_complete(scenario())
