"""Kafka clients for the simulation: real frames over simulated streams, and no more cleverness than a test can follow.

Rules:
- A call ends with an answer or as `Unknown`: the request may have been carried out, or not, or later.
- Nothing is retried here; whoever calls decides.
- Where leaders and coordinators are is asked of any node, and forgotten when somebody says that it is wrong.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

from headrace.core.errors import ErrorCode, ProtocolError
from headrace.core.ports import Address
from headrace.testing.peer import frame, header
from headrace.testing.sim.network import SimNetwork
from headrace.wire import batch
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import response_header
from headrace.wire.messages import decode_response, encode_request

PRODUCE, FETCH, LIST_OFFSETS, METADATA = (0, 12), (1, 12), (2, 7), (3, 12)
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = (8, 8), (9, 7), (10, 3)
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = (11, 7), (12, 4), (13, 4), (14, 5)
CREATE_TOPICS, INIT_PRODUCER_ID = (19, 7), (22, 5)
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSETS = (24, 3), (25, 3), (26, 5), (28, 5)
GROUP, TRANSACTION = 0, 1

Partition = tuple[str, int]
# Errors that say: look again where it is, and try once more.
MOVED: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_controller,
        ErrorCode.broker_not_available,
        ErrorCode.network_exception,
    }
)
# And those that say: not now.
LATER: Final = MOVED | {
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.concurrent_transactions,
    ErrorCode.unstable_offset_commit,
    ErrorCode.throttling_quota_exceeded,
}


class Unknown(Exception):
    """Nobody answered in time: what became of the request is not known."""


class Channel(asyncio.Protocol):
    """One connection to a broker. Answers come in the order of the requests."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter(1 << 27)
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._transport: Any = None
        self._count = 0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        for content in self._splitter.feed(data):
            number, future = self._waiting.popleft()
            assert int.from_bytes(content[:4], "big") == number, "an answer out of its turn"
            if not future.done():
                future.set_result(content)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(Unknown("the connection was lost"))

    def send(self, api: tuple[int, int], body: bytes, client_id: str) -> asyncio.Future[bytes]:
        self._count += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if not self.open:
            future.set_exception(Unknown("the connection was lost"))
            return future
        self._waiting.append((self._count, future))
        self._transport.write(frame(header(*api, self._count, client_id) + body))
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Client:
    """What every kind of client needs: connections, leaders, coordinators."""

    def __init__(self, name: str, network: SimNetwork, seeds: Sequence[Address], dice: Random) -> None:
        self.name = name
        self.dice = dice
        self._network = network
        self._seeds = list(seeds)
        self._channels: dict[Address, Channel] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._leaders: dict[Partition, Address] = {}
        self._leader_epochs: dict[Partition, tuple[UUID | None, int]] = {}  # with the id of the topic
        self._coordinators: dict[tuple[str, int], Address] = {}
        self.disks_lie = False  # CORRUPT_MESSAGE may pass: somebody has an undamaged copy, or will have one

    async def call(
        self, where: Address, api: tuple[int, int], request: Mapping[str, Any], timeout_s: float = 3.0
    ) -> Any:
        """Raises Unknown."""
        [answer] = await self.call_in_order(where, api, [request], timeout_s)
        if isinstance(answer, Unknown):
            raise answer
        return answer

    async def call_in_order(
        self, where: Address, api: tuple[int, int], requests: Sequence[Mapping[str, Any]], timeout_s: float = 3.0
    ) -> list[Any]:
        """Requests that leave one behind the other on one connection; the answer of each, or Unknown."""
        bodies = [encode_request(*api, request) for request in requests]
        answers: list[Any] = []
        try:
            async with asyncio.timeout(timeout_s):
                channel = await self._channel(where)
                for future in [channel.send(api, body, self.name) for body in bodies]:
                    try:
                        answers.append(_decode(api, await future))
                    except Unknown as error:
                        self.forget(where)
                        answers.append(error)
        except (TimeoutError, OSError) as error:
            stale = self._channels.pop(where, None)
            if stale is not None:
                stale.close()
            self.forget(where)
            answers += [Unknown(str(error) or "timed out")] * (len(requests) - len(answers))
        return answers

    async def _channel(self, where: Address) -> Channel:
        lock = self._opening.setdefault(where, asyncio.Lock())
        async with lock:
            channel = self._channels.get(where)
            if channel is None or not channel.open:
                channel = self._channels[where] = Channel()
                made = channel
                await self._network.connect(where, lambda: made)
            return channel

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # -- where things are

    def forget(self, where: Address) -> None:
        self._leaders = {key: at for key, at in self._leaders.items() if at != where}
        self._coordinators = {key: at for key, at in self._coordinators.items() if at != where}

    def anybody(self) -> Address:
        return self.dice.choice(self._seeds)

    async def metadata(self, topics: Sequence[str]) -> Any:
        wanted = [{"name": topic} for topic in topics]
        request = {"topics": wanted, "allow_auto_topic_creation": False}
        found = await self.call(self.anybody(), METADATA, request)
        hosts = {broker.node_id: (broker.host, broker.port) for broker in found.brokers}
        for topic in found.topics:
            for part in topic.partitions:
                key = (topic.name, part.partition_index)
                topic_id, epoch = self._leader_epochs.get(key, (None, -1))
                # Who has heard of a newer leader does not go back to an older one (KIP-320): somebody is behind.
                if part.leader_id in hosts and (topic.topic_id != topic_id or part.leader_epoch >= epoch):
                    self._leaders[key] = hosts[part.leader_id]
                    self._leader_epochs[key] = (topic.topic_id, part.leader_epoch)
        return found

    async def leader(self, partition: Partition) -> Address:
        """Raises Unknown if there is none that anybody knows."""
        where = self._leaders.get(partition)
        if where is None:
            await self.metadata([partition[0]])
            where = self._leaders.get(partition)
        if where is None:
            raise Unknown(f"{partition} has no leader")
        return where

    async def coordinator(self, key: str, kind: int) -> Address:
        where = self._coordinators.get((key, kind))
        if where is None:
            found = await self.call(self.anybody(), FIND_COORDINATOR, {"key": key, "key_type": kind})
            if found.error_code != ErrorCode.none:
                raise Unknown(f"no coordinator for {key}: {found.error_code.name}")
            where = self._coordinators[key, kind] = (found.host, found.port)
        return where

    def moved(self, *keys: Partition | tuple[str, int]) -> None:
        for key in keys:
            self._leaders.pop(key, None)
            self._coordinators.pop(key, None)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * (0.5 + self.dice.random()))

    # -- what several of them do

    async def init_producer(self, transactional_id: str | None, timeout_ms: int = 60_000) -> tuple[int, int]:
        """Producer id and epoch; tries until it gets one."""
        while True:
            try:
                where = (
                    self.anybody()
                    if transactional_id is None
                    else await self.coordinator(transactional_id, TRANSACTION)
                )
                request = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
                found = await self.call(where, INIT_PRODUCER_ID, request)
            except Unknown:
                await self.pause(0.1)
                continue
            if found.error_code == ErrorCode.none:
                return found.producer_id, found.producer_epoch
            if found.error_code not in LATER:
                raise AssertionError(f"InitProducerId of {self.name}: {found.error_code.name}")
            if transactional_id is not None:
                self.moved((transactional_id, TRANSACTION))
            await self.pause(0.1)

    async def produce(
        self, partition: Partition, batches: Sequence[bytes], *, transactional_id: str | None = None, version: int = 12
    ) -> list[tuple[ErrorCode, int] | Unknown]:
        """Batches that leave one behind the other; error and base offset of each. Raises Unknown if none has left."""
        where = await self.leader(partition)
        return await self.produce_at(where, partition, batches, transactional_id=transactional_id, version=version)

    async def produce_at(
        self,
        where: Address,
        partition: Partition,
        batches: Sequence[bytes],
        *,
        transactional_id: str | None = None,
        version: int = 12,
    ) -> list[tuple[ErrorCode, int] | Unknown]:
        """The same, at a node that is said to lead."""
        topic, index = partition
        requests = [
            {
                "transactional_id": transactional_id,
                "acks": -1,
                "timeout": 2000,
                "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
            }
            for batch in batches
        ]
        outcomes: list[tuple[ErrorCode, int] | Unknown] = []
        for answer in await self.call_in_order(where, (0, version), requests):
            if isinstance(answer, Unknown):
                outcomes.append(answer)
                continue
            [[row]] = [one.partition_responses for one in answer.responses]
            if row.error_code in MOVED:
                self.moved(partition)
            outcomes.append((row.error_code, row.base_offset))
        return outcomes

    async def fetch(
        self, partition: Partition, offset: int, *, committed_only: bool, wait_ms: int = 200, max_bytes: int = 1 << 16
    ) -> Any:
        """One partition's row of the answer. Raises Unknown."""
        topic, index = partition
        part = {"partition": index, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        request = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "isolation_level": int(committed_only),
            "topics": [{"topic": topic, "partitions": [part]}],
        }
        answer = await self.call(await self.leader(partition), FETCH, request, timeout_s=3.0 + wait_ms / 1000)
        if answer.error_code != ErrorCode.none:
            raise Unknown(f"Fetch: {answer.error_code.name}")
        [[row]] = [one.partitions for one in answer.responses]
        if row.error_code in MOVED:
            self.moved(partition)
        if row.error_code == ErrorCode.corrupt_message and self.disks_lie:
            raise Unknown("the broker found damage")
        verify(row.records or b"", partition, offset)
        return row


def verify(content: bytes, partition: Partition, offset: int) -> None:
    """As careful clients do: what was damaged on the way from the disk is never taken. Raises AssertionError."""
    for each in batch.headers(content):
        if not batch.crc_matches(content, each):
            raise AssertionError(f"{partition} at {offset}: a damaged batch was delivered ({each})")


def _decode(api: tuple[int, int], content: bytes) -> Any:
    try:
        return decode_response(*api, content, len(response_header(*api, 0)))
    except ProtocolError as error:
        raise AssertionError(f"an answer to {api} that cannot be read: {error}") from error
