"""Offsets committed within transactions: real partitions, markers, restarts, the rewriting of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from headrace.apis import offset_fetch
from headrace.apis.api import Context
from headrace.broker.groups import GroupCoordinator
from headrace.broker.partition import Partition
from headrace.broker.turns import Turns
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.commands import OffsetToCommit
from headrace.group.settings import GroupSettings
from headrace.storage.memory import MemoryFiles
from headrace.testing.partitions import Clock, flush, open_partition
from headrace.testing.sim.loop import SimLoop

T = TypeVar("T")
NONE = ErrorCode.none


class Workers:
    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()


class Topic:
    def __init__(self, files: MemoryFiles, *, durable: bool) -> None:
        self.files = files
        self.durable = durable
        self.logs: list[Partition] = []

    def open(self) -> None:
        self.logs = [open_partition(self.files, topic="__consumer_offsets", durable=self.durable, segment_bytes=2000)]

    alone = True

    def absence(self, index: int) -> ApiError:
        return ApiError(ErrorCode.coordinator_not_available)

    def find(self) -> list[Partition]:
        return self.logs

    async def ensure(self) -> list[Partition]:
        if not self.logs:
            self.open()
        return self.logs


class Room:
    """One coordinator over one partition."""

    def __init__(self, *, durable: bool = False, **settings: Any) -> None:
        self.settings = replace(GroupSettings(), **settings)
        self.topic = Topic(MemoryFiles(), durable=durable)
        self.topic.open()
        self.groups = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.settings,
            self.topic,
            clock=Clock(),
            workers=Workers(),
            new_id=lambda: "id",
        )

    @property
    def partition(self) -> Partition:
        return self.topic.logs[0]

    async def start(self) -> None:
        await self.groups.start()

    async def restart(self, *, clean: bool = True) -> None:
        await self.groups.stop()
        flush(self.partition)
        self.partition.log.close(clean=clean)
        self.topic.open()
        self.groups = self._coordinator()
        await self.start()

    async def commit(self, offset: int, producer_id: int = 7, epoch: int = 0, **who: Any) -> ErrorCode:
        given = {"group": "g", "member_id": "", "generation": -1, "instance_id": None, **who}
        pending = self.groups.commit_transactional(
            **given, producer_id=producer_id, producer_epoch=epoch, offsets=[OffsetToCommit("t", 0, offset, -1, "note")]
        )
        (error,) = await pending
        return error

    def end(self, producer_id: int = 7, epoch: int = 0, *, commit: bool = True) -> None:
        self.partition.write_marker(producer_id, epoch, commit=commit, coordinator_epoch=0)

    async def fetch(self, group: str = "g") -> tuple[int, str, bool]:
        (found,) = await self.groups.fetch(group, [("t", 0)])
        return found.offset, found.metadata, found.unstable


def scenario(work: Callable[[Room], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        room = Room(**options)
        await room.start()
        try:
            async with asyncio.timeout(10):
                await work(room)
        finally:
            await room.groups.stop()

    SimLoop().run_until_complete(run())


def test_an_offset_is_pending_until_the_marker() -> None:
    async def work(room: Room) -> None:
        assert await room.commit(5) is NONE
        assert room.partition.in_transaction(7, 0)
        assert await room.fetch() == (-1, "", True)
        room.end()
        assert await room.fetch() == (5, "note", False)
        assert await room.commit(9) is NONE
        room.end(commit=False)
        assert await room.fetch() == (5, "note", False)

    scenario(work)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_at_every_point_changes_nothing(commit: bool, clean: bool) -> None:
    async def work(room: Room) -> None:
        await room.groups.commit(group="g", offsets=[OffsetToCommit("t", 0, 1)])
        await room.restart(clean=clean)
        await room.commit(5, epoch=3)
        await room.restart(clean=clean)
        assert await room.fetch() == (1, "", True)
        assert room.partition.in_transaction(7, 3)
        room.end(epoch=4, commit=commit)
        expected = (5, "note", False) if commit else (1, "", False)
        assert await room.fetch() == expected
        await room.restart(clean=clean)
        assert await room.fetch() == expected
        assert room.partition.last_stable_offset == room.partition.high_watermark

    scenario(work)


def test_a_fenced_producer_commits_nothing() -> None:
    async def work(room: Room) -> None:
        await room.commit(5, epoch=3)
        room.end(epoch=4, commit=False)
        with pytest.raises(ApiError) as caught:
            await room.commit(6, epoch=3)
        assert caught.value.code is ErrorCode.invalid_producer_epoch
        assert await room.fetch() == (-1, "", False)
        assert await room.commit(7, epoch=4) is NONE

    scenario(work)


def test_the_answer_waits_until_the_offset_is_durable_and_a_read_until_the_marker_is() -> None:
    async def work(room: Room) -> None:
        committing = asyncio.ensure_future(room.commit(5))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not committing.done()
        flush(room.partition)
        assert await committing is NONE
        room.end()
        reading = asyncio.ensure_future(room.fetch())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        flush(room.partition)
        assert await reading == (5, "note", False)

    scenario(work, durable=True)


def test_no_marker_is_let_in_while_groups_are_loading() -> None:
    async def work(room: Room) -> None:
        await room.commit(5)
        await room.groups.stop()
        with pytest.raises(ApiError) as caught:
            room.end()
        assert caught.value.code is ErrorCode.coordinator_not_available
        end_offset = room.partition.log.end_offset
        room.groups = room._coordinator()
        starting = asyncio.ensure_future(room.start())
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            room.end()
        assert caught.value.code is ErrorCode.coordinator_load_in_progress
        assert room.partition.log.end_offset == end_offset
        await starting
        room.end()
        assert await room.fetch() == (5, "note", False)

    scenario(work)


def test_the_rewriting_of_the_log_does_not_lose_what_is_pending() -> None:
    async def work(room: Room) -> None:
        assert await room.commit(5, 7) is NONE
        assert await room.commit(6, 8, group="other") is NONE
        for number in range(200):
            await room.groups.commit(group=f"busy{number % 3}", offsets=[OffsetToCommit("t", 0, number)])
        for _ in range(20):
            await asyncio.sleep(0)
        assert room.partition.log.start_offset > 0, "it was rewritten"
        assert await room.fetch() == (-1, "", True)
        await room.restart()
        room.end(7)
        room.end(8, commit=False)
        assert await room.fetch() == (5, "note", False)
        assert await room.fetch("other") == (-1, "", False)
        assert await room.fetch("busy1") == (199, "", False)
        await room.restart()
        assert await room.fetch() == (5, "note", False)

    scenario(work, compact_after_bytes=4000)


def test_a_deleted_group_does_not_come_back_with_the_marker() -> None:
    async def work(room: Room) -> None:
        await room.commit(5)
        assert await room.groups.delete("g") is NONE
        room.end()
        assert await room.fetch() == (-1, "", False)
        await room.restart()
        assert await room.fetch() == (-1, "", False)

    scenario(work)


def test_members_commit_in_their_generation_only() -> None:
    async def work(room: Room) -> None:
        assert await room.commit(5, generation=3, member_id="m") is ErrorCode.illegal_generation
        joining: dict[str, Any] = {
            "group": "g",
            "protocol_type": "consumer",
            "protocols": [("range", b"")],
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "must_know_id": False,
        }
        joined = await room.groups.join(member_id="", **joining)
        who: dict[str, Any] = {"member_id": joined.member_id, "generation": joined.generation}
        assert await room.commit(5, **{**who, "generation": 9}) is ErrorCode.illegal_generation
        assert await room.commit(5, **{**who, "member_id": "stranger"}) is ErrorCode.unknown_member_id
        assert await room.commit(5, **who) is NONE, "also while the generation is being completed"
        assert await room.commit(6) is NONE, "older producers do not say for whom they commit"
        room.end()
        assert (await room.fetch())[0] == 6

    scenario(work, initial_rebalance_delay_ms=0)


def test_the_first_commit_of_all_is_to_be_repeated() -> None:
    """What the caller knew of the transaction may have changed while the topic was made."""

    async def work(room: Room) -> None:
        room.topic.logs = []
        room.groups = room._coordinator()
        await room.start()
        with pytest.raises(ApiError) as caught:
            await room.commit(5)
        assert caught.value.code is ErrorCode.coordinator_load_in_progress
        assert await room.commit(5) is NONE

    scenario(work)


def test_an_unstable_offset_is_told_where_it_is_asked_for() -> None:
    async def work(room: Room) -> None:
        await room.groups.commit(group="g", offsets=[OffsetToCommit("t", 0, 1)])
        await room.commit(5)
        service: Any = SimpleNamespace(groups=room.groups, turns=Turns(lambda: 0.0))
        for version in (7, 8, 9):
            for stable, error, offset in (
                (True, ErrorCode.unstable_offset_commit, -1),
                (False, ErrorCode.none, 1),
            ):
                topics = [SimpleNamespace(name="t", partition_indexes=[0])]
                group = SimpleNamespace(group_id="g", topics=topics, member_id=None, member_epoch=-1)
                request = SimpleNamespace(group_id="g", topics=topics, groups=[group], require_stable=stable)
                answer: Any = await offset_fetch.handle(Context(service, version, "", ""), request)
                told = answer["topics"] if version < 8 else answer["groups"][0]["topics"]
                (row,) = told[0]["partitions"]
                assert (row["error_code"], row["committed_offset"]) == (error, offset)

    scenario(work)
