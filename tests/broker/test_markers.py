"""Markers for partitions that other nodes lead."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.apis import write_txn_markers
from headrace.apis.api import Context
from headrace.broker.image import Image, PartitionRecord, TopicRecord, apply
from headrace.broker.markers import ClusterMarkers, EndMarker
from headrace.broker.partition import Partition
from headrace.core.errors import ApiError, ErrorCode, LinkError
from headrace.testing.partitions import open_partition, write
from headrace.wire import messages
from headrace.wire.headers import parse_request_header, response_header

ME, OTHER = 1, 2


class Links:
    """Another node that leads `partition`."""

    def __init__(self, partition: Partition | None) -> None:
        self.partition = partition
        self.sent: list[int] = []  # markers per request
        self.silent = False
        self.peer: int | None = ME

    def get(self, topic: str, index: int) -> Partition:
        if self.partition is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition)
        return self.partition

    async def call(self, node_id: int, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        assert node_id == OTHER
        header = parse_request_header(frame)
        request = messages.decode_request(header.api_key, header.api_version, frame, header.body_offset)
        self.sent.append(len(request.markers))
        service: Any = SimpleNamespace(partitions=self, count_error=lambda api, code: None)
        answer = await write_txn_markers.handle(Context(service, header.api_version, "", "", self.peer), request)
        if self.silent:
            raise LinkError("the answer is lost")
        body = messages.encode_answer(header.api_key, header.api_version, answer)
        return response_header(header.api_key, header.api_version, header.correlation_id) + body


def image(leader: int) -> Image:
    records = [TopicRecord("orders", UUID(int=1)), PartitionRecord("orders", 0, (ME, OTHER), (ME, OTHER), leader, 0)]
    return apply(Image(), records)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def markers(links: Links, leader: int = OTHER) -> ClusterMarkers:
    def here(topic: str, index: int) -> Partition:
        raise ApiError(ErrorCode.not_leader_or_follower)

    return ClusterMarkers(ME, links, here, lambda: image(leader))


def test_a_marker_is_written_where_the_leader_is() -> None:
    async def scenario() -> None:
        partition = open_partition()
        write(partition, b"a", 7)
        assert partition.last_stable_offset == 0
        await markers(Links(partition)).write(EndMarker("orders", 0, 7, 1, True, 0, bumped=True))
        assert partition.last_stable_offset == 2

    run(scenario())


def test_markers_for_one_node_go_together() -> None:
    async def scenario() -> None:
        links = Links(open_partition())
        writer = markers(links)
        await asyncio.gather(*(writer.write(EndMarker("orders", 0, producer, 0, True, 0)) for producer in range(50)))
        assert links.sent == [50]

    run(scenario())


def test_a_lost_answer_is_no_answer_and_the_second_marker_does_no_harm() -> None:
    async def scenario() -> None:
        partition = open_partition()
        write(partition, b"a", 7)
        links = Links(partition)
        writer = markers(links)
        links.silent = True
        with pytest.raises(ApiError):
            await writer.write(EndMarker("orders", 0, 7, 1, False, 0, bumped=True))
        links.silent = False
        await writer.write(EndMarker("orders", 0, 7, 1, False, 0, bumped=True))
        assert partition.log.aborted_between(0, 10) == [(7, 0)]

    run(scenario())


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    async def scenario() -> None:
        partition = open_partition()
        writer = markers(Links(partition))
        write(partition, b"a", 7, epoch=0)
        await writer.write(EndMarker("orders", 0, 7, 1, True, 0, bumped=True))
        write(partition, b"b", 7, epoch=1)  # the next one, in the epoch that the first end has given
        with pytest.raises(ApiError) as refused:
            await writer.write(EndMarker("orders", 0, 7, 1, True, 0, bumped=True))
        assert refused.value.code is ErrorCode.invalid_producer_epoch
        assert partition.in_transaction(7, 1)

    run(scenario())


def test_a_replica_that_was_moved_away_does_not_mean_that_the_topic_is_gone() -> None:
    """Its marker was never committed. The new leader waits for one, or the transaction is lost with the next one's."""

    async def scenario() -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ours: Any = SimpleNamespace(write_marker=lambda *_, **__: 2, committed=lambda next_offset: waiting)
        writer = ClusterMarkers(ME, Links(None), lambda topic, index: ours, lambda: image(ME))
        writing = asyncio.ensure_future(writer.write(EndMarker("orders", 0, 7, 1, True, 0, bumped=True)))
        await asyncio.sleep(0)
        waiting.set_exception(ApiError(ErrorCode.unknown_topic_or_partition))
        with pytest.raises(ApiError) as refused:
            await writing
        assert refused.value.code is ErrorCode.not_leader_or_follower

    run(scenario())


@pytest.mark.parametrize(
    ("leader", "partition", "code"),
    [
        (-1, True, ErrorCode.leader_not_available),
        (OTHER, False, ErrorCode.not_leader_or_follower),  # it has not heard of the topic: that is to be tried again
        (ME, True, ErrorCode.not_leader_or_follower),
    ],
)
def test_what_cannot_be_written_now_is_to_be_tried_again(leader: int, partition: bool, code: ErrorCode) -> None:
    async def scenario() -> None:
        links = Links(open_partition() if partition else None)
        with pytest.raises(ApiError) as refused:
            await markers(links, leader).write(EndMarker("orders", 0, 7, 0, True, 0))
        assert refused.value.code is code

    run(scenario())


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    async def scenario() -> None:
        with pytest.raises(ApiError) as refused:
            await markers(Links(None)).write(EndMarker("gone", 0, 7, 0, True, 0))
        assert refused.value.code is ErrorCode.unknown_topic_or_partition

    run(scenario())


def test_only_nodes_may_write_markers() -> None:
    async def scenario() -> None:
        partition = open_partition()
        links = Links(partition)
        links.peer = None
        with pytest.raises(ApiError) as refused:
            await markers(links).write(EndMarker("orders", 0, 7, 0, True, 0))
        assert refused.value.code is ErrorCode.cluster_authorization_failed
        assert partition.log.end_offset == 0

    run(scenario())
