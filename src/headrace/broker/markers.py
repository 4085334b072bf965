"""Markers that end transactions, written wherever the partition's leader is.

Rules:
- A marker counts as written when it is committed there. What a call that failed has done is not known: it is tried
  again by the coordinator, and a marker that is written twice ends nothing twice.
- That a partition does not exist is for our own image to say: another node may not have heard of it yet, and a
  replica of our own may just have been moved away.
- Markers for one node go together, one request at a time; what comes meanwhile goes with the next.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace.core.errors import ApiError, ErrorCode, LinkError, ProtocolError
from headrace.wire.headers import skip_tagged_fields
from headrace.wire.messages import decode_response, encode_request

if TYPE_CHECKING:
    from headrace.broker.image import Image
    from headrace.core.ports import Links

WRITE_TXN_MARKERS: Final = 27
VERSION: Final = 2
BUMPED: Final = 2  # the transaction version from which every end has an epoch of its own
CALL_SECONDS: Final = 5.0
PER_REQUEST: Final = 1000

_HEADER: Final = struct.Struct(">hhihB")  # api key, version, correlation id, no client id, no tagged fields


@dataclass(frozen=True, slots=True)
class EndMarker:
    """Ends a producer's transaction in one partition.

    `bumped`: the epoch is higher than that of the records, by the newer protocol.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    bumped: bool = False


class Markable(Protocol):
    """What a marker needs of a partition that we lead."""

    def write_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, bumped: bool = False
    ) -> int: ...

    def committed(self, next_offset: int) -> Awaitable[None]: ...


class LocalMarkers:
    """Markers for partitions that this broker leads itself: a MarkerWriter. `find` raises ApiError."""

    def __init__(self, find: Callable[[str, int], Markable]) -> None:
        self._find = find

    async def write(self, marker: EndMarker) -> None:
        found = self._find(marker.topic, marker.partition)
        next_offset = found.write_marker(
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            bumped=marker.bumped,
        )
        await found.committed(next_offset)


class Outbox:
    """What one other node is to write."""

    def __init__(self, links: Links, node_id: int) -> None:
        self._links = links
        self._node_id = node_id
        self._waiting: list[tuple[EndMarker, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, marker: EndMarker) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((marker, done))
        if self._task is None:
            self._task = loop.create_task(self._run(), name=f"markers-{self._node_id}")
        await done

    async def _run(self) -> None:
        try:
            while self._waiting:
                going, self._waiting = self._waiting[:PER_REQUEST], self._waiting[PER_REQUEST:]
                errors = await self._send([marker for marker, _ in going])
                for (_, done), error in zip(going, errors, strict=True):
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            self._task = None

    async def _send(self, markers: Sequence[EndMarker]) -> list[ApiError | None]:
        """Why each of them is not written."""
        try:
            answer = await self._links.call(self._node_id, _request(markers), lane="markers", timeout_s=CALL_SECONDS)
            decoded = decode_response(WRITE_TXN_MARKERS, VERSION, answer, skip_tagged_fields(answer, 4))
            codes = [ErrorCode(each.topics[0].partitions[0].error_code) for each in decoded.markers]
            if len(codes) != len(markers):
                raise ProtocolError("an answer for each marker is missing")
        except (LinkError, ProtocolError, LookupError) as error:
            return [ApiError(ErrorCode.network_exception, str(error))] * len(markers)
        return [_fault(code) for code in codes]


def _fault(code: ErrorCode, message: str = "") -> ApiError | None:
    if code is ErrorCode.none:
        return None
    unheard = code is ErrorCode.unknown_topic_or_partition
    return ApiError(ErrorCode.not_leader_or_follower if unheard else code, message)


def _request(markers: Sequence[EndMarker]) -> bytes:
    rows = [
        {
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "transaction_result": each.commit,
            "topics": [{"name": each.topic, "partition_indexes": [each.partition]}],
            "coordinator_epoch": each.coordinator_epoch,
            "transaction_version": BUMPED if each.bumped else 0,
        }
        for each in markers
    ]
    return _HEADER.pack(WRITE_TXN_MARKERS, VERSION, 0, -1, 0) + encode_request(
        WRITE_TXN_MARKERS, VERSION, {"markers": rows}
    )


class ClusterMarkers:
    """A MarkerWriter for all partitions. `find` gives those that this node leads, or raises ApiError."""

    def __init__(
        self, node_id: int, links: Links, find: Callable[[str, int], Markable], image: Callable[[], Image]
    ) -> None:
        self._node_id = node_id
        self._links = links
        self._here = LocalMarkers(find)
        self._image = image
        self._outboxes: dict[int, Outbox] = {}

    async def write(self, marker: EndMarker) -> None:
        """Raises ApiError."""
        record = self._image().partition(marker.topic, marker.partition)
        if record is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition)
        if record.leader < 0:
            raise ApiError(ErrorCode.leader_not_available)
        if record.leader == self._node_id:
            try:
                await self._here.write(marker)
            except ApiError as error:
                raise _fault(error.code, error.message) or error from None
            return
        outbox = self._outboxes.get(record.leader)
        if outbox is None:
            outbox = self._outboxes[record.leader] = Outbox(self._links, record.leader)
        await outbox.write(marker)
