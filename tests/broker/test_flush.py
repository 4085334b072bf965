"""High watermark, group commit and waiting, over a real log on files that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.flusher import Flusher
from headrace.broker.partition import Partition
from headrace.broker.waiting import Commit, Poll
from headrace.core.counters import Counters, Traffic
from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.storage.log import Log
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.wire import batch


class Clock:
    def now_ms(self) -> int:
        return 1_000_000

    def monotonic(self) -> float:
        return 0.0


class GatedWorkers:
    """Runs work only when the test lets it: a disk whose speed the test decides."""

    def __init__(self) -> None:
        self.queue: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def run(self, work: Callable[[], Any]) -> Awaitable[Any]:
        future = asyncio.get_running_loop().create_future()
        self.queue.append((work, future))
        return future

    def let_go(self) -> int:
        queue, self.queue = self.queue, []
        for work, future in queue:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        return len(queue)


class Stage:
    """One partition with everything around it."""

    def __init__(self, flush: str = "ack") -> None:
        self.files = FaultyFiles()
        config = TopicConfig.of({"headrace.flush": flush}, StorageSettings())
        self.log = Log.open(self.files, "topics/t-0", config, now_ms=0)
        self.workers = GatedWorkers()
        self.counters = Counters()
        self.lost: list[StorageError] = []
        self.flusher = Flusher(self.workers, Clock(), self.counters, self._fail)
        self.partition = Partition(
            "t", UUID(int=1), 0, self.log, leader_epoch=0, clock=Clock(), traffic=Traffic(), touched=self._touched
        )

    def _touched(self, partition: Partition) -> None:
        if partition.durable_ack:
            self.flusher.request(partition)

    def _fail(self, error: StorageError) -> None:
        self.lost.append(error)
        self.partition.fail(error)

    def append(self, value: bytes = b"v") -> int:
        data = bytearray(batch.build([(None, value)], timestamp_ms=1_000_000))
        return self.partition.append(data, list(batch.headers(data))).last_offset + 1

    def wait_for(self, next_offset: int) -> asyncio.Future[str]:
        commit: Commit[str] = Commit(lambda: commit.error.code.name if commit.error else "committed")
        assert self.partition.when_committed(next_offset, commit)
        return commit.begin(1)


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def stage_test(test: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test(Stage())

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@stage_test
async def test_nothing_is_committed_before_it_is_synced(stage: Stage) -> None:
    answer = stage.wait_for(stage.append())
    await turns()
    assert stage.partition.high_watermark == 0 and not answer.done()
    stage.workers.let_go()
    assert await answer == "committed"
    assert stage.partition.high_watermark == 1


@stage_test
async def test_one_sync_serves_all_that_came_while_the_last_one_ran(stage: Stage) -> None:
    first = stage.wait_for(stage.append())
    await turns()
    rest = [stage.wait_for(stage.append()) for _ in range(50)]
    await turns()
    assert stage.workers.let_go() == 1
    await turns()
    assert first.done() and not any(answer.done() for answer in rest)
    assert stage.workers.let_go() == 1, "fifty appends, one sync"
    await turns()
    assert all(answer.done() for answer in rest)


@stage_test
async def test_a_failed_sync_is_never_acknowledged_nor_tried_again(stage: Stage) -> None:
    answer = stage.wait_for(stage.append())
    stage.files.fail("sync")
    await turns()
    stage.workers.let_go()
    assert await answer == "kafka_storage_error"
    assert stage.partition.high_watermark == 0
    with pytest.raises(ApiError) as refused:
        stage.append()
    assert refused.value.code is ErrorCode.kafka_storage_error
    await turns()
    assert stage.workers.let_go() == 0 and len(stage.lost) == 1


@stage_test
async def test_a_disk_that_takes_long_does_not_hold_up_the_loop(stage: Stage) -> None:
    answer = stage.wait_for(stage.append())
    await turns(100)
    assert not answer.done(), "still waiting, and everything else went on"
    stage.workers.let_go()
    await answer


@stage_test
async def test_a_producer_whose_patience_ends_is_told_and_its_records_stay(stage: Stage) -> None:
    next_offset = stage.append()
    commit: Commit[str] = Commit(lambda: commit.error.code.name if commit.error else "committed", deadline=5.0)
    stage.partition.when_committed(next_offset, commit)
    answer = commit.begin(1)
    stage.partition.expire_commits(4.9)
    assert not answer.done()
    stage.partition.expire_commits(5.0)
    assert await answer == "request_timed_out"
    await turns()
    stage.workers.let_go()
    await turns()
    assert stage.partition.high_watermark == next_offset


@stage_test
async def test_a_poll_wakes_when_enough_bytes_are_committed(stage: Stage) -> None:
    poll = Poll(wanted_bytes=150)
    stage.partition.watch(poll)
    waiting = asyncio.ensure_future(poll.wait(3600))
    stage.append(b"x" * 10)
    await turns()
    stage.workers.let_go()
    await turns()
    assert not waiting.done(), "one small batch is not enough"
    stage.append(b"x" * 100)
    await turns()
    stage.workers.let_go()
    await turns()
    assert waiting.done()


@stage_test
async def test_flush_waits_for_what_was_there_when_it_was_asked(stage: Stage) -> None:
    stage.append()
    done = asyncio.ensure_future(stage.flusher.flush(stage.partition))
    await turns()
    assert not done.done()
    stage.workers.let_go()
    await turns()
    assert done.done() and stage.log.flushed_offset == 1


def test_without_flush_on_ack_an_append_is_committed_at_once() -> None:
    async def main() -> None:
        stage = Stage(flush="os")
        assert stage.append() == stage.partition.high_watermark == 1
        assert stage.workers.let_go() == 0

    asyncio.run(main())


def test_a_full_disk_refuses_and_then_goes_on() -> None:
    async def main() -> None:
        stage = Stage(flush="os")
        stage.append()
        stage.files.space_left = 10
        with pytest.raises(ApiError) as refused:
            stage.append(b"x" * 1000)
        assert refused.value.code is ErrorCode.kafka_storage_error
        assert stage.partition.high_watermark == 1
        stage.files.space_left = None
        assert stage.append(b"x" * 1000) == 2

    asyncio.run(main())


def test_a_topic_that_becomes_durable_takes_back_nothing_that_was_seen() -> None:
    async def main() -> None:
        stage = Stage(flush="os")
        stage.append()
        stage.log.config = TopicConfig.of({"headrace.flush": "ack"}, StorageSettings())
        stage.partition.configured()
        assert stage.partition.high_watermark == 1
        answer = stage.wait_for(stage.append())
        await turns()
        stage.workers.let_go()
        assert await answer == "committed"

    asyncio.run(main())
