"""The coordinator over a log that can be slow, fail and be read again; time is virtual, nothing sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import pytest

from headrace.broker.groups import GroupCoordinator, partition_for
from headrace.broker.image import Image, TopicImage
from headrace.core.errors import ApiError, DiskFailedError, DiskFullError, ErrorCode, StorageError
from headrace.group.commands import JoinAnswer, OffsetToCommit
from headrace.group.settings import GroupSettings

T = TypeVar("T")
SETTINGS = replace(GroupSettings(), offsets_partitions=2)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer when there is nothing else to do."""

    _now = 1000.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class Workers:
    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        async def now() -> T:
            return work()

        return now()


class Stored(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


@dataclass
class Log:
    """A partition in memory. `hold` keeps commits back; `broken` refuses appends; `lost` fails commits."""

    stored: list[Stored] = field(default_factory=list)
    end: int = 0
    hold: bool = False
    broken: StorageError | None = None
    lost: StorageError | None = None
    appends: int = 0
    on_marker: Any = None
    may_mark: Any = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def log(self) -> Log:
        return self

    @property
    def size_bytes(self) -> int:
        return sum(len(r.key) + len(r.value or b"") + 24 for r in self.stored)

    def append_internal(self, items: Sequence[tuple[bytes, bytes | None]]) -> int:
        if self.broken is not None:
            raise self.broken
        self.appends += 1
        for key, value in items:
            self.stored.append(Stored(self.end, key, value))
            self.end += 1
        return self.end

    async def committed(self, next_offset: int) -> None:
        assert next_offset <= self.end
        while self.hold and self.lost is None:
            await self._moved.wait()
        if self.lost is not None:
            raise self.lost

    def move(self, lost: StorageError | None = None) -> None:
        self.hold, self.lost = False, lost
        self._moved.set()
        self._moved = asyncio.Event()

    def read_all(self) -> list[Stored]:
        return list(self.stored)

    def read_batches(self) -> list[tuple[Any, list[Stored]]]:
        plain = {"last_offset_delta": 0, "attributes": 0, "producer_id": -1, "producer_epoch": -1}
        return [(SimpleNamespace(base_offset=record.offset, **plain), [record]) for record in self.read_all()]

    def append_transactional(self, items: Sequence[tuple[bytes, bytes | None]], *producer: int) -> int:
        raise NotImplementedError

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        raise NotImplementedError

    def delete_before(self, offset: int) -> None:
        assert offset <= self.end
        self.stored = [record for record in self.stored if record.offset >= offset]


@dataclass
class Topic:
    logs: list[Log] = field(default_factory=list)
    made: int = 0
    error: ApiError | None = None

    alone = True

    def absence(self, index: int) -> ApiError:
        return ApiError(ErrorCode.coordinator_not_available)

    def find(self) -> list[Log]:
        return self.logs

    async def ensure(self) -> list[Log]:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.made += 1
        self.logs = self.logs or [Log() for _ in range(2)]
        return self.logs


class Room:
    """A coordinator and its logs."""

    def __init__(self, settings: GroupSettings = SETTINGS, topic: Topic | None = None) -> None:
        self.settings = settings
        self.topic = topic or Topic()
        self.ids = count(1)
        self.groups = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.settings, self.topic, clock=Clock(), workers=Workers(), new_id=lambda: f"{next(self.ids)}"
        )

    @property
    def log(self) -> Log:
        return self.topic.logs[partition_for("g", 2)]

    async def restart(self) -> None:
        await self.groups.stop()
        self.groups = self._coordinator()
        await self.groups.start()

    def join(self, member_id: str = "", **fields: Any) -> Coroutine[Any, Any, JoinAnswer]:
        fields = {
            "group": "g",
            "protocol_type": "consumer",
            "protocols": [("range", b"")],
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "app",
            **fields,
        }
        return self.groups.join(member_id=member_id, **fields)

    async def member(self, **fields: Any) -> tuple[str, int]:
        joined = await self.join((await self.join(**fields)).member_id, **fields)
        assert joined.error is ErrorCode.none
        assignments = [(m.member_id, b"all") for m in joined.members]
        await self.groups.sync(
            group="g", member_id=joined.member_id, generation=joined.generation, assignments=assignments
        )
        return joined.member_id, joined.generation

    async def commit(self, offset: int, group: str = "g", **fields: Any) -> ErrorCode:
        answer = await self.groups.commit(group=group, offsets=[OffsetToCommit("t", 0, offset)], **fields)
        return answer.error

    async def offset(self, group: str = "g") -> int:
        [fetched] = await self.groups.fetch(group, [("t", 0)])
        return fetched.offset


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [("", 0), ("hello", 99162322), ("g", 103), ("polygenelubricants", -(1 << 31)), ("\U0001f600", 1772899)],
)
def test_a_group_lives_where_kafka_would_keep_it(group: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(1 << 31) else abs(java_hash) % 50
    assert partition_for(group, 50) == expected


def test_a_member_joins_syncs_and_lives() -> None:
    async def main() -> None:
        room = Room()
        await room.groups.start()
        member, generation = await room.member()
        assert member == "app-1"
        for _ in range(5):
            await asyncio.sleep(8)
            assert await room.groups.heartbeat(group="g", member_id=member, generation=generation) is ErrorCode.none
        assert room.groups.states()["Stable"] == 1
        await asyncio.sleep(11)
        assert room.groups.states() == {
            "Empty": 1,
            "PreparingRebalance": 0,
            "CompletingRebalance": 0,
            "Stable": 0,
            "Assigning": 0,
            "Reconciling": 0,
        }, "the session ended by timer"

    run(main())


def test_a_static_members_id_carries_its_instance() -> None:
    async def main() -> None:
        room = Room()
        await room.groups.start()
        assert (await room.join(instance_id="node-7")).member_id == "node-7-1"

    run(main())


def test_the_topic_is_made_once_and_only_by_those_who_write() -> None:
    async def main() -> None:
        room = Room()
        await room.groups.start()
        assert await room.offset() == -1
        assert (await room.groups.describe("g")).state == "Dead"
        assert await room.groups.list() == []
        assert await room.groups.delete("g") is ErrorCode.group_id_not_found
        assert (await room.groups.delete_offsets("g", [("t", 0)])).error is ErrorCode.group_id_not_found
        assert room.topic.made == 0
        await asyncio.gather(*(room.commit(n, f"g{n}") for n in range(10)))
        assert room.topic.made == 1

    run(main())


def test_a_topic_that_cannot_be_made_is_tried_again() -> None:
    async def main() -> None:
        room = Room(topic=Topic(error=ApiError(ErrorCode.kafka_storage_error)))
        await room.groups.start()
        with pytest.raises(ApiError) as caught:
            await room.commit(1)
        assert caught.value.code is ErrorCode.coordinator_not_available
        room.topic.error = None
        assert await room.commit(1) is ErrorCode.none

    run(main())


def test_an_answer_waits_until_its_record_is_committed() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        room.log.hold = True
        commit = asyncio.create_task(room.commit(2))
        read = asyncio.create_task(room.offset())
        await asyncio.sleep(5)
        assert not commit.done(), "not durable yet"
        assert not read.done(), "what it would show is not durable yet"
        room.log.move()
        assert (await commit, await read) == (ErrorCode.none, 2)

    run(main())


def test_answers_leave_in_the_order_of_decisions() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(0)
        room.log.hold = True
        done: list[int] = []

        async def commit(number: int) -> None:
            await room.commit(number)
            done.append(number)

        tasks = [asyncio.create_task(commit(number)) for number in range(5)]
        await asyncio.sleep(1)
        room.log.move()
        await asyncio.gather(*tasks)
        assert done == [0, 1, 2, 3, 4]

    run(main())


def test_a_caller_that_goes_away_does_not_take_its_commit_along() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        room.log.hold = True
        commit = asyncio.create_task(room.commit(2))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.sleep(0)
        room.log.move()
        assert await room.offset() == 2

    run(main())


def test_everything_is_there_after_a_restart() -> None:
    async def main() -> None:
        room = Room()
        member, generation = await room.member()
        await room.commit(7, member_id=member, generation=generation)
        await room.restart()
        assert await room.offset() == 7
        assert await room.groups.heartbeat(group="g", member_id=member, generation=generation) is ErrorCode.none
        assert sorted(room.groups.group_offsets()) == [("g", "t", 0, 7)]
        assert [listed.group for listed in await room.groups.list()] == ["g"]

    run(main())


def test_a_full_disk_refuses_a_commit_and_leaves_no_trace_of_it() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        room.log.broken = DiskFullError("full")
        with pytest.raises(ApiError) as caught:
            await room.commit(2)
        assert caught.value.code is ErrorCode.coordinator_not_available
        room.log.broken = None
        with pytest.raises(ApiError) as caught:
            await room.offset()
        assert caught.value.code is ErrorCode.coordinator_load_in_progress
        await asyncio.sleep(1)
        assert await room.offset() == 1
        assert await room.commit(3) is ErrorCode.none

    run(main())


def test_a_failed_sync_answers_everyone_who_waits_and_acknowledges_nothing() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        waiting_join = asyncio.create_task(room.join(must_know_id=False))
        await asyncio.sleep(0)
        room.log.hold = True
        commit = asyncio.create_task(room.commit(2, _beside("g", 1)))
        read = asyncio.create_task(room.offset())
        await asyncio.sleep(0)
        room.log.move(lost=DiskFailedError("EIO"))
        results = await asyncio.gather(waiting_join, commit, read, return_exceptions=True)
        assert [r.code for r in results if isinstance(r, ApiError)] == [ErrorCode.coordinator_not_available] * 3

    run(main())


def test_a_log_that_cannot_be_read_is_tried_again() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        await room.groups.stop()
        healthy = type(room.log).read_all
        fails = iter([True, True])

        class Sick(Log):
            def read_all(self) -> list[Stored]:
                if next(fails, False):
                    raise StorageError("not now")
                return healthy(self)

        for log in room.topic.logs:
            log.__class__ = Sick
        room.groups = room._coordinator()
        await room.groups.start()
        assert await room.offset() == 1

    run(main())


def test_the_log_is_rewritten_as_it_grows_and_loses_nothing() -> None:
    async def main() -> None:
        room = Room(replace(SETTINGS, compact_after_bytes=4096))
        member, generation = await room.member()
        for number in range(1000):
            await room.commit(number, member_id=member, generation=generation)
        await asyncio.sleep(1)
        assert room.log.end > 1000
        assert room.log.size_bytes < 3 * 4096
        await room.restart()
        assert await room.offset() == 999
        assert await room.groups.heartbeat(group="g", member_id=member, generation=generation) is ErrorCode.none

    run(main())


def test_a_crash_between_rewriting_and_forgetting_changes_nothing() -> None:
    async def main() -> None:
        room = Room(replace(SETTINGS, compact_after_bytes=4096))
        kept: list[Stored] = []

        class Remembering(Log):
            def delete_before(self, offset: int) -> None:
                kept[:] = self.stored

        room.topic.logs = [Remembering(), Remembering()]
        await room.groups.start()
        while not kept:
            await room.commit(room.log.end)
        after = Room(topic=Topic([Log(list(kept), kept[-1].offset + 1) for _ in range(2)]))
        await after.groups.start()
        assert await after.offset() == await room.offset()

    run(main())


def test_commits_during_a_rewrite_win_over_it() -> None:
    async def main() -> None:
        room = Room(replace(SETTINGS, compact_after_bytes=100_000))
        metadata = "x" * 4000
        for number in range(600):  # more than one batch of live records
            offsets = [OffsetToCommit("t", p, number, -1, metadata) for p in range(2)]
            await room.groups.commit(group=_beside("g", number), offsets=offsets)
            await room.commit(number)
        await room.restart()
        assert await room.offset() == 599
        assert len(list(room.groups.group_offsets())) == 1201

    run(main())


def _beside(group: str, number: int) -> str:
    """A group that lives in the same partition."""
    return next(n for n in (f"{number}-{k}" for k in count()) if partition_for(n, 2) == partition_for(group, 2))


def test_offsets_of_deleted_topics_are_forgotten() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        await room.commit(1, "other")
        topic = TopicImage("t", None)  # type: ignore[arg-type]
        room.groups.changed(Image(topics={"t": topic}), Image())
        await asyncio.sleep(1)
        assert list(room.groups.group_offsets()) == []
        await room.restart()
        assert await room.groups.list() == []

    run(main())


def test_offsets_of_topics_that_a_crash_left_behind_are_forgotten_at_the_start() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        await room.groups.commit(group="g", offsets=[OffsetToCommit("kept", 0, 2)])
        await room.groups.stop()
        room.groups = room._coordinator()
        await room.groups.start(known_topics={"kept": TopicImage("kept", UUID(int=1))})
        await asyncio.sleep(1)
        assert list(room.groups.group_offsets()) == [("g", "kept", 0, 2)]

    run(main())


def test_one_huge_decision_is_appended_in_several_batches() -> None:
    async def main() -> None:
        room = Room()
        await room.commit(1)
        before = room.log.appends
        offsets = [OffsetToCommit("t", p, p, -1, "x" * 4000) for p in range(300)]
        await room.groups.commit(group="g", offsets=offsets)
        assert room.log.appends - before == 3

    run(main())


def test_stopping_answers_those_who_wait() -> None:
    async def main() -> None:
        room = Room()
        await room.member()
        waiting = asyncio.create_task(room.join(must_know_id=False))
        await asyncio.sleep(1)
        assert not waiting.done()
        await room.groups.stop()
        with pytest.raises(ApiError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.coordinator_not_available
        with pytest.raises(ApiError):
            await room.commit(1)

    run(main())


def test_an_offline_partition_harms_only_its_own_groups() -> None:
    async def main() -> None:
        room = Room()
        await room.groups.start()
        await room.commit(1)
        index = partition_for("g", 2)
        logs: list[Any] = list(room.topic.logs)
        logs[index] = None
        room.topic.logs = logs
        await room.restart()
        with pytest.raises(ApiError) as caught:
            await room.commit(2)
        assert caught.value.code is ErrorCode.coordinator_not_available
        other = next(n for n in "abcdefg" if partition_for(n, 2) != index)
        assert await room.commit(2, other) is ErrorCode.none

    run(main())


async def refused(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        await work
    return error.value.code


def test_groups_have_a_bound_in_all_and_a_place_becomes_free() -> None:
    async def main() -> None:
        room = Room(replace(SETTINGS, max_groups=3))
        for name in ("a", "b", "c"):
            assert await room.commit(1, name) is ErrorCode.none
        assert await refused(room.commit(1, "d")) is ErrorCode.coordinator_not_available
        assert await refused(room.join(group="d")) is ErrorCode.coordinator_not_available
        assert await room.commit(2, "a") is ErrorCode.none
        await room.restart()
        assert await refused(room.commit(1, "d")) is ErrorCode.coordinator_not_available
        assert await room.groups.delete("b") is ErrorCode.none
        assert await room.commit(1, "d") is ErrorCode.none

    run(main())


def test_members_and_offsets_have_a_bound_in_all_and_those_that_are_there_go_on() -> None:
    async def main() -> None:
        room = Room(replace(SETTINGS, memory_bytes=1 << 20))
        member, generation = await room.member(group="g")
        big = [("range", bytes(200_000))]
        for number in range(2):
            joined = await room.join(group=f"big{number}", protocols=big)
            joined = await room.join(joined.member_id, group=f"big{number}", protocols=big)
            assert joined.error is ErrorCode.none
        joined = await room.join(group="big2", protocols=big)
        await room.join(joined.member_id, group="big2", protocols=big)
        assert await refused(room.join(group="big3")) is ErrorCode.coordinator_not_available
        assert await refused(room.commit(1, "new")) is ErrorCode.coordinator_not_available
        beat = await room.groups.heartbeat(group="g", member_id=member, generation=generation)
        assert beat is ErrorCode.none
        await room.groups.leave(
            "big0", [(each.member_id, None) for each in (await room.groups.describe("big0")).members]
        )
        await room.groups.delete("big0")
        assert await room.commit(1, "new") is ErrorCode.none

    run(main())
