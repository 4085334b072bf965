"""Which transactional batches may be appended: those whose partition is in their producer's transaction (KIP-890).

Rules:
- A partition in which the transaction is open already needs no question. For any other the coordinator is asked: newer
  producers are put into the transaction by that, older ones must have seen to it themselves.
- The coordinator's answer holds at the moment it is given: the append follows without awaiting.
- Batches of one producer are admitted in the order of their arrival: while one waits for the coordinator, all that come
  later wait behind it.
- Newer producers begin at sequence 0 in a partition whose log does not know them (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.transactions import IMPLICIT_FROM, produce_error
from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.partition import Partition

TopicPartition = tuple[str, int]


class Coordinator(Protocol):
    """What is asked of the transaction coordinator."""

    async def register(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition], /
    ) -> Sequence[ErrorCode]: ...

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition], /
    ) -> Sequence[ErrorCode]: ...


class Candidate(NamedTuple):
    """One transactional batch."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    sequence: int

    @property
    def needs_no_question(self) -> bool:
        return self.partition.in_transaction(self.producer_id, self.producer_epoch)

    @property
    def place(self) -> TopicPartition:
        return self.partition.topic, self.partition.index


class Ticket:
    """A place in a queue."""

    __slots__ = ("_before", "left")

    def __init__(self, before: asyncio.Future[None] | None) -> None:
        self._before = before
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait for all who came before."""
        if self._before is not None:
            await asyncio.wait([self._before])  # which leaves it alone if we are cancelled

    def leave(self, *_: object) -> None:
        """Let the next one in; if we were given up while we waited, when those before us have left."""
        if self.left.done():
            return
        if self._before is None or self._before.done():
            self.left.set_result(None)
        else:
            self._before.add_done_callback(self.leave)


class Admission:
    """See the module."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._last: dict[
            int, asyncio.Future[None]
        ] = {}  # producer id -> resolved when the last in its queue is through

    def needs_no_wait(self, candidates: Sequence[Candidate]) -> bool:
        """Whether these batches, all of one producer, may be appended at once."""
        return candidates[0].producer_id not in self._last and all(one.needs_no_question for one in candidates)

    def enter(self, producer_id: int) -> Ticket:
        """A place in the producer's queue, from now on."""
        ticket = Ticket(self._last.get(producer_id))
        self._last[producer_id] = ticket.left
        ticket.left.add_done_callback(lambda left: self._forget(producer_id, left))
        return ticket

    def _forget(self, producer_id: int, left: asyncio.Future[None]) -> None:
        if self._last.get(producer_id) is left:
            del self._last[producer_id]

    async def admit(
        self, transactional_id: str, candidates: Sequence[Candidate], version: int
    ) -> dict[TopicPartition, ApiError | None]:
        """Why each is to be refused; None: it may be appended now, and not a moment later."""
        errors: Sequence[ErrorCode] = ()
        if not all(one.needs_no_question for one in candidates):
            # All are asked for: those that need no question now may need one when the answer comes.
            ask = self.coordinator.register if version >= IMPLICIT_FROM else self.coordinator.verify
            first = candidates[0]
            places = [one.place for one in candidates]
            errors = await ask(transactional_id, first.producer_id, first.producer_epoch, places)
        errors = errors or [ErrorCode.none] * len(candidates)
        return {one.place: self._judge(one, error, version) for one, error in zip(candidates, errors, strict=True)}

    @staticmethod
    def _judge(one: Candidate, error: ErrorCode, version: int) -> ApiError | None:
        if error is not ErrorCode.none:
            return ApiError(produce_error(error, version), f"the partition is not in the transaction: {error.name}")
        if version >= IMPLICIT_FROM and one.sequence > 0 and one.partition.log.producers.get(one.producer_id) is None:
            return ApiError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {one.producer_id} sent sequence {one.sequence}, but not 0 yet",
            )
        return None
