"""Threads that feed and watch a history from outside, through all that happens to the broker.

- Feeder: gives orders, without transactions but once each, until it is told to end.
- Auditor: reads bills and ledger as a reader of committed records, from the first to the last moment.
- Clerk: looks at the group's committed offsets again and again, and complains if one goes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.testing.exactly_once.oracle import Place
from headrace.testing.exactly_once.transformer import BILLS, BRISK, GROUP, LEDGER, ORDERS, PARTITIONS

PAUSE_SECONDS = 0.005
FINAL_SECONDS = 60.0
PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}


class Witness(threading.Thread):
    """Does one thing after another until it is told to end. Whatever it has to complain of is in `complaints`."""

    def __init__(self) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.complaints: list[str] = []
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.step()
            self.close()
        except Exception as error:
            self.complaints.append(f"{self.name} failed: {error!r}")

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The last step."""

    def end(self) -> None:
        self.ending.set()
        self.join(FINAL_SECONDS)
        if self.is_alive():
            self.complaints.append(f"{self.name} does not end")


class Feeder(Witness):
    """See the module."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__()
        self.sent = 0
        self.orders: set[str] = set()
        self._client = Producer(
            {
                **BRISK,
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "linger.ms": 1,
            }
        )

    def step(self) -> None:
        self.sent += 1
        self._client.produce(
            ORDERS,
            f"order-{self.sent}".encode(),
            partition=self.sent % PARTITIONS[ORDERS],
            on_delivery=self._delivered,
        )
        self._client.poll(0)
        self.ending.wait(6 * PAUSE_SECONDS)

    def close(self) -> None:
        left = self._client.flush(FINAL_SECONDS)
        if left:
            self.complaints.append(f"{left} orders were never acknowledged")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.complaints.append(f"an order was refused: {error!r}")
        else:
            self.orders.add((message.value() or b"").decode())


class Auditor(Witness):
    """See the module. `seen`: what it read, by place; `billed`: how many orders that were."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__()
        self.seen: dict[Place, bytes] = {}
        self.billed = 0
        self._client = reader(bootstrap_servers, "read_committed")

    def step(self) -> None:
        for message in self._client.consume(500, 0.05):
            error = message.error()
            if error is not None:
                if error.code() not in PASSING:
                    self.complaints.append(f"the auditor cannot read: {error!r}")
                continue
            self.seen[place_of(message)] = message.value() or b""
            self.billed += message.topic() == BILLS

    def close(self) -> None:
        self._client.close()


class Clerk(Witness):
    """See the module."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__()
        self.committed: dict[int, int] = {}
        self.looks = 0
        self._client = Consumer(
            {**BRISK, "bootstrap.servers": bootstrap_servers, "group.id": GROUP, "isolation.level": "read_committed"}
        )

    def step(self) -> None:
        places = [TopicPartition(ORDERS, index) for index in range(PARTITIONS[ORDERS])]
        try:
            found = self._client.committed(places, 2.0)
        except KafkaException:
            return  # the broker is away
        for place in found:
            if place.error is not None:
                continue
            before = self.committed.get(place.partition, -1)
            offset = max(place.offset, -1)
            if offset < before:
                self.complaints.append(f"the committed offset of {place.partition} went from {before} to {offset}")
            self.committed[place.partition] = offset
        self.looks += 1
        self.ending.wait(4 * PAUSE_SECONDS)

    def close(self) -> None:
        self._client.close()


def reader(bootstrap_servers: str, isolation: str, *, tell_end: bool = False) -> Consumer:
    """Reads bills and ledger from the start; offsets that are not there are errors."""
    client = Consumer(
        {
            **BRISK,
            "bootstrap.servers": bootstrap_servers,
            "group.id": "audit",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 20,
            "enable.partition.eof": tell_end,
        }
    )
    client.assign([TopicPartition(topic, index, 0) for topic in (BILLS, LEDGER) for index in range(PARTITIONS[topic])])
    return client


def place_of(message: Message) -> Place:
    return message.topic() or "", message.partition() or 0, message.offset() or 0


def read_all(bootstrap_servers: str, isolation: str) -> dict[Place, bytes]:
    """All that there is now. Raises TimeoutError if it cannot be read to the end."""
    ends = end_offsets(bootstrap_servers, {topic: PARTITIONS[topic] for topic in (BILLS, LEDGER)}, isolation)
    client = reader(bootstrap_servers, isolation, tell_end=True)
    found: dict[Place, bytes] = {}
    left = {place for place, end in ends.items() if end > 0}
    deadline = time.monotonic() + FINAL_SECONDS
    try:
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{isolation}: read {len(found)} records, but not to the end of {left} in {ends}")
            for message in client.consume(1000, 0.1):
                error, place = message.error(), place_of(message)
                if error is None:
                    found[place] = message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    if place[2] >= ends[place[:2]]:
                        left.discard(place[:2])
                elif error.code() not in PASSING:
                    raise KafkaException(error)
    finally:
        client.close()
    return found


def end_offsets(bootstrap_servers: str, topics: Mapping[str, int], isolation: str) -> dict[tuple[str, int], int]:
    """The high watermark of each partition, or its last stable offset for readers of committed records."""
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    admin = AdminClient({**BRISK, "bootstrap.servers": bootstrap_servers})
    places = [TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)]
    last = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + 2 * FINAL_SECONDS
    while True:
        asked = admin.list_offsets(dict.fromkeys(places, last), isolation_level=level, request_timeout=FINAL_SECONDS)
        try:
            return {(place.topic, place.partition): future.result().offset for place, future in asked.items()}
        except KafkaException:  # leaders move when all are back
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True
