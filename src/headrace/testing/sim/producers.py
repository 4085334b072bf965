"""Producers of the simulation: idempotent ones, transactional ones, and a copier that carries its offsets along.

Rules:
- What was sent is sent again, with the same sequence number, until its fate is known. What an older incarnation of a
  producer left unknown is never sent again under another producer id.
- An answer that only a broker without memory could give (a gap in front of the first unacknowledged batch) is a
  violation.
- A transaction is committed only if everything in it was acknowledged. Who does not learn the outcome says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    GROUP,
    LATER,
    OFFSET_FETCH,
    TRANSACTION,
    TXN_OFFSETS,
    Client,
    Partition,
    Unknown,
)
from headrace.testing.sim.history import History, Sent, Transaction, Violation
from headrace.testing.transactions import committed_in
from headrace.wire import batch

FENCED: Final = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
ABORTABLE: Final = frozenset({ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state})


class Lost(Exception):
    """This incarnation cannot go on: begin anew."""


class IdempotentProducer:
    """Keeps a few batches of one partition in flight, in order, until all are acknowledged."""

    def __init__(
        self, client: Client, history: History, partitions: Sequence[Partition], now_ms: Callable[[], int]
    ) -> None:
        self._client = client
        self._history = history
        self._partitions = partitions
        self._now_ms = now_ms
        self._numbers: dict[Partition, int] = {}
        self.running = True
        self.pending = 0  # batches whose fate is not known

    async def run(self) -> None:
        producer_id, epoch = await self._client.init_producer(None)
        await asyncio.gather(*(self._feed(each, producer_id, epoch) for each in self._partitions))

    async def _feed(self, partition: Partition, producer_id: int, epoch: int) -> None:
        client, dice = self._client, self._client.dice
        sequence = 0
        while self.running:
            window: list[tuple[list[Sent], bytes]] = []
            for _ in range(dice.choice((1, 1, 2, 3))):
                records = [self._next(partition) for _ in range(dice.choice((1, 2, 3)))]
                window.append((records, self._batch(records, producer_id, epoch, sequence)))
                sequence += len(records)
            self.pending += len(window)
            window = await self._send(partition, window)
            while window:  # one by one, as clients do: nothing may overtake what is sent again
                await client.pause(0.1)
                window = await self._send(partition, window[:1]) + window[1:]
            await client.pause(0.5)

    def _next(self, partition: Partition) -> Sent:
        number = self._numbers[partition] = self._numbers.get(partition, -1) + 1
        value = f"{self._client.name}/{partition[0]}-{partition[1]}/{number}".encode()
        record = Sent(value, partition, self._client.name, number)
        self._history.send(record)
        return record

    def _batch(self, records: list[Sent], producer_id: int, epoch: int, sequence: int) -> bytes:
        return batch.build(
            [(None, record.value) for record in records],
            timestamp_ms=self._now_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    async def _send(
        self, partition: Partition, window: list[tuple[list[Sent], bytes]]
    ) -> list[tuple[list[Sent], bytes]]:
        """What is still to be sent after one attempt at all."""
        try:
            answers = await self._client.produce(partition, [content for _, content in window])
        except Unknown:
            return window
        left = []
        for (records, content), answer in zip(window, answers, strict=True):
            if isinstance(answer, Unknown):
                left.append((records, content))
                continue
            error, offset = answer
            if error in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                for place, record in enumerate(records):
                    self._history.acknowledge(record, offset + place if error == ErrorCode.none else -1)
                self.pending -= 1
            elif error in LATER:
                left.append((records, content))
            elif error == ErrorCode.out_of_order_sequence_number and left:
                left.append((records, content))  # one before it is missing
            else:
                raise Violation(f"{self._client.name} got {error.name} for {records[0].value!r} in {partition}")
        return left


class TransactionalProducer:
    """Writes a few records to several partitions in each transaction, and commits or aborts."""

    def __init__(
        self,
        client: Client,
        history: History,
        partitions: Sequence[Partition],
        now_ms: Callable[[], int],
        *,
        modern: bool,
    ) -> None:
        self._client = client
        self._history = history
        self._partitions = partitions
        self._now_ms = now_ms
        self._modern = modern  # KIP-890: partitions join by themselves, every end bumps the epoch
        self._id = f"txn-{client.name}"
        self._producer = (-1, -1)
        self._sequences: dict[Partition, int] = {}
        self._numbers: dict[Partition, int] = {}
        self._count = 0
        self.running = True
        self.done = 0
        self.busy = False

    async def run(self) -> None:
        while self.running:
            self._producer = await self._client.init_producer(self._id)
            self._sequences = {}
            await self.begin()
            try:
                while self.running:
                    self.busy = True
                    await self.transact()
                    self.busy = False
                    await self._client.pause(0.4)
            except Lost:
                self._history.count("transactions lost")
                await self._client.pause(0.1)
        self.busy = False

    async def begin(self) -> None:
        """A new incarnation has its producer id."""

    def _transaction(self) -> Transaction:
        self._count += 1
        transaction = Transaction(f"{self._client.name}#{self._count}", verdict="aborted")
        self._history.transactions.append(transaction)
        return transaction

    async def transact(self) -> None:
        transaction = self._transaction()
        dice = self._client.dice
        commit = dice.random() < 0.75
        for partition in dice.sample(list(self._partitions), dice.randrange(1, len(self._partitions) + 1)):
            for _ in range(dice.choice((1, 2))):
                number = self._numbers[partition] = self._numbers.get(partition, -1) + 1
                value = f"{transaction.name}/{partition[0]}-{partition[1]}/{number}".encode()
                commit &= await self.write(transaction, partition, value, number)
        await self.end(transaction, commit=commit)

    async def write(self, transaction: Transaction, partition: Partition, value: bytes, number: int) -> bool:
        """Whether the record is in the transaction; False: it must be aborted. Raises Lost."""
        sent = Sent(value, partition, self._client.name, number, transaction=transaction)
        self._history.send(sent)
        transaction.values.append(value)
        if not self._modern and not await self._add(partition):
            return False
        sequence = self._sequences.get(partition, 0)
        content = batch.build(
            [(None, value)],
            timestamp_ms=self._now_ms(),
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        version = 12 if self._modern else 11

        async def attempt() -> tuple[ErrorCode, int]:
            [answer] = await self._client.produce(partition, [content], transactional_id=self._id, version=version)
            if isinstance(answer, Unknown):
                raise answer
            return answer

        error, offset = await self._until_known(attempt)
        if error == ErrorCode.none:
            sent.offset = offset
            self._sequences[partition] = sequence + 1
            self._history.count("transactional records")
            return True
        if error == ErrorCode.duplicate_sequence_number:
            self._sequences[partition] = sequence + 1
            return True
        return self._refused(error, f"Produce of {value!r}")

    async def _add(self, partition: Partition) -> bool:
        async def attempt() -> tuple[ErrorCode, int]:
            request = {
                "v3_and_below_transactional_id": self._id,
                "v3_and_below_producer_id": self._producer[0],
                "v3_and_below_producer_epoch": self._producer[1],
                "v3_and_below_topics": [{"name": partition[0], "partitions": [partition[1]]}],
            }
            answer = await self._ask_coordinator(ADD_PARTITIONS, request)
            [[row]] = [topic.results_by_partition for topic in answer.results_by_topic_v3_and_below]
            return row.partition_error_code, 0

        error, _ = await self._until_known(attempt)
        return error == ErrorCode.none or self._refused(error, "AddPartitionsToTxn")

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Raises Lost."""
        if commit:
            transaction.verdict = "unknown"

        async def attempt() -> tuple[ErrorCode, Any]:
            request = {
                "transactional_id": self._id,
                "producer_id": self._producer[0],
                "producer_epoch": self._producer[1],
                "committed": commit,
            }
            answer = await self._ask_coordinator(END_TXN if self._modern else (26, 3), request)
            return answer.error_code, answer

        error, answer = await self._until_known(attempt)
        if error != ErrorCode.none:
            self._refused(error, f"EndTxn of {transaction.name}")
            raise Lost
        if commit:
            transaction.verdict = "committed"
            for value in transaction.values:
                sent = self._history.sent[value]
                sent.fate = "acknowledged"
        self._history.count("transactions committed" if commit else "transactions aborted")
        self.done += 1
        if self._modern:
            if answer.producer_id != self._producer[0] or answer.producer_epoch != self._producer[1]:
                self._sequences = {}
            self._producer = (answer.producer_id, answer.producer_epoch)

    def _refused(self, error: ErrorCode, what: str) -> bool:
        if error in ABORTABLE:
            return False
        if error in FENCED or error == ErrorCode.invalid_producer_id_mapping:
            raise Lost
        raise Violation(f"{self._client.name} got {error.name} for {what}")

    async def _ask_coordinator(self, api: tuple[int, int], request: dict[str, Any]) -> Any:
        return await self._client.call(await self._client.coordinator(self._id, TRANSACTION), api, request)

    async def _until_known(self, attempt: Callable[[], Awaitable[tuple[ErrorCode, Any]]]) -> tuple[ErrorCode, Any]:
        while True:
            try:
                error, answer = await attempt()
            except Unknown:
                await self._client.pause(0.1)
                continue
            if error not in LATER:
                return error, answer
            self._client.moved((self._id, TRANSACTION))
            await self._client.pause(0.05)


class Copier(TransactionalProducer):
    """Reads one partition and writes what it read to another, with its offsets, in transactions."""

    def __init__(self, client: Client, history: History, source: Partition, target: Partition, **others: Any) -> None:
        super().__init__(client, history, [target], **others)
        self.source, self.target = source, target
        self.group = f"copies-{client.name}"
        self._position = 0

    async def begin(self) -> None:
        """Go on where the last committed transaction ended."""
        at_least = self._history.commits.get((self.group, self.source), 0)

        async def attempt() -> tuple[ErrorCode, Any]:
            topic, index = self.source
            request = {
                "group_id": self.group,
                "topics": [{"name": topic, "partition_indexes": [index]}],
                "require_stable": True,
            }
            answer = await self._client.call(await self._client.coordinator(self.group, GROUP), OFFSET_FETCH, request)
            if answer.error_code != ErrorCode.none:
                self._client.moved((self.group, GROUP))
                return answer.error_code, None
            [[row]] = [topic.partitions for topic in answer.topics]
            return row.error_code, row.committed_offset

        error, offset = await self._until_known(attempt)
        if error != ErrorCode.none:
            raise Violation(f"OffsetFetch of {self.group}: {error.name}")
        self._position = max(0, offset)
        self._history.resumed(self.group, self.source, self._position, at_least)

    async def transact(self) -> None:
        try:
            row = await self._client.fetch(self.source, self._position, committed_only=True)
        except Unknown:
            await self._client.pause(0.1)
            return
        if row.error_code != ErrorCode.none:
            if row.error_code not in LATER:
                raise Violation(f"{self._client.name} got {row.error_code.name} at {self.source} {self._position}")
            await self._client.pause(0.1)
            return
        aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
        content = row.records or b""
        found = committed_in(content, aborted, offset=self._position)
        ends = [each.base_offset + each.last_offset_delta + 1 for each in batch.headers(content)]
        if not ends:
            return
        if not found:
            self._position = max(self._position, *ends)
            return
        found = found[: self._client.dice.choice((1, 3, 8, 50))]
        next_offset = found[-1][0] + 1
        await self._copy(found, next_offset)

    async def _copy(self, found: Sequence[tuple[int, bytes | None]], next_offset: int) -> None:
        transaction = self._transaction()
        commit = self._client.dice.random() < 0.85
        for offset, value in found:
            self._history.read(self.source, offset, value, by=self._client.name)
            copied = b"copy of " + (value or b"") + b" by " + transaction.name.encode()
            commit = commit and await self.write(transaction, self.target, copied, self._next_number())
        commit = commit and await self._carry_offset(next_offset)
        await self.end(transaction, commit=commit)
        if not commit:
            return
        self._position = next_offset
        self._history.committed(self.group, self.source, next_offset)

    def _next_number(self) -> int:
        number = self._numbers[self.target] = self._numbers.get(self.target, -1) + 1
        return number

    async def _carry_offset(self, offset: int) -> bool:
        if not self._modern:
            request = {
                "transactional_id": self._id,
                "producer_id": self._producer[0],
                "producer_epoch": self._producer[1],
                "group_id": self.group,
            }

            async def add() -> tuple[ErrorCode, Any]:
                answer = await self._ask_coordinator(ADD_OFFSETS, request)
                return answer.error_code, None

            error, _ = await self._until_known(add)
            if error != ErrorCode.none:
                return self._refused(error, "AddOffsetsToTxn")
        topic, index = self.source

        async def commit() -> tuple[ErrorCode, Any]:
            part = {"partition_index": index, "committed_offset": offset}
            body = {
                "transactional_id": self._id,
                "group_id": self.group,
                "producer_id": self._producer[0],
                "producer_epoch": self._producer[1],
                "topics": [{"name": topic, "partitions": [part]}],
            }
            where = await self._client.coordinator(self.group, GROUP)
            answer = await self._client.call(where, TXN_OFFSETS if self._modern else (28, 3), body)
            [[row]] = [topic.partitions for topic in answer.topics]
            if row.error_code in LATER:
                self._client.moved((self.group, GROUP))
            return row.error_code, None

        error, _ = await self._until_known(commit)
        return error == ErrorCode.none or self._refused(error, "TxnOffsetCommit")
