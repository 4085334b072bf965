"""Transactional batches before they are appended: who is asked, in which order, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.apis import produce
from headrace.apis.api import Context, Encoded
from headrace.broker.admission import Admission
from headrace.broker.partition import Partition
from headrace.broker.record_validation import RecordValidation
from headrace.broker.refusals import Refusals
from headrace.core.errors import ApiError, ErrorCode, ProtocolError
from headrace.testing.metadata import InlineWorkers
from headrace.testing.partitions import open_partition
from headrace.testing.transactions import make_transactional
from headrace.wire import batch, messages
from headrace.wire.produce_request import ProduceRequest

NONE = ErrorCode.none


@dataclass
class Coordinator:
    """Answers when it is let; remembers what it was asked."""

    asked: list[tuple[str, int, int, list[tuple[str, int]]]] = field(default_factory=list)
    errors: dict[tuple[str, int], ErrorCode] = field(default_factory=dict)
    gates: list[asyncio.Future[None]] = field(default_factory=list)
    hold: bool = False

    async def register(
        self, name: str, producer_id: int, epoch: int, places: Sequence[tuple[str, int]]
    ) -> list[ErrorCode]:
        return await self._answer("register", producer_id, epoch, places)

    async def verify(
        self, name: str, producer_id: int, epoch: int, places: Sequence[tuple[str, int]]
    ) -> list[ErrorCode]:
        return await self._answer("verify", producer_id, epoch, places)

    async def _answer(
        self, how: str, producer_id: int, epoch: int, places: Sequence[tuple[str, int]]
    ) -> list[ErrorCode]:
        self.asked.append((how, producer_id, epoch, list(places)))
        if self.hold:
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.gates.append(gate)
            await gate
        return [self.errors.get(place, NONE) for place in places]


class Stage:
    """Produce over two partitions of one topic."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.partitions = [open_partition(index=index) for index in (0, 1)]
        self.missing: set[int] = set()
        self.counted: list[ErrorCode] = []
        self.service: Any = SimpleNamespace(
            partitions=SimpleNamespace(get=self._get, replica=lambda topic, index: self.partitions[index]),
            refusals=Refusals(),
            clock=SimpleNamespace(monotonic=lambda: 0.0, now_ms=lambda: 1000),
            validation=RecordValidation(),
            workers=InlineWorkers(),
            admission=Admission(self.coordinator),
            topic_name=lambda _: "orders",
            count_error=lambda _, code: self.counted.append(code),
        )

    def _get(self, topic: str, index: int) -> Partition:
        if topic != "orders" or index >= len(self.partitions) or index in self.missing:
            raise ApiError(ErrorCode.unknown_topic_or_partition)
        return self.partitions[index]

    def send(self, *batches: tuple[int, bytes], name: str | None = "t", version: int = 12, acks: int = -1) -> Any:
        request = ProduceRequest(name, acks, 1000, [("orders", None, list(batches))])
        return produce.handle(Context(self.service, version, "", ""), request)

    async def errors(self, outcome: Any, version: int = 12) -> list[ErrorCode]:
        answer = await outcome if isinstance(outcome, Awaitable) else outcome
        assert isinstance(answer, Encoded)
        decoded: Any = messages.decode_response(0, version, b"".join(bytes(part) for part in answer.parts))
        return [ErrorCode(part.error_code) for topic in decoded.responses for part in topic.partition_responses]

    def values(self, index: int = 0) -> list[bytes | None]:
        return [
            record.value
            for header, records in self.partitions[index].read_batches()
            if not batch.is_control(header)
            for record in records
        ]

    def end(self, index: int, producer_id: int = 7, epoch: int = 0) -> None:
        self.partitions[index].write_marker(producer_id, epoch, commit=False, coordinator_epoch=0)


def records(value: bytes, sequence: int = 0, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    return make_transactional([value], producer_id=producer_id, epoch=epoch, sequence=sequence, timestamp_ms=1000)


def scenario(work: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        await work(Stage())

    asyncio.run(run())


def test_a_newer_producer_is_registered_and_an_older_one_verified() -> None:
    async def work(stage: Stage) -> None:
        assert await stage.errors(stage.send((0, records(b"a")))) == [NONE]
        older = stage.send((1, records(b"b")), version=11)
        assert await stage.errors(older, 11) == [NONE]
        assert stage.coordinator.asked == [
            ("register", 7, 0, [("orders", 0)]),
            ("verify", 7, 0, [("orders", 1)]),
        ]

    scenario(work)


def test_a_partition_in_which_the_transaction_is_open_is_appended_to_at_once() -> None:
    async def work(stage: Stage) -> None:
        await stage.send((0, records(b"a")))
        again = stage.send((0, records(b"b", 1)))
        assert isinstance(again, Encoded)
        assert len(stage.coordinator.asked) == 1
        assert stage.values() == [b"a", b"b"]

    scenario(work)


def test_plain_batches_never_wait() -> None:
    async def work(stage: Stage) -> None:
        plain = batch.build([(None, b"x")], timestamp_ms=1000)
        for name in (None, "t"):
            assert isinstance(stage.send((0, plain), name=name), Encoded)
        assert stage.coordinator.asked == []

    scenario(work)


def test_no_batch_overtakes_one_of_its_producer_that_waits() -> None:
    async def work(stage: Stage) -> None:
        stage.coordinator.hold = True
        sent = [stage.send((0, records(b"%d" % number, number))) for number in range(4)]
        other = stage.send((1, records(b"other", producer_id=8)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [(how, who) for how, who, _, _ in stage.coordinator.asked] == [("register", 7), ("register", 8)]
        assert stage.values() == []
        stage.coordinator.gates[1].set_result(None)
        assert await stage.errors(other) == [NONE]
        stage.coordinator.gates[0].set_result(None)
        for outcome in sent:
            assert await stage.errors(outcome) == [NONE]
        assert stage.values() == [b"0", b"1", b"2", b"3"]
        assert isinstance(stage.send((0, records(b"4", 4))), Encoded)

    scenario(work)


def test_a_batch_for_an_open_partition_waits_behind_one_for_a_new_partition() -> None:
    async def work(stage: Stage) -> None:
        await stage.send((0, records(b"a")))
        stage.coordinator.hold = True
        first = stage.send((1, records(b"b")))
        second = stage.send((0, records(b"c", 1)))
        await asyncio.sleep(0)
        assert stage.values() == [b"a"]
        stage.coordinator.gates[0].set_result(None)
        assert await stage.errors(first) == await stage.errors(second) == [NONE]
        assert stage.values(0) == [b"a", b"c"]

    scenario(work)


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_goes_away_holds_nobody_up(begun: bool) -> None:
    async def work(stage: Stage) -> None:
        stage.coordinator.hold = True
        first, second, third = (stage.send((0, records(b"%d" % n, n))) for n in range(3))
        if begun:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(stage.coordinator.asked) == 1, "the third waits for the first, though the second is gone"
        first.cancel()
        stage.coordinator.hold = False
        assert await stage.errors(third) == [ErrorCode.out_of_order_sequence_number]
        assert stage.values() == []
        assert await stage.errors(stage.send((0, records(b"0")))) == [NONE]

    scenario(work)


def test_nothing_follows_a_first_batch_that_was_refused() -> None:
    """The log does not know the producer: it would take any sequence."""

    async def work(stage: Stage) -> None:
        for version in (11, 12):
            stage.partitions[0] = open_partition()
            stage.coordinator.errors = {("orders", 0): ErrorCode.coordinator_load_in_progress}
            first = stage.send((0, records(b"0")), version=version)
            assert await stage.errors(first, version) == [ErrorCode.not_enough_replicas]
            stage.coordinator.errors = {}
            second = stage.send((0, records(b"1", 1)), version=version)
            assert await stage.errors(second, version) == [ErrorCode.not_enough_replicas], "the same reason"
            for number in range(2):
                again = stage.send((0, records(b"%d" % number, number)), version=version)
                assert await stage.errors(again, version) == [NONE]
            assert stage.values() == [b"0", b"1"]

    scenario(work)


def test_a_newer_producer_that_nobody_knows_begins_at_sequence_zero() -> None:
    async def work(stage: Stage) -> None:
        assert await stage.errors(stage.send((0, records(b"x", 5)))) == [ErrorCode.out_of_order_sequence_number]
        older = stage.send((0, records(b"x", 5)), version=11)
        assert await stage.errors(older, 11) == [NONE]

    scenario(work)


@pytest.mark.parametrize(
    ("error", "version", "answer"),
    [
        (ErrorCode.producer_fenced, 12, ErrorCode.invalid_producer_epoch),
        (ErrorCode.producer_fenced, 9, ErrorCode.invalid_producer_epoch),
        (ErrorCode.transaction_abortable, 12, ErrorCode.transaction_abortable),
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.concurrent_transactions, 12, ErrorCode.concurrent_transactions),
        (ErrorCode.concurrent_transactions, 11, ErrorCode.not_enough_replicas),
        (ErrorCode.coordinator_not_available, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.invalid_producer_id_mapping, 12, ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_what_the_coordinator_refuses_is_told_in_words_of_the_version(
    error: ErrorCode, version: int, answer: ErrorCode
) -> None:
    async def work(stage: Stage) -> None:
        stage.coordinator.errors = {("orders", 1): error}
        outcome = stage.send((0, records(b"a")), (1, records(b"b")), version=version)
        assert await stage.errors(outcome, version) == [NONE, answer]
        assert (stage.values(0), stage.values(1)) == ([b"a"], [])
        assert stage.counted == [answer]

    scenario(work)


def test_a_transaction_that_ends_while_the_coordinator_is_asked_is_not_joined() -> None:
    """Both partitions are asked for, since what was open may have ended when the answer comes."""

    async def work(stage: Stage) -> None:
        await stage.send((0, records(b"a")))
        stage.coordinator.hold = True
        outcome = stage.send((0, records(b"b", 1)), (1, records(b"c")))
        await asyncio.sleep(0)
        assert stage.coordinator.asked[-1][3] == [("orders", 0), ("orders", 1)]
        stage.end(0)
        stage.coordinator.errors = dict.fromkeys([("orders", 0), ("orders", 1)], ErrorCode.producer_fenced)
        stage.coordinator.gates[-1].set_result(None)
        assert await stage.errors(outcome) == [ErrorCode.invalid_producer_epoch] * 2
        assert (stage.values(0), stage.values(1)) == ([b"a"], [])

    scenario(work)


def test_a_partition_that_comes_into_being_meanwhile_is_not_written_to() -> None:
    async def work(stage: Stage) -> None:
        stage.missing = {1}
        stage.coordinator.hold = True
        outcome = stage.send((0, records(b"a")), (1, records(b"b")))
        await asyncio.sleep(0)
        stage.missing = set()
        stage.coordinator.gates[0].set_result(None)
        assert await stage.errors(outcome) == [NONE, ErrorCode.unknown_topic_or_partition]
        assert stage.values(1) == []

    scenario(work)


def test_a_transactional_batch_needs_a_transactional_id() -> None:
    async def work(stage: Stage) -> None:
        refused = stage.send((0, records(b"a")), name=None)
        assert await stage.errors(refused) == [ErrorCode.transactional_id_authorization_failed]
        assert stage.values() == []

    scenario(work)


def test_batches_of_two_producers_in_one_request_are_refused() -> None:
    async def work(stage: Stage) -> None:
        outcome = stage.send((0, records(b"a")), (1, records(b"b", producer_id=8)))
        assert await stage.errors(outcome) == [ErrorCode.invalid_producer_id_mapping] * 2
        assert (stage.values(0), stage.values(1)) == ([], [])

    scenario(work)


def test_without_acknowledgement_a_refused_transactional_batch_closes_the_connection() -> None:
    async def work(stage: Stage) -> None:
        stage.coordinator.errors = {("orders", 0): ErrorCode.producer_fenced}
        with pytest.raises(ProtocolError):
            await stage.send((0, records(b"a")), acks=0)
        stage.coordinator.errors = {}
        assert await stage.send((0, records(b"a")), acks=0) is None
        assert stage.values() == [b"a"]

    scenario(work)


def test_a_late_copy_that_is_refused_does_not_stop_what_comes_next() -> None:
    async def work(stage: Stage) -> None:
        assert await stage.errors(stage.send((0, records(b"a")), version=11), 11) == [NONE]
        stage.end(0)
        stage.coordinator.errors[("orders", 0)] = ErrorCode.transaction_abortable
        late = stage.send((0, records(b"a")), version=11)
        assert await stage.errors(late, 11) == [ErrorCode.transaction_abortable]
        stage.coordinator.errors.clear()
        assert await stage.errors(stage.send((0, records(b"b", 1)), version=11), 11) == [NONE]
        assert stage.values() == [b"a", b"b"]

    scenario(work)
