"""The transaction coordinator: finds the shard that a transactional id lives in and puts commands to it.

Rules:
- A transactional id lives in one partition of the transaction topic, chosen by Kafka's own formula, for ever.
- Which shards are here is the business of `shards`. The topic is made when the first producer needs it; looking never
  makes it.
- Every method returns when its answer may go out, and raises ApiError if there can be none.
- A request that comes while the transaction before it is being ended waits a moment for that, since a client that is
  told CONCURRENT_TRANSACTIONS comes back much later than that takes. What comes behind it with the same transactional
  id waits, too: a client may abort what it has just begun without waiting for the answer.
- `register` and `verify` hold at the moment they return: who appends without awaiting in between (and without a task of
  its own for these calls) appends before every marker that ends the transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headrace.broker.internal_topics import OFFSETS_TOPIC
from headrace.broker.shards import Shards, partition_for
from headrace.broker.transaction_shard import MarkerWriter, TransactionLog, TransactionShard
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import TRANSACTIONAL_ID_LENGTH
from headrace.core.logs import limited
from headrace.txn.commands import (
    AddPartitions,
    Describe,
    Description,
    End,
    Identity,
    InitProducer,
    NeedsProducerId,
    Outcome,
    Verify,
)

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.broker.shards import ShardedTopic
    from headrace.core.ports import Clock, Workers
    from headrace.txn.records import TopicPartition, Transaction
    from headrace.txn.settings import TransactionSettings

__all__ = [
    "MarkerWriter",
    "TransactionCoordinator",
    "TransactionLog",
    "commit_error",
    "produce_error",
]

logger = logging.getLogger(__name__)

TRANSACTION_TOPIC: Final = "__transaction_state"
ABORTABLE_FROM: Final = 11  # Produce, from which clients know TRANSACTION_ABORTABLE
IMPLICIT_FROM: Final = 12  # Produce, from which partitions register themselves (KIP-890)
COMMIT_ABORTABLE_FROM: Final = 4  # TxnOffsetCommit, likewise
COMMIT_IMPLICIT_FROM: Final = 5
NOT_NOW: Final = frozenset(
    {ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
)


class _Turns:
    """Those who wait to put a command for one transactional id, in the order of their arrival."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with how many hold it or wait for it

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Does not yield if nobody is before us."""
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = lock, users - 1


class TransactionCoordinator:
    """See the module."""

    def __init__(
        self,
        settings: TransactionSettings,
        topic: ShardedTopic,
        markers: MarkerWriter,
        *,
        offsets_topic: ShardedTopic,
        next_producer_id: Callable[[], Awaitable[int]],
        clock: Clock,
        workers: Workers,
    ) -> None:
        self._settings = settings
        self._markers = markers
        self._offsets_topic = offsets_topic
        self._next_producer_id = next_producer_id
        self._clock = clock
        self._workers = workers
        self._shards: Shards[TransactionShard] = Shards(TRANSACTION_TOPIC, topic, self._shard)
        self._turns = _Turns()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what there is, and go on with what was being ended. Returns when all is loaded, or cannot be for now."""
        await self._shards.start()

    async def stop(self) -> None:
        await self._shards.stop()

    def role_changed(self, partition: Partition) -> None:
        """Partitions tell whom this node coordinates: one of their `watchers`."""
        self._shards.changed(partition)

    async def coordinator(self, transactional_id: str) -> int | None:
        """The partition in which an id lives; None if there is none, and none is needed. Raises ApiError."""
        return await self._shards.whereabouts(transactional_id)

    # -- producers -----------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None = None
    ) -> Identity:
        """Who may use this transactional id from now on; whoever did so before is fenced."""
        command = InitProducer(transactional_id=transactional_id, timeout_ms=timeout_ms, expected=expected)
        return await self._ask(command)

    async def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool, bump: bool
    ) -> Identity:
        """`bump`: by the newer protocol (EndTxn 5): the answer has the epoch to go on with."""
        command = End(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            commit=commit,
            bump=bump,
        )
        return await self._ask(command)

    # -- partitions ----------------------------------------------------------------------------------------------

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        command = AddPartitions(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=tuple(partitions),
        )
        return (await self._ask(command)).error

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
    ) -> ErrorCode:
        """The offsets of a group will be committed in this transaction."""
        partition = await self.offsets_partition(group_id)
        return await self.add_partitions(transactional_id, producer_id, producer_epoch, (partition,))

    async def offsets_partition(self, group_id: str) -> TopicPartition:
        """Where the offsets of a group are kept. Raises ApiError."""
        logs = self._offsets_topic.find() or await self._offsets_topic.ensure()
        if not logs:
            raise ApiError(ErrorCode.coordinator_not_available, "The offsets topic has no partitions.")
        return OFFSETS_TOPIC, partition_for(group_id, len(logs))

    async def register(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[ErrorCode]:
        """Put partitions that are about to be written to into the transaction (KIP-890, newer producers).

        An error per partition, in order.
        """
        asked = tuple(partitions)
        try:
            error = await self.add_partitions(transactional_id, producer_id, producer_epoch, asked)
        except ApiError as refusal:
            error = refusal.code
        if error is not ErrorCode.none:
            return [error] * len(asked)
        return await self.verify(transactional_id, producer_id, producer_epoch, asked)

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[ErrorCode]:
        """Whether partitions that are about to be written to are in the transaction (KIP-890, older producers).

        An error per partition, in order.
        """
        asked = tuple(partitions)
        command = Verify(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=asked,
        )
        try:
            if not self._shards.exist():
                return [_unknown(transactional_id)] * len(asked)
            return [*(await self._shards.find(transactional_id).verify(command)).errors]
        except ApiError as refusal:
            return [refusal.code] * len(asked)

    # -- to be looked at -----------------------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> Transaction | None:
        if not self._shards.exist():
            return None
        answer = await self._shards.find(transactional_id).ask(Describe(transactional_id=transactional_id))
        assert isinstance(answer, Description)
        return answer.transaction

    async def list(self) -> list[tuple[str, Transaction]]:
        """All transactional ids that are coordinated here. Raises ApiError if some are not loaded."""
        found = []
        for shard in self._shards.all_here():
            await shard.settle()
            if shard.machine is not None:
                found += list(shard.machine.items())
        return found

    # -- shards --------------------------------------------------------------------------------------------------

    async def _ask(self, command: InitProducer | AddPartitions | End) -> Identity:
        """Put a command, with a producer id if it needs one, and a little patience if another one is being ended."""
        if not isinstance(command, InitProducer) and not self._shards.exist():
            return Identity(_unknown(command.transactional_id))
        await self._shards.ensure()
        async with self._turns.turn(command.transactional_id):
            shard, answer = await self._decide(command)
        await shard.settled(command.transactional_id)
        return answer

    def _check_room(self, shard: TransactionShard, transactional_id: str) -> None:
        """Raises ApiError if the id is new and there are too many, for now."""
        if len(transactional_id) > TRANSACTIONAL_ID_LENGTH:
            raise ApiError(ErrorCode.invalid_request, "the transactional id is too long")
        if shard.machine is None or shard.machine.get(transactional_id) is not None:
            return
        if sum(len(each.machine) for each in self._shards if each.machine is not None) >= self._settings.max_ids:
            fault = f"this node has {self._settings.max_ids} transactional ids (transactions.max_ids)"
            logger.warning("a transactional id was refused", extra=limited("ids-full", reason=fault))
            raise ApiError(ErrorCode.coordinator_not_available, fault)

    async def _decide(self, command: InitProducer | AddPartitions | End) -> tuple[TransactionShard, Identity]:
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            shard = self._shards.find(command.transactional_id)
            if isinstance(command, InitProducer):
                self._check_room(shard, command.transactional_id)
            answer = shard.put(command)
            if isinstance(answer, NeedsProducerId):
                assert not isinstance(command, AddPartitions)
                command = replace(command, spare_id=await self._next_producer_id())
                continue
            answer = Identity(answer.error) if isinstance(answer, Outcome) else answer
            assert isinstance(answer, Identity)
            if answer.error is not ErrorCode.concurrent_transactions:
                return shard, answer
            await shard.settled(command.transactional_id)
            if deadline is None:
                deadline = loop.time() + self._settings.concurrent_wait_ms / 1000
            if not await shard.ended(command.transactional_id, deadline - loop.time()):
                return shard, answer

    def _shard(self, log: TransactionLog) -> TransactionShard:
        return TransactionShard(log, self._settings, self._markers, clock=self._clock, workers=self._workers)


def _unknown(transactional_id: str) -> ErrorCode:
    return ErrorCode.invalid_producer_id_mapping if transactional_id else ErrorCode.invalid_request


def produce_error(error: ErrorCode, version: int) -> ErrorCode:
    """An error of `register` or `verify` as a producer of this Produce version understands it."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and version < ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if error in NOT_NOW or (error is ErrorCode.concurrent_transactions and version < IMPLICIT_FROM):
        return ErrorCode.not_enough_replicas  # which all of them try again, and do not ask for metadata first
    return error


def commit_error(error: ErrorCode, version: int) -> ErrorCode:
    """An error of `register` or `verify` as a producer of this TxnOffsetCommit version understands it."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and version < COMMIT_ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if error is ErrorCode.concurrent_transactions and version < COMMIT_IMPLICIT_FROM:
        return ErrorCode.coordinator_load_in_progress
    return error
