"""When a batch may be appended: after those that came before it, and, if it is transactional, when its partition is in
its producer's transaction (KIP-890).

Rules:
- A request that has to wait (its batches are looked at in a worker, the coordinator is asked) takes a place in the
  queue of each of its partitions, and of its producer if it is transactional. Whatever comes later for one of these
  waits behind it: batches are appended in the order of their arrival.
- Places in all queues are taken at once, so no two requests wait for each other.
- A partition in which the transaction is open already needs no question. For any other the coordinator is asked: newer
  producers are put into the transaction by that, older ones must have seen to it themselves.
- The coordinator's answer holds at the moment it is given: the append follows without awaiting.
- Newer producers begin at sequence 0 in a partition whose log does not know them (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
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
    """A place in some queues."""

    __slots__ = ("_before", "left")

    def __init__(self, before: list[asyncio.Future[None]]) -> None:
        self._before = before
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait for all who came before."""
        if self._before:
            await asyncio.wait(self._before)  # which leaves them alone if we are cancelled

    def leave(self, *_: object) -> None:
        """Let the next one in; if we were given up while we waited, when those before us have left."""
        if self.left.done():
            return
        waiting = next((before for before in self._before if not before.done()), None)
        if waiting is None:
            self.left.set_result(None)
        else:
            waiting.add_done_callback(self.leave)


class Admission:
    """The queues of a node's partitions and producers."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        # By partition or producer id: resolved when the last in its queue is through. Empty in quiet times.
        self.queues: dict[TopicPartition | int, asyncio.Future[None]] = {}

    def needs_no_wait(self, candidates: Sequence[Candidate]) -> bool:
        """Whether these batches, all of one producer, may be appended at once."""
        return candidates[0].producer_id not in self.queues and all(one.needs_no_question for one in candidates)

    def enter(self, keys: Iterable[TopicPartition | int]) -> Ticket:
        """A place in these queues, from now on."""
        keys = tuple(keys)
        ticket = Ticket([self.queues[key] for key in keys if key in self.queues])
        for key in keys:
            self.queues[key] = ticket.left
        ticket.left.add_done_callback(lambda left: self._forget(keys, left))
        return ticket

    def _forget(self, keys: Iterable[TopicPartition | int], left: asyncio.Future[None]) -> None:
        for key in keys:
            if self.queues.get(key) is left:
                del self.queues[key]

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
