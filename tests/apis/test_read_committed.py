"""Fetch and ListOffsets for readers of committed records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.apis import fetch, list_offsets
from headrace.apis.api import Api, Context, Encoded
from headrace.broker.turns import Turns
from headrace.testing.partitions import flush, open_partition, write
from headrace.testing.sim.loop import SimLoop
from headrace.testing.transactions import committed_in
from headrace.wire import messages

UNCOMMITTED, COMMITTED = 0, 1


class Workers:
    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


class Stage:
    def __init__(self, *, durable: bool = False) -> None:
        self.partition = open_partition(durable=durable)
        turns = count()
        self.service: Any = SimpleNamespace(
            turns=Turns(time.monotonic),
            partitions=SimpleNamespace(get=lambda topic, index: self.partition),
            check_epoch=lambda partition, epoch: None,
            count_error=lambda api, code: None,
            topic_name=lambda topic_id: "orders",
            next_turn=lambda: next(turns),
            workers=Workers(),
        )

    async def call(self, api: Api, version: int, **fields: Any) -> Any:
        request = messages.decode_request(api.key, version, messages.encode_request(api.key, version, fields))
        answer = api.handle(Context(self.service, version, "", ""), request)
        answer = await answer if isinstance(answer, Awaitable) else answer
        if isinstance(answer, Encoded):
            return messages.decode_response(api.key, version, b"".join(bytes(part) for part in answer.parts))
        assert isinstance(answer, dict)
        return messages.decode_response(api.key, version, messages.encode_answer(api.key, version, answer))

    async def fetch(self, offset: int = 0, *, level: int = COMMITTED, wait_ms: int = 0, version: int = 12) -> Any:
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        answer = await self.call(
            fetch.API,
            version,
            replica_id=-1,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=level,
            topics=[{"topic": "orders", "partitions": [part]}],
        )
        return answer.responses[0].partitions[0]

    async def values(self, offset: int = 0) -> list[bytes | None]:
        row = await self.fetch(offset)
        aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions]
        return [value for _, value in committed_in(bytes(row.records or b""), aborted, offset=offset)]

    async def list(self, timestamp: int, level: int = COMMITTED) -> int:
        answer = await self.call(
            list_offsets.API,
            5,
            replica_id=-1,
            isolation_level=level,
            topics=[{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
        )
        return int(answer.topics[0].partitions[0].offset)

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.partition.write_marker(producer_id, 0, commit=commit, coordinator_epoch=0)


def scenario(work: Callable[[Stage], Awaitable[None]], *, durable: bool = False) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await work(Stage(durable=durable))

    SimLoop().run_until_complete(run())


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])
def test_an_open_transaction_ends_what_is_returned(version: int) -> None:
    async def work(stage: Stage) -> None:
        write(stage.partition, b"plain")
        write(stage.partition, b"a", 7)
        write(stage.partition, b"later")
        committed = await stage.fetch(version=version)
        everything = await stage.fetch(version=version, level=UNCOMMITTED)
        assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
        assert (everything.high_watermark, everything.last_stable_offset) == (3, 1)
        assert len(everything.records) > len(committed.records) > 0
        assert committed.aborted_transactions == ()
        assert everything.aborted_transactions is None
        assert not (await stage.fetch(1, version=version)).records

    scenario(work)


def test_aborted_records_can_be_left_out_wherever_a_fetch_begins() -> None:
    async def work(stage: Stage) -> None:
        write(stage.partition, b"a", 7)
        write(stage.partition, b"b", 8)
        write(stage.partition, b"c", 7, sequence=1)
        stage.end(7, commit=False)
        write(stage.partition, b"d")
        stage.end(8, commit=True)
        write(stage.partition, b"e", 7, sequence=2)
        stage.end(7, commit=False)
        for offset in range(9):
            expected = [value for at, value in ((1, b"b"), (4, b"d")) if at >= offset]
            assert await stage.values(offset) == expected, offset
        everything = await stage.fetch(level=UNCOMMITTED)
        assert everything.aborted_transactions is None

    scenario(work)


def test_a_waiting_fetch_is_answered_when_the_transaction_has_ended() -> None:
    async def work(stage: Stage) -> None:
        write(stage.partition, b"a", 7)
        flush(stage.partition)
        waiting = asyncio.ensure_future(stage.fetch(wait_ms=5000))
        uncommitted = asyncio.ensure_future(stage.fetch(1, level=UNCOMMITTED, wait_ms=5000))
        await asyncio.sleep(0)
        for _ in range(2):
            write(stage.partition, b"more")
            flush(stage.partition)
            await asyncio.sleep(0)
        assert not waiting.done()
        assert (await uncommitted).records
        stage.end(7, commit=True)
        await asyncio.sleep(0)
        assert not waiting.done(), "the marker is not durable"
        flush(stage.partition)
        row = await waiting
        assert row.last_stable_offset == row.high_watermark == 4
        assert row.records

    scenario(work, durable=True)


def test_the_latest_offset_is_the_last_stable_one() -> None:
    async def work(stage: Stage) -> None:
        write(stage.partition, b"plain")
        write(stage.partition, b"a", 7)
        assert await stage.list(list_offsets.LATEST) == 1
        assert await stage.list(list_offsets.LATEST, UNCOMMITTED) == 2
        stage.end(7, commit=True)
        assert await stage.list(list_offsets.LATEST) == 3

    scenario(work)


def test_a_search_by_time_finds_nothing_that_is_not_stable() -> None:
    async def work(stage: Stage) -> None:
        write(stage.partition, b"a", 7)
        assert await stage.list(1) == -1
        assert await stage.list(1, UNCOMMITTED) == 0
        stage.end(7, commit=True)
        assert await stage.list(1) == 0

    scenario(work)
