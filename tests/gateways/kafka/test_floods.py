"""A client that floods the broker delays its own answers, not those of others.

Answers are counted, not seconds: small requests that are sent behind a flood are answered long before the flood is.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from headrace import Broker
from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer, frame, payload

NUMBERS = itertools.count(1)
TOPICS = 300


@pytest.fixture(scope="module", autouse=True)
def many_topics(broker: Broker) -> list[str]:
    names = [f"flooded-{number:04d}" for number in range(TOPICS)]
    with Peer(broker.bootstrap_servers) as peer:
        rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
        answer = peer.call(19, 5, {"topics": rows, "timeout": 60000})
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.none}
    return names


class Flood:
    """Many requests on a few connections, sent at once, and read as fast as they are answered."""

    def __init__(self, where: str, connections: int, requests: int, key: int, version: int, request: Mapping[str, Any]):
        self.answers = 0
        self.expected = connections * requests
        self._peers = [Peer(where) for _ in range(connections)]
        self._readers = [threading.Thread(target=self._read, args=(peer, requests)) for peer in self._peers]
        data = frame(payload(key, version, request)) * requests
        for peer in self._peers:
            peer.send_bytes(data)
        for reader in self._readers:
            reader.start()

    def _read(self, peer: Peer, requests: int) -> None:
        for _ in range(requests):
            peer.receive_frame()
            self.answers += 1  # a little too few does no harm

    def finish(self) -> None:
        for reader in self._readers:
            reader.join()
        for peer in self._peers:
            peer.close()


FLOODS: dict[str, tuple[int, int, int, int, Mapping[str, Any]]] = {
    "all topics": (8, 300, 3, 9, {"topics": None, "allow_auto_topic_creation": False}),
    "topics by name": (
        *(8, 40, 3, 9),
        {"topics": [{"name": f"flooded-{n:04d}"} for n in range(TOPICS)], "allow_auto_topic_creation": False},
    ),
    "offsets": (
        *(8, 30, 2, 5),
        {
            "replica_id": -1,
            "topics": [
                {"name": f"flooded-{n:04d}", "partitions": [{"partition_index": 0, "timestamp": -1}]}
                for n in range(TOPICS)
            ],
        },
    ),
    "configs": (
        *(8, 20, 32, 4),
        {
            "resources": [
                {"resource_type": 2, "resource_name": f"flooded-{n:04d}", "configuration_keys": None}
                for n in range(TOPICS)
            ]
        },
    ),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_small_requests_are_answered_while_a_flood_is_under_way(broker: Broker, kind: str):
    with Peer(broker.bootstrap_servers) as small:
        small.call(18, 0)
        flood = Flood(broker.bootstrap_servers, *FLOODS[kind])
        answered_during = 0
        while flood.answers < flood.expected and any(reader.is_alive() for reader in flood._readers):
            small.call(18, 0)
            answered_during += 1
        flood.finish()
    assert answered_during >= 5


def test_topics_by_the_thousand_are_made_a_part_at_a_time(broker: Broker):
    names = [f"made-{next(NUMBERS)}-{number}" for number in range(1000)]
    asked = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": True}
    with Peer(broker.bootstrap_servers) as small:
        flood = Flood(broker.bootstrap_servers, 1, 1, 3, 9, asked)
        seen: set[int] = set()
        while flood.answers < 1:
            answer = small.call(3, 9, {**asked, "topics": asked["topics"][::100], "allow_auto_topic_creation": False})
            seen.add(sum(topic.error_code == ErrorCode.none for topic in answer.topics))
        flood.finish()
        answer = small.call(3, 9, {"topics": None})
    assert set(names) <= {topic.name for topic in answer.topics}
    assert len(seen) > 1, "some were there before others"
