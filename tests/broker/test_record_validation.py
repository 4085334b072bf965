"""What a broker looks at in batches, and that nobody waits long for it, nor overtakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from headrace.apis import produce
from headrace.apis.api import Context, Encoded
from headrace.broker.admission import Admission
from headrace.broker.record_validation import AT_ONCE_BYTES, AT_ONCE_RECORDS, RecordValidation, at_once
from headrace.broker.refusals import Refusals
from headrace.core.errors import ApiError, ErrorCode
from headrace.runtime.workers import ThreadWorkers
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TopicConfig
from headrace.testing.partitions import open_partition
from headrace.wire import batch, messages
from headrace.wire.produce_request import ProduceRequest
from headrace.wire.records import Record

T = TypeVar("T")
TIME = 1000


def config(**given: str) -> TopicConfig:
    return TopicConfig.of({name.replace("_", "."): text for name, text in given.items()}, StorageSettings())


def now() -> int:
    return TIME


def batch_of(count: int, codec: int = 3, value: bytes = b"v", **options: Any) -> bytes:
    return batch.build(
        [(b"k", b"%d " % number + value) for number in range(count)], timestamp_ms=TIME, codec=codec, **options
    )


def judged(data: bytes, config: TopicConfig) -> bytes | ErrorCode | None:
    """What `at_once` says: the batch, why it is refused, or nothing."""
    try:
        found = at_once(data, list(batch.headers(data)), config, now)
    except ApiError as error:
        return error.code
    return None if found is None else found[0]


@pytest.mark.parametrize("level", ["full", "ends", "header"])
@pytest.mark.parametrize("codec", range(5))
def test_a_small_batch_that_is_right_is_appended_as_it_came(codec: int, level: str) -> None:
    data = batch_of(100, codec)
    assert judged(data, config(headrace_record_validation=level)) is data


@pytest.mark.parametrize(
    ("data", "level", "is_told"),
    [
        (batch_of(9, 0), "ends", True),
        (batch_of(9000, 0), "ends", True),
        (batch_of(9000, 0), "full", False),
        (batch_of(9000, 3), "ends", False),
        (batch_of(9000, 3), "header", True),
        (batch.build([(b"k", bytes(1 << 20))], timestamp_ms=TIME, codec=4), "ends", False),
    ],
)
def test_what_takes_long_is_not_done_at_once(data: bytes, level: str, is_told: bool) -> None:
    assert (judged(data, config(headrace_record_validation=level)) is data) == is_told


def test_the_largest_timestamp_is_what_the_records_say() -> None:
    times = [TIME + 5, TIME + 70, TIME - 300]
    header = next(batch.headers(batch_of(3, 0)))
    data = batch.rebuild(header, [Record(number, time, b"k", b"v") for number, time in enumerate(times)])
    wrong, _ = batch.with_max_timestamp(data, next(batch.headers(data)), TIME + 9)
    assert judged(wrong, config(headrace_record_validation="full")) == data
    late = config(headrace_record_validation="full", message_timestamp_before_max_ms="200")
    assert judged(data, late) is ErrorCode.invalid_timestamp
    assert judged(data, config(headrace_record_validation="ends")) is data, "the third is not looked at as to its time"


# ---------------------------------------------------------------------- in turns


class SlowWorkers:
    """Workers that begin when the test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def run(self, work: Callable[[], T]) -> T:
        await self.gate.wait()
        return work()


class Stage:
    def __init__(self, workers: Any, **given: Any) -> None:
        self.partitions = [open_partition(index=index, **given) for index in (0, 1)]
        self.service: Any = SimpleNamespace(
            partitions=SimpleNamespace(
                get=lambda topic, index: self.partitions[index], replica=lambda topic, index: self.partitions[index]
            ),
            refusals=Refusals(),
            clock=SimpleNamespace(monotonic=lambda: 0.0, now_ms=now),
            validation=RecordValidation(),
            workers=workers,
            admission=Admission(None),  # type: ignore[arg-type]
            topic_name=lambda _: "orders",
            count_error=lambda _, code: None,
        )

    def send(self, *batches: tuple[int, bytes]) -> Any:
        request = ProduceRequest(None, -1, 1000, [("orders", None, list(batches))])
        return produce.handle(Context(self.service, 9, "", ""), request)

    async def codes(self, outcome: Any) -> list[ErrorCode]:
        answer = await outcome if isinstance(outcome, Awaitable) else outcome
        assert isinstance(answer, Encoded)
        decoded: Any = messages.decode_response(0, 9, b"".join(bytes(part) for part in answer.parts))
        return [ErrorCode(part.error_code) for topic in decoded.responses for part in topic.partition_responses]

    def first_values(self, index: int = 0) -> list[bytes]:
        return [(records[0].value or b"").split()[-1] for _, records in self.partitions[index].read_batches()]


def large(name: bytes, **options: Any) -> bytes:
    """A batch that is opened in a worker."""
    data = batch_of(20_000, 1, name, **options)
    assert len(data) > AT_ONCE_BYTES
    return data


def test_nothing_for_its_partition_overtakes_a_batch_that_is_looked_at_in_a_worker() -> None:
    async def run() -> None:
        workers = SlowWorkers()
        stage = Stage(workers)
        sent = [
            stage.send((0, large(b"first"))),
            stage.send((0, batch_of(1, 0, b"second"))),
            stage.send((0, large(b"third")), (1, batch_of(1, 0, b"beside"))),
            stage.send((1, batch_of(1, 0, b"behind"))),
        ]
        await asyncio.sleep(0)
        assert stage.first_values(0) == stage.first_values(1) == []
        workers.gate.set()
        assert [await stage.codes(each) for each in sent] == [[ErrorCode.none]] * 2 + [
            [ErrorCode.none] * 2,
            [ErrorCode.none],
        ]
        assert stage.first_values(0) == [b"first", b"second", b"third"]
        assert stage.first_values(1) == [b"beside", b"behind"]
        assert not stage.service.admission.queues

    asyncio.run(run())


def test_other_partitions_do_not_wait() -> None:
    async def run() -> None:
        stage = Stage(SlowWorkers())
        waiting = stage.send((0, large(b"first")))
        assert isinstance(stage.send((1, batch_of(1, 0, b"other"))), Encoded)
        waiting.cancel()

    asyncio.run(run())


def test_idempotent_batches_in_flight_are_appended_in_order_and_behind_a_bad_one_they_are_out_of_order() -> None:
    async def run() -> None:
        workers = SlowWorkers()
        stage = Stage(workers)
        workers.gate.set()
        producer = {"producer_id": 7, "producer_epoch": 0}
        first, second, third = (
            large(b"0", base_sequence=0, **producer),
            batch_of(5, 0, b"1", base_sequence=20_000, **producer),
            large(b"2", base_sequence=20_005, **producer),
        )
        sent = [stage.send((0, each)) for each in (first, second, third)]
        assert [await stage.codes(each) for each in sent] == [[ErrorCode.none]] * 3
        again = [stage.send((0, each)) for each in (first, third)]
        assert [await stage.codes(each) for each in again] == [[ErrorCode.none]] * 2, "they are known"
        bad = bytearray(large(b"3", base_sequence=40_005, **producer))
        bad[1000:1100] = bytes(100)
        header = next(batch.headers(bytes(bad)))
        bad, _ = batch.with_max_timestamp(bytes(bad), header, header.max_timestamp)
        behind = batch_of(1, 0, b"4", base_sequence=60_005, **producer)
        sent = [stage.send((0, bad)), stage.send((0, behind))]
        assert [await stage.codes(each) for each in sent] == [
            [ErrorCode.corrupt_message],
            [ErrorCode.out_of_order_sequence_number],
        ]
        assert stage.first_values() == [b"0", b"1", b"2"]

    asyncio.run(run())


def test_a_client_that_goes_away_holds_nobody_up() -> None:
    async def run() -> None:
        workers = SlowWorkers()
        stage = Stage(workers)
        gone = stage.send((0, large(b"gone")))
        behind = stage.send((0, batch_of(1, 0, b"behind")))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stage.codes(behind) == [ErrorCode.none]
        assert stage.first_values() == [b"behind"]

    asyncio.run(run())


def test_batches_that_are_opened_at_the_same_time_do_not_see_each_others_records() -> None:
    async def run() -> None:
        workers = ThreadWorkers(4)
        stage = Stage(workers, record_validation="full")
        sent = []
        for number in range(24):
            sent.append(stage.send((number % 2, batch_of(20_000, 1 + number % 4, b"%d" % number))))
            if number % 5 == 4:
                await asyncio.sleep(0)
                sent.pop().cancel()  # while a worker may be at it
        assert {code for each in sent for code in await stage.codes(each)} == {ErrorCode.none}
        workers.close()

    asyncio.run(run())


def test_many_records_are_looked_at_in_slices() -> None:
    """A hundred thousand records come out of a few kilobytes: others have their turns meanwhile."""

    async def run() -> None:
        workers = ThreadWorkers(2)
        stage = Stage(workers, record_validation="full")
        count = 100_000
        waiting = stage.send((0, batch.build([(None, None)] * count, timestamp_ms=TIME, codec=4)))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        assert await stage.codes(waiting) == [ErrorCode.none]
        assert turns >= count // AT_ONCE_RECORDS
        workers.close()

    asyncio.run(run())


def test_a_bomb_does_not_keep_usual_batches_waiting() -> None:
    async def run() -> None:
        workers = ThreadWorkers(2)
        stage = Stage(workers)
        bombs = [stage.send((0, batch.build([(b"k", bytes(65 << 20))], timestamp_ms=TIME, codec=4))) for _ in range(3)]
        usual = stage.send((1, large(b"usual")))
        assert await stage.codes(usual) == [ErrorCode.none]
        assert not bombs[-1].done(), "they are opened one at a time, apart from the others"
        assert [await stage.codes(each) for each in bombs] == [[ErrorCode.corrupt_message]] * 3
        workers.close()

    asyncio.run(run())
