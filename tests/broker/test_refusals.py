"""Which batches have to wait for one that was refused before them."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apis import produce
from headrace.apis.api import Context, Encoded
from headrace.broker.record_validation import RecordValidation
from headrace.broker.refusals import LASTING_S, MOST, UNDER_WAY_BEHIND, BehindRefusedError, Refusals
from headrace.core.errors import ApiError, DiskFullError, ErrorCode
from headrace.storage.producers import SEQUENCE_MASK
from headrace.testing.metadata import InlineWorkers
from headrace.testing.partitions import open_partition
from headrace.wire import batch, messages
from headrace.wire.produce_request import ProduceRequest

PLACE = ("t", None, 0)
FULL = ApiError(ErrorCode.kafka_storage_error, "no space left")


def header(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> batch.BatchHeader:
    data = batch.build(
        [(None, b"v")], timestamp_ms=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    return next(batch.headers(data))


def is_refused(refusals: Refusals, *what, is_known: bool = False) -> bool:
    try:
        refusals.check(*what, is_known=is_known)
    except BehindRefusedError as error:
        assert error.code is FULL.code
        return True
    return False


def test_what_comes_behind_a_refused_batch_waits_until_that_has_come_again() -> None:
    refusals = Refusals()
    for sequence in (3, 0, 5):
        refusals.note(PLACE, header(sequence), FULL, 1.0)
    assert is_refused(refusals, PLACE, header(3), 2.0)
    assert not is_refused(refusals, PLACE, header(0), 2.0)
    assert not is_refused(refusals, PLACE, header(3), 2.0)
    assert not refusals


def test_sequences_that_begin_again_at_zero_are_behind() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(SEQUENCE_MASK), FULL, 1.0)
    assert is_refused(refusals, PLACE, header(0), 2.0)
    assert not is_refused(refusals, PLACE, header(SEQUENCE_MASK - 1), 2.0)


@pytest.mark.parametrize(
    "what",
    [
        (("t", None, 1), header(3), 2.0),
        (PLACE, header(3, producer_id=8), 2.0),
        (PLACE, header(3, epoch=1), 2.0),
        (PLACE, header(3), 2.0 + LASTING_S),
    ],
)
def test_other_partitions_producers_epochs_and_times_are_not_concerned(what) -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), FULL, 1.0)
    assert not is_refused(refusals, *what)
    assert refusals.reason_of(*what) is None


def test_what_the_log_of_a_known_producer_accepts_is_accepted() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), FULL, 1.0)
    assert not is_refused(refusals, PLACE, header(3), 1.0, is_known=True)
    reason = refusals.reason_of(PLACE, header(3), 1.0)
    assert reason is not None
    assert reason.code is FULL.code
    assert "no space left" in reason.message


def test_a_producer_that_has_given_up_what_was_refused_is_told_that_it_is_out_of_order() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), FULL, 1.0)
    for sequence in range(1, UNDER_WAY_BEHIND + 1):
        assert refusals.reason_of(PLACE, header(sequence), 1.0) is not None
    assert refusals.reason_of(PLACE, header(1), 1.0) is None
    assert not refusals


def test_a_batch_that_is_refused_again_excuses_as_many_behind_it_again() -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.note(PLACE, header(0), FULL, 1.0)
        for sequence in range(1, UNDER_WAY_BEHIND + 1):
            reason = refusals.reason_of(PLACE, header(sequence), 1.0)
            assert reason is not None
            refusals.note(PLACE, header(sequence), reason, 1.0)  # is not counted as a refusal of its own
    assert refusals.reason_of(PLACE, header(1), 1.0) is None


def test_a_batch_that_the_log_has_is_not_waited_for() -> None:
    refusals = Refusals()
    producers = open_partition().log.producers
    producers.add(header(4), 0, 1, 1)
    refusals.note(PLACE, header(4), FULL, 1.0, producers)
    assert not refusals
    refusals.note(PLACE, header(5), FULL, 1.0, producers)
    assert refusals


def test_an_old_refusal_does_not_count_when_there_is_a_new_one() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(0), FULL, 1.0)
    refusals.note(PLACE, header(50), FULL, 2.0 + LASTING_S)
    assert is_refused(refusals, PLACE, header(60), 2.0 + LASTING_S)
    assert not is_refused(refusals, PLACE, header(50), 2.0 + LASTING_S)


def test_in_quiet_times_nothing_is_left() -> None:
    refusals = Refusals()
    for producer_id in range(3):
        refusals.note(PLACE, header(0, producer_id=producer_id), FULL, 1.0)
    refusals.check(("u", None, 0), header(0), 2.0 + LASTING_S, is_known=False)
    assert not refusals


def test_batches_without_a_producer_are_not_noted_and_of_others_only_the_last() -> None:
    refusals = Refusals()
    refusals.note(PLACE, header(-1, producer_id=-1, epoch=-1), FULL, 1.0)
    assert not refusals
    for producer_id in range(MOST + 5):
        refusals.note(PLACE, header(0, producer_id=producer_id), FULL, 1.0)
    assert len(refusals) == MOST
    assert not is_refused(refusals, PLACE, header(3, producer_id=4), 1.0)
    assert is_refused(refusals, PLACE, header(3, producer_id=5), 1.0)


# ---------------------------------------------------------------------- a producer with five requests in flight


class Broker:
    """Produce over two partitions whose disk is full, or whose replicas are too few, when the test says so."""

    def __init__(self) -> None:
        self.partitions = [open_partition(index=index) for index in (0, 1)]
        self.absent = False
        self.service: Any = SimpleNamespace(
            partitions=SimpleNamespace(get=self._get, replica=lambda topic, index: self.partitions[index]),
            refusals=Refusals(),
            clock=SimpleNamespace(monotonic=lambda: 0.0, now_ms=lambda: 1000),
            validation=RecordValidation(),
            workers=InlineWorkers(),
            admission=SimpleNamespace(queues={}),
            topic_name=lambda _: "orders",
            count_error=lambda _, code: None,
        )

    def _get(self, topic: str, index: int):
        if self.absent:
            raise ApiError(ErrorCode.not_leader_or_follower)
        return self.partitions[index]

    def produce(self, batches: list[tuple[int, bytes]], fault: str, at: int) -> dict[int, ErrorCode]:
        """`fault`: what is wrong with partition `at` (or with both, if the node does not lead)."""
        self.absent = fault == "absent"
        file = self.partitions[at].log._shelf.active.file
        real = file.append

        def no_space(parts):
            raise DiskFullError("no space left")

        if fault == "full":
            file.append = no_space  # type: ignore[method-assign]
        try:
            request = ProduceRequest(None, -1, 1000, [("orders", None, list(batches))])
            answer = produce.handle(Context(self.service, 9, "", ""), request)
        finally:
            file.append = real  # type: ignore[method-assign]
        assert isinstance(answer, Encoded)
        decoded: Any = messages.decode_response(0, 9, b"".join(bytes(part) for part in answer.parts))
        rows = [row for topic in decoded.responses for row in topic.partition_responses]
        return {row.index: ErrorCode(row.error_code) for row in rows}

    def values(self, index: int) -> list[int]:
        return [int(record.value or b"") for record in self.partitions[index].read_all()]


class Client:
    """One idempotent producer, as librdkafka is: at most five requests in flight; after an error the partition is
    drained, and everything that was not acknowledged is sent again, in order."""

    def __init__(self, count: int, sizes: list[int], gives_up: set[int]) -> None:
        self.left = {0: deque(range(0, count, 2)), 1: deque(range(1, count, 2))}  # records that are not acknowledged
        self.first = {0: 0, 1: 1}  # the record that has sequence 0 in the current epoch
        self.epoch = 0
        self.sizes = sizes
        self.gives_up = gives_up  # batches that are given up when they are refused, by their first record
        self.lost: set[int] = set()
        self.flying: deque[list[tuple[int, list[int]]]] = deque()
        self.sent = {0: 0, 1: 0}  # records of `left` that are in flight
        self.draining: set[int] = set()  # partitions in which nothing more is sent until all is answered
        self.refused: set[int] = set()  # since then
        self.epochs = 1

    def send(self) -> bool:
        """One more request, if that is possible."""
        request = []
        for index, left in self.left.items():
            size = self.sizes[len(left) % len(self.sizes)]
            records = list(left)[self.sent[index] : self.sent[index] + size]
            if records and index not in self.draining:
                request.append((index, records))
                self.sent[index] += len(records)
        if request:
            self.flying.append(request)
        return bool(request)

    def encode(self, index: int, records: list[int]) -> bytes:
        return batch.build(
            [(None, b"%d" % number) for number in records],
            timestamp_ms=1000,
            producer_id=7,
            producer_epoch=self.epoch,
            base_sequence=(records[0] - self.first[index]) // 2,
        )

    def answered(self, index: int, records: list[int], code: ErrorCode) -> None:
        self.sent[index] -= len(records)
        if code is ErrorCode.none:
            assert index not in self.refused, "a batch was accepted behind one that was refused"
            for number in records:
                assert self.left[index].popleft() == number
            return
        self.refused.add(index)
        self.draining.add(index)
        if code is ErrorCode.out_of_order_sequence_number:
            self.epochs += 1
            self.draining |= {0, 1}
        elif records[0] in self.gives_up:
            for number in records:
                self.left[index].remove(number)
                self.lost.add(number)

    def drained(self) -> None:
        """Nothing is in flight: go on."""
        self.draining.clear()
        self.refused.clear()
        if self.epochs - 1 != self.epoch:
            self.epoch = self.epochs - 1
            self.first = {index: left[0] if left else 0 for index, left in self.left.items()}


Step = tuple[bool, str, int]  # whether the client sends first; what is wrong when the next request arrives, and where


def run(client: Client, broker: Broker, script: list[Step]) -> None:
    """Let the client send everything. After the script nothing is wrong any more."""
    steps = iter(script)
    for _ in range(500):
        sends, fault, at = next(steps, (True, "none", 0))
        while sends and len(client.flying) < 5 and client.send():
            pass
        if not client.flying:
            client.drained()
            if not client.send():
                break
        request = client.flying.popleft()
        encoded = [(index, client.encode(index, records)) for index, records in request]
        for index, code in broker.produce(encoded, fault, at).items():
            client.answered(index, dict(request)[index], code)
    assert not any(client.left.values()), "the client cannot go on"


STEP = st.tuples(st.booleans(), st.sampled_from(["none", "none", "full", "absent"]), st.sampled_from([0, 1]))
SCRIPT = st.lists(STEP, max_size=40)
SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(SCRIPT, st.integers(2, 40), SIZES)
def test_a_passing_refusal_costs_no_record_no_duplicate_and_no_epoch(script, count, sizes) -> None:
    broker, client = Broker(), Client(count, sizes, set())
    run(client, broker, script)
    assert client.epochs == 1
    assert [broker.values(0), broker.values(1)] == [list(range(0, count, 2)), list(range(1, count, 2))]


@settings(max_examples=200, deadline=None)
@given(SCRIPT, st.integers(2, 40), SIZES, st.sets(st.integers(0, 40)))
def test_a_producer_that_gives_up_what_was_refused_goes_on_with_the_rest(script, count, sizes, gives_up) -> None:
    """In a new epoch, if there is a gap: it is told so when it has given up for certain."""
    broker, client = Broker(), Client(count, sizes, gives_up)
    run(client, broker, script)
    for index in (0, 1):
        assert broker.values(index) == [number for number in range(index, count, 2) if number not in client.lost]
