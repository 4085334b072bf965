"""The transaction coordinator over logs that can be slow and fail, and markers that can be refused; time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, TypeVar

import pytest

from headrace.broker.markers import EndMarker, LocalMarkers
from headrace.broker.transactions import (
    TransactionCoordinator,
    commit_error,
    produce_error,
)
from headrace.core.errors import ApiError, DiskFullError, ErrorCode, StorageError
from headrace.txn.commands import Identity
from headrace.txn.records import State
from headrace.txn.settings import TransactionSettings

T = TypeVar("T")
SETTINGS = replace(TransactionSettings(), partitions=1)
TIMEOUT_MS = 60_000
A0, A1 = ("a", 0), ("a", 1)
NONE = ErrorCode.none


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
        return 1_700_000_000_000 + round(asyncio.get_event_loop().time() * 1000)


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
    committed_end: int = 0
    leader_epoch: int = 3
    hold: bool = False
    broken: StorageError | None = None
    lost: StorageError | None = None
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
        for key, value in items:
            self.stored.append(Stored(self.end, key, value))
            self.end += 1
        return self.end

    async def committed(self, next_offset: int) -> None:
        assert next_offset <= self.end
        if not self.hold:
            self.committed_end = self.end
        while self.committed_end < next_offset and self.lost is None:
            await self._moved.wait()
        if self.lost is not None:
            raise self.lost

    def move(self, lost: StorageError | None = None) -> None:
        self.hold, self.lost = False, lost
        self.committed_end = self.end
        self._moved.set()
        self._moved = asyncio.Event()

    def read_all(self) -> list[Stored]:
        return list(self.stored)

    def delete_before(self, offset: int) -> None:
        assert offset <= self.end
        self.stored = [record for record in self.stored if record.offset >= offset]


@dataclass
class Topic:
    logs: list[Log] = field(default_factory=list)
    made: int = 0
    count: int = 1

    alone = True

    def absence(self, index: int) -> ApiError:
        return ApiError(ErrorCode.coordinator_not_available)

    def find(self) -> list[Log]:
        return self.logs

    async def ensure(self) -> list[Log]:
        await asyncio.sleep(0)
        self.made += 1
        self.logs = self.logs or [Log() for _ in range(self.count)]
        return self.logs


class Markers:
    """Remembers what was written. `refuse`: what the next calls for a partition raise."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.refuse: dict[tuple[str, int], list[Exception]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.on_write: Callable[[], None] = lambda: None

    async def write(self, marker: EndMarker) -> None:
        await self.gate.wait()
        place = marker.topic, marker.partition
        if faults := self.refuse.get(place):
            raise faults.pop(0)
        self.on_write()
        how = "commit" if marker.commit else "abort"
        who = f"{marker.producer_id}/{marker.producer_epoch}"
        self.written.append(f"{how} {who} in {marker.topic}-{marker.partition} by {marker.coordinator_epoch}")


class Room:
    """A coordinator, its log and its markers."""

    def __init__(self, settings: TransactionSettings = SETTINGS) -> None:
        self.settings = settings
        self.topic = Topic()
        self.offsets = Topic(count=4)
        self.markers = Markers()
        self.ids = count(1000)
        self.coordinator = self._make()

    def _make(self) -> TransactionCoordinator:
        async def next_id() -> int:
            await asyncio.sleep(0)
            return next(self.ids)

        return TransactionCoordinator(
            self.settings,
            self.topic,
            self.markers,
            offsets_topic=self.offsets,
            next_producer_id=next_id,
            clock=Clock(),  # type: ignore[arg-type]
            workers=Workers(),
        )

    @property
    def log(self) -> Log:
        return self.topic.logs[0]

    async def restart(self) -> None:
        await self.coordinator.stop()
        self.coordinator = self._make()
        await self.coordinator.start()

    async def init(self, expected: tuple[int, int] | None = None, timeout_ms: int = TIMEOUT_MS) -> Identity:
        return await self.coordinator.init_producer_id("t", timeout_ms, expected)

    async def add(self, epoch: int, *partitions: tuple[str, int], producer_id: int = 1000) -> ErrorCode:
        return await self.coordinator.add_partitions("t", producer_id, epoch, partitions or (A0,))

    async def register(self, epoch: int, *partitions: tuple[str, int]) -> list[ErrorCode]:
        return await self.coordinator.register("t", 1000, epoch, partitions)

    async def verify(self, epoch: int, *partitions: tuple[str, int]) -> list[ErrorCode]:
        return await self.coordinator.verify("t", 1000, epoch, partitions)

    async def end(self, epoch: int, *, commit: bool = True, bump: bool = True) -> Identity:
        return await self.coordinator.end("t", 1000, epoch, commit=commit, bump=bump)

    async def state(self) -> State | None:
        known = await self.coordinator.describe("t")
        return None if known is None else known.state


def scenario(test: Callable[[Room], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test inside a loop, in a fresh room."""

    def body() -> None:
        async def main() -> None:
            room = Room()
            await test(room)
            room.markers.gate.set()
            await room.coordinator.stop()

        run(main())

    body.__name__ = test.__name__
    body.__doc__ = test.__doc__
    return body


def later(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(work)


async def moments(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# -- the topic


@scenario
async def test_the_topic_is_made_for_the_first_producer_and_not_by_looking(room: Room) -> None:
    await room.coordinator.start()
    assert await room.state() is None
    assert await room.coordinator.list() == []
    assert await room.verify(0, A0) == [ErrorCode.invalid_producer_id_mapping]
    assert await room.add(0) is ErrorCode.invalid_producer_id_mapping
    assert (await room.end(0)).error is ErrorCode.invalid_producer_id_mapping
    assert room.topic.made == 0
    first, second = await asyncio.gather(room.init(), room.coordinator.init_producer_id("u", TIMEOUT_MS))
    assert room.topic.made == 1
    assert {first.producer_id, second.producer_id} == {1000, 1001}


@scenario
async def test_offsets_of_a_group_join_through_their_partition(room: Room) -> None:
    await room.init()
    assert await room.coordinator.add_offsets("t", 1000, 0, "hello") is NONE
    await room.end(0)
    await moments()
    assert room.markers.written == ["commit 1000/1 in __consumer_offsets-2 by 3"]


# -- durability


@scenario
async def test_no_answer_and_no_marker_before_the_record_is_committed(room: Room) -> None:
    await room.init()
    room.log.hold = True
    adding = later(room.add(0, A0, A1))
    await moments()
    assert not adding.done()
    room.log.move()
    assert await adding is NONE
    room.log.hold = True
    ending = later(room.end(0))
    await moments()
    assert not ending.done()
    assert room.markers.written == []
    room.log.move()
    assert await ending == Identity(NONE, 1000, 1)
    await moments()
    assert sorted(room.markers.written) == ["commit 1000/1 in a-0 by 3", "commit 1000/1 in a-1 by 3"]
    assert await room.state() is State.COMPLETE_COMMIT


@scenario
async def test_a_read_waits_for_what_it_saw(room: Room) -> None:
    await room.init()
    room.log.hold = True
    adding = later(room.add(0))
    await moments()
    looking, listing = later(room.state()), later(room.coordinator.list())
    repeated = later(room.add(0))
    await moments()
    assert not any(task.done() for task in (adding, looking, listing, repeated))
    room.log.move()
    assert await looking is State.ONGOING
    assert [name for name, _ in await listing] == ["t"]
    assert await repeated is NONE


@scenario
async def test_one_producer_does_not_wait_for_the_records_of_another(room: Room) -> None:
    await room.init()
    await room.register(0, A0)
    room.log.hold = True
    other = later(room.coordinator.init_producer_id("u", TIMEOUT_MS))
    await moments()
    assert await room.register(0, A0) == [NONE]
    assert not other.done()
    room.log.move()
    await other


@scenario
async def test_a_caller_that_goes_away_changes_nothing(room: Room) -> None:
    await room.init()
    room.log.hold = True
    adding = later(room.add(0))
    await moments()
    adding.cancel()
    room.log.move()
    assert await room.state() is State.ONGOING


# -- the end


@scenario
async def test_the_next_transaction_waits_for_the_end_of_the_one_before(room: Room) -> None:
    await room.init()
    await room.add(0)
    room.markers.gate.clear()
    await room.end(0)
    adding = later(room.register(1, A0))
    await moments()
    assert not adding.done()
    room.markers.gate.set()
    assert await adding == [NONE]
    assert await room.state() is State.ONGOING


@scenario
async def test_an_end_does_not_overtake_what_was_sent_before_it(room: Room) -> None:
    """A client may abort at once what it has begun while the transaction before it was being ended."""
    await room.init()
    await room.add(0)
    room.markers.gate.clear()
    await room.end(0, bump=False)
    adding, ending = later(room.add(0, A1)), later(room.end(0, commit=False, bump=False))
    await moments()
    assert not adding.done()
    assert not ending.done()
    room.markers.gate.set()
    assert await adding is NONE
    assert (await ending).error is NONE
    await moments()
    assert room.markers.written == ["commit 1000/0 in a-0 by 3", "abort 1000/0 in a-1 by 3"]


@scenario
async def test_but_not_for_long(room: Room) -> None:
    await room.init()
    await room.add(0)
    room.markers.gate.clear()
    await room.end(0)
    before = asyncio.get_running_loop().time()
    assert await room.register(1, A0) == [ErrorCode.concurrent_transactions]
    assert asyncio.get_running_loop().time() - before == pytest.approx(0.1)
    assert (await room.end(0)).error is ErrorCode.concurrent_transactions


@scenario
async def test_a_new_producer_gets_its_epoch_in_one_request_when_the_abort_is_quick(room: Room) -> None:
    await room.init()
    await room.add(0)
    assert await room.init() == Identity(NONE, 1000, 2)
    assert room.markers.written == ["abort 1000/1 in a-0 by 3"]
    assert await room.verify(0, A0) == [ErrorCode.producer_fenced]


@scenario
async def test_a_transaction_that_takes_too_long_is_aborted_on_time(room: Room) -> None:
    await room.init()
    await room.add(0)
    await asyncio.sleep(59.9)
    assert await room.state() is State.ONGOING
    await asyncio.sleep(0.2)
    assert await room.state() is State.COMPLETE_ABORT
    assert room.markers.written == ["abort 1000/1 in a-0 by 3"]
    assert (await room.end(0)).error is ErrorCode.producer_fenced


@scenario
async def test_markers_are_tried_until_they_are_written(room: Room) -> None:
    await room.init()
    await room.add(0, A0, A1)
    faults: list[Exception] = [ApiError(ErrorCode.kafka_storage_error), StorageError("no"), RuntimeError("a bug")]
    room.markers.refuse[A1] = [*faults, *faults]
    await room.end(0)
    await asyncio.sleep(0.04)
    assert room.markers.written == ["commit 1000/1 in a-0 by 3"]
    assert await room.state() is State.PREPARE_COMMIT
    await asyncio.sleep(10)
    assert room.markers.written == ["commit 1000/1 in a-0 by 3", "commit 1000/1 in a-1 by 3"]
    assert await room.state() is State.COMPLETE_COMMIT


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch])
def test_a_partition_that_is_gone_does_not_hold_up_the_end(code: ErrorCode) -> None:
    async def main() -> None:
        room = Room()
        await room.init()
        await room.add(0, A0, A1)
        room.markers.refuse[A0] = [ApiError(code)]
        await room.end(0, commit=False)
        await moments()
        assert room.markers.written == ["abort 1000/1 in a-1 by 3"]
        assert await room.state() is State.COMPLETE_ABORT
        await room.coordinator.stop()

    run(main())


# -- what Produce relies on


@scenario
async def test_registration_holds_at_the_moment_of_the_return(room: Room) -> None:
    await room.init()
    room.log.hold = True
    registering = later(room.register(0, A0))
    await moments()
    # While the record is on its way to the disk, another producer fences this one.
    fencing = later(room.init())
    await moments()
    room.log.move()
    assert await registering in ([ErrorCode.producer_fenced], [ErrorCode.concurrent_transactions])
    assert (await fencing).producer_epoch == 2


@scenario
async def test_what_is_appended_after_registration_comes_before_the_marker(room: Room) -> None:
    await room.init()
    events: list[str] = []
    room.markers.on_write = lambda: events.append("marker")

    async def produce() -> None:
        room.log.hold = True
        if await room.register(0, A0) == [NONE]:
            events.append("append")

    producing = later(produce())
    await moments()
    ending = later(room.end(0))
    await moments()
    room.log.move()
    await asyncio.gather(producing, ending)
    await moments()
    assert events in (["append", "marker"], ["marker"])


@scenario
async def test_verification_of_what_is_settled_does_not_yield(room: Room) -> None:
    await room.init()
    await room.add(0)
    waiting = room.verify(0, A0, A1)
    with pytest.raises(StopIteration) as stop:
        waiting.send(None)
    assert stop.value.value == [NONE, ErrorCode.transaction_abortable]


@pytest.mark.parametrize(
    ("error", "v10", "v11", "v12"),
    [
        ("none", "none", "none", "none"),
        ("producer_fenced",) + ("invalid_producer_epoch",) * 3,
        ("transaction_abortable", "invalid_txn_state", "transaction_abortable", "transaction_abortable"),
        ("concurrent_transactions", "not_enough_replicas", "not_enough_replicas", "concurrent_transactions"),
        ("coordinator_load_in_progress",) + ("not_enough_replicas",) * 3,
        ("invalid_producer_id_mapping",) * 4,
    ],
)
def test_producers_get_errors_that_they_understand(error: str, v10: str, v11: str, v12: str) -> None:
    found = [produce_error(ErrorCode[error], version).name for version in (10, 11, 12)]
    assert found == [v10, v11, v12]


def test_offset_commits_get_errors_that_they_understand() -> None:
    abortable, busy = ErrorCode.transaction_abortable, ErrorCode.concurrent_transactions
    assert commit_error(ErrorCode.producer_fenced, 5) is ErrorCode.invalid_producer_epoch
    assert [commit_error(abortable, v).name for v in (3, 4)] == ["invalid_txn_state", "transaction_abortable"]
    assert [commit_error(busy, v).name for v in (4, 5)] == ["coordinator_load_in_progress", "concurrent_transactions"]


# -- restarts and trouble


@scenario
async def test_a_restart_finishes_what_was_prepared(room: Room) -> None:
    await room.init()
    await room.add(0, A0, A1)
    room.markers.gate.clear()
    await room.end(0)
    await room.restart()
    assert await room.state() is State.PREPARE_COMMIT
    assert room.markers.written == []
    room.markers.gate.set()
    await moments()
    assert sorted(room.markers.written) == ["commit 1000/1 in a-0 by 3", "commit 1000/1 in a-1 by 3"]
    assert await room.end(0) == Identity(NONE, 1000, 1)


@scenario
async def test_producer_ids_and_epochs_survive_a_restart(room: Room) -> None:
    await room.init()
    await room.init()
    await room.restart()
    assert await room.init() == Identity(NONE, 1000, 2)


@scenario
async def test_a_full_disk_refuses_and_forgets_what_was_not_written(room: Room) -> None:
    await room.init()
    room.log.broken = DiskFullError("full")
    with pytest.raises(ApiError) as refused:
        await room.add(0)
    assert refused.value.code is ErrorCode.coordinator_not_available
    assert await room.register(0, A0) == [ErrorCode.coordinator_load_in_progress]
    await asyncio.sleep(2)
    room.log.broken = None
    assert await room.state() is State.EMPTY
    assert await room.add(0) is NONE


@scenario
async def test_a_completion_that_cannot_be_written_is_done_again(room: Room) -> None:
    await room.init()
    await room.add(0)

    def fill() -> None:
        room.log.broken = DiskFullError("full")

    room.markers.on_write = fill
    await room.end(0)
    await moments()
    await asyncio.sleep(5)
    assert 2 <= len(room.markers.written) <= 6, "it tries again, but not in a hurry"
    room.markers.on_write, room.log.broken = (lambda: None), None
    await asyncio.sleep(5)
    assert await room.state() is State.COMPLETE_COMMIT
    assert set(room.markers.written) == {"commit 1000/1 in a-0 by 3"}


@scenario
async def test_a_lost_log_answers_not_available_until_it_can_be_read(room: Room) -> None:
    await room.init()
    room.log.hold = True
    ending = later(room.add(0))
    await moments()
    room.log.move(StorageError("gone"))
    with pytest.raises(ApiError) as refused:
        await ending
    assert refused.value.code is ErrorCode.coordinator_not_available
    room.log.lost = None
    await asyncio.sleep(2)
    assert await room.state() is State.ONGOING


@scenario
async def test_a_shard_without_a_log_is_not_available(room: Room) -> None:
    room.topic.logs = [None]  # type: ignore[list-item]
    await room.coordinator.start()
    for asking in (room.init(), room.coordinator.describe("t"), room.coordinator.list()):
        with pytest.raises(ApiError) as refused:
            await asking
        assert refused.value.code is ErrorCode.coordinator_not_available
    assert await room.verify(0, A0) == [ErrorCode.coordinator_not_available]


def test_the_log_is_rewritten_as_it_grows_and_loses_nothing() -> None:
    async def main() -> None:
        room = Room(replace(SETTINGS, compact_after_bytes=2000))
        await room.init()
        await room.coordinator.init_producer_id("idle", TIMEOUT_MS)
        for epoch in range(200):
            assert await room.register(epoch, A0) == [NONE]
            await room.end(epoch)
        await moments()
        assert len(room.log.stored) < 100
        await room.restart()
        assert await room.init() == Identity(NONE, 1000, 201)
        assert {name for name, _ in await room.coordinator.list()} == {"t", "idle"}
        await room.coordinator.stop()

    run(main())


def test_a_producer_that_ran_out_of_epochs_gets_a_new_id_at_its_end() -> None:
    async def main() -> None:
        from headrace.txn.records import EPOCH_LAST, Transaction, encode

        room = Room()
        room.topic.logs = [Log()]
        room.log.append_internal([encode("t", Transaction(7, EPOCH_LAST, State.EMPTY, TIMEOUT_MS))])
        await room.coordinator.start()
        assert await room.add(EPOCH_LAST, producer_id=7) is NONE
        ended = await room.coordinator.end("t", 7, EPOCH_LAST, commit=True, bump=True)
        assert ended == Identity(NONE, 1000, 0)
        assert await room.register(0, A0) == [NONE]
        assert room.markers.written == ["commit 7/32767 in a-0 by 3"]
        await room.coordinator.stop()

    run(main())


def test_local_markers_wait_until_they_are_committed() -> None:
    class Partition:
        calls: list[Any] = []

        def write_marker(
            self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, bumped: bool = False
        ) -> int:
            self.calls.append((producer_id, producer_epoch, commit, coordinator_epoch, bumped))
            return 8

        async def committed(self, next_offset: int) -> None:
            self.calls.append(next_offset)

    partition = Partition()
    run(LocalMarkers(lambda topic, index: partition).write(EndMarker("a", 0, 1000, 2, True, 3)))
    assert partition.calls == [(1000, 2, True, 3, False), 8]


@scenario
async def test_transactional_ids_have_a_bound_in_all(room: Room) -> None:
    room = Room(replace(SETTINGS, max_ids=2))
    for name in ("a", "b", "a"):
        assert (await room.coordinator.init_producer_id(name, TIMEOUT_MS)).error is ErrorCode.none
    with pytest.raises(ApiError) as refused:
        await room.coordinator.init_producer_id("c", TIMEOUT_MS)
    assert refused.value.code is ErrorCode.coordinator_not_available
    with pytest.raises(ApiError) as refused:
        await room.coordinator.init_producer_id("x" * 2000, TIMEOUT_MS)
    assert refused.value.code is ErrorCode.invalid_request
    await room.coordinator.stop()
