"""Asks the coordinator of a transaction, on whatever node it is, before a transactional batch is appended (KIP-890).

Rules:
- The answer holds at the moment it is given, or the caller is told otherwise: between a question to another node and
  its answer the transaction may have been ended. A `Guard` on each partition is broken by every marker of that
  producer, and by a change of the leader; then the coordinator is asked again.
- If the coordinator cannot be reached the answer is COORDINATOR_NOT_AVAILABLE: clients try again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ApiError, ErrorCode, LinkError, ProtocolError
from headrace.wire.headers import skip_tagged_fields
from headrace.wire.messages import decode_response, encode_request

if TYPE_CHECKING:
    from headrace.broker.guards import Guard
    from headrace.broker.partition import Partition
    from headrace.broker.transactions import TransactionCoordinator
    from headrace.core.ports import Links

ADD_PARTITIONS_TO_TXN: Final = 24
VERSION: Final = 5
CALL_SECONDS: Final = 5.0
ATTEMPTS: Final = 3

_HEADER: Final = struct.Struct(">hhihB")  # api key, version, correlation id, no client id, no tagged fields

TopicPartition = tuple[str, int]


class Verification:
    """See the module. `leader_of` gives the node that leads a partition of the transaction topic; -1 if none does."""

    def __init__(
        self,
        node_id: int,
        links: Links,
        transactions: TransactionCoordinator,
        *,
        leader_of: Callable[[int], int],
        find: Callable[[str, int], Partition],
    ) -> None:
        self._node_id = node_id
        self._links = links
        self._transactions = transactions
        self._leader_of = leader_of
        self._find = find

    async def register(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Sequence[ErrorCode]:
        """Put partitions that are about to be written to into the transaction. An error per partition, in order."""
        return await self._ask(transactional_id, producer_id, producer_epoch, partitions, verify_only=False)

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Sequence[ErrorCode]:
        """Whether partitions that are about to be written to are in the transaction. An error per partition."""
        return await self._ask(transactional_id, producer_id, producer_epoch, partitions, verify_only=True)

    async def _ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Sequence[ErrorCode]:
        try:
            index = await self._transactions.coordinator(transactional_id)
        except ApiError as error:
            return [error.code] * len(partitions)
        leader = self._node_id if index is None else self._leader_of(index)
        if leader == self._node_id:
            here = self._transactions
            ask = here.verify if verify_only else here.register
            return await ask(transactional_id, producer_id, producer_epoch, partitions)
        if leader < 0:
            return [ErrorCode.coordinator_not_available] * len(partitions)
        frame = _request(transactional_id, producer_id, producer_epoch, partitions, verify_only=verify_only)
        for _ in range(ATTEMPTS):
            errors = await self._ask_there(leader, frame, producer_id, partitions)
            if errors is not None:
                return errors
        return [ErrorCode.concurrent_transactions] * len(partitions)

    async def _ask_there(
        self, leader: int, frame: bytes, producer_id: int, partitions: Sequence[TopicPartition]
    ) -> list[ErrorCode] | None:
        """None if the answer is of no use: a transaction has ended meanwhile."""
        guards: list[tuple[Partition, Guard]] = []
        try:
            for place in partitions:
                partition = self._find(*place)
                guards.append((partition, partition.guards.post(producer_id)))
            answer = await self._links.call(leader, frame, lane="transactions", timeout_s=CALL_SECONDS)
            decoded = decode_response(ADD_PARTITIONS_TO_TXN, VERSION, answer, skip_tagged_fields(answer, 4))
            errors = _errors(decoded, partitions)
        except ApiError as error:
            return [error.code] * len(partitions)
        except (LinkError, ProtocolError):
            return [ErrorCode.coordinator_not_available] * len(partitions)
        finally:
            for partition, guard in guards:
                partition.guards.dismiss(producer_id, guard)
        return None if any(guard.broken for _, guard in guards) else errors


def _errors(answer: Any, partitions: Sequence[TopicPartition]) -> list[ErrorCode]:
    if answer.error_code:
        return [ErrorCode(answer.error_code)] * len(partitions)
    found = {
        (topic.name, part.partition_index): ErrorCode(part.partition_error_code)
        for result in answer.results_by_transaction
        for topic in result.topic_results
        for part in topic.results_by_partition
    }
    return [found.get(place, ErrorCode.unknown_server_error) for place in partitions]


def _request(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TopicPartition],
    *,
    verify_only: bool,
) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    transaction = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "verify_only": verify_only,
        "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
    }
    return _HEADER.pack(ADD_PARTITIONS_TO_TXN, VERSION, 0, -1, 0) + encode_request(
        ADD_PARTITIONS_TO_TXN, VERSION, {"transactions": [transaction]}
    )
