"""The pytest plugin: a `headrace` fixture, one broker per session, fresh names per test.

def test_orders(headrace):
    topic = headrace.topic("orders", partitions=3)
    ... any Kafka client with headrace.bootstrap_servers ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.embedded import Broker

CREATE_SECONDS = 60.0


class Headrace:
    """One test's view of the session's broker."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self._broker = broker
        self._prefix = prefix
        self._numbers = itertools.count(1)

    @property
    def bootstrap_servers(self) -> str:
        return self._broker.bootstrap_servers

    def topic(self, name: str = "topic", *, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        """Create a topic that no other test uses; returns its full name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        full = self.name(name)
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        wanted = NewTopic(full, num_partitions=partitions, replication_factor=1, config=configs or {})
        admin.create_topics([wanted])[full].result(CREATE_SECONDS)
        return full

    def group(self, name: str = "group") -> str:
        """A consumer group's name that no other test uses."""
        return self.name(name)

    def name(self, name: str) -> str:
        return f"{self._prefix}-{next(self._numbers)}-{name}"


@pytest.fixture(scope="session")
def headrace_broker() -> Iterator[Broker]:
    """The session's broker: in memory, on a free port. It keeps records of any age: tests like fixed times."""
    from headrace.embedded import Broker

    with Broker(storage_retention_ms=-1) as broker:
        yield broker


_TESTS = itertools.count(1)


@pytest.fixture
def headrace(headrace_broker: Broker) -> Headrace:
    """A broker to test against, with names of the test's own."""
    return Headrace(headrace_broker, f"t{next(_TESTS)}")
