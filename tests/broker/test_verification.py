"""Questions about transactions that another node coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.partition import Partition
from headrace.broker.verification import Verification
from headrace.core.errors import ErrorCode, LinkError
from headrace.testing.partitions import open_partition
from headrace.wire import messages
from headrace.wire.headers import parse_request_header, response_header

ME, OTHER = 1, 2
NONE = ErrorCode.none


class Here:
    """Our own coordinator."""

    def __init__(self, place: int | None = 0) -> None:
        self.place = place

    async def coordinator(self, transactional_id: str) -> int | None:
        return self.place

    async def verify(self, *asked: Any) -> list[ErrorCode]:
        return [ErrorCode.transaction_abortable]

    async def register(self, *asked: Any) -> list[ErrorCode]:
        return [NONE]


class Links:
    """A coordinator elsewhere that says `error`, and does something meanwhile."""

    def __init__(self, error: ErrorCode = NONE, meanwhile: Callable[[int], None] = lambda n: None) -> None:
        self.error = error
        self.meanwhile = meanwhile
        self.asked: list[Any] = []
        self.silent = False

    async def call(self, node_id: int, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        assert node_id == OTHER
        header = parse_request_header(frame)
        request = messages.decode_request(header.api_key, header.api_version, frame, header.body_offset)
        self.asked.append(request.transactions[0])
        self.meanwhile(len(self.asked))
        if self.silent:
            raise LinkError("nobody is there")
        results = [
            {
                "transactional_id": "t",
                "topic_results": [
                    {
                        "name": "orders",
                        "results_by_partition": [{"partition_index": 0, "partition_error_code": self.error}],
                    }
                ],
            }
        ]
        body = messages.encode_answer(24, header.api_version, {"error_code": 0, "results_by_transaction": results})
        return response_header(24, header.api_version, header.correlation_id) + body


def verification(links: Links, partition: Partition, *, leader: int = OTHER, here: Here | None = None) -> Verification:
    coordinator: Any = here or Here()
    return Verification(ME, links, coordinator, leader_of=lambda index: leader, find=lambda topic, index: partition)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


PLACES = [("orders", 0)]


def test_another_node_is_asked_if_it_coordinates() -> None:
    links = Links(ErrorCode.invalid_txn_state)
    asker = verification(links, open_partition())
    assert list(run(asker.verify("t", 7, 0, PLACES))) == [ErrorCode.invalid_txn_state]
    assert list(run(asker.register("t", 7, 0, PLACES))) == [ErrorCode.invalid_txn_state]
    assert [asked.verify_only for asked in links.asked] == [True, False]


def test_our_own_coordinator_is_asked_if_it_is_here_or_needed_nowhere() -> None:
    for here, leader in ((Here(), ME), (Here(place=None), -1)):
        links = Links()
        asker = verification(links, open_partition(), leader=leader, here=here)
        assert list(run(asker.verify("t", 7, 0, PLACES))) == [ErrorCode.transaction_abortable]
        assert not links.asked


def test_an_answer_that_a_marker_has_overtaken_is_not_believed() -> None:
    partition = open_partition()

    def meanwhile(asked: int) -> None:
        if asked == 1:
            partition.write_marker(7, 1, commit=True, coordinator_epoch=0)
            links.error = ErrorCode.invalid_txn_state

    links = Links(NONE, meanwhile)
    assert list(run(verification(links, partition).verify("t", 7, 0, PLACES))) == [ErrorCode.invalid_txn_state]
    assert len(links.asked) == 2


def test_a_marker_of_somebody_else_does_not_matter() -> None:
    partition = open_partition()
    links = Links(NONE, lambda asked: partition.write_marker(8, 1, commit=True, coordinator_epoch=0) and None)
    assert list(run(verification(links, partition).verify("t", 7, 0, PLACES))) == [NONE]
    assert len(links.asked) == 1


def test_silence_is_to_be_tried_again() -> None:
    links = Links()
    links.silent = True
    asker = verification(links, open_partition())
    assert list(run(asker.verify("t", 7, 0, PLACES))) == [ErrorCode.coordinator_not_available]
    nobody = verification(links, open_partition(), leader=-1)
    assert list(run(nobody.verify("t", 7, 0, PLACES))) == [ErrorCode.coordinator_not_available]
