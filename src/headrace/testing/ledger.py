"""Writers and readers that keep book while brokers are killed, and the judgement in the end.

    ledger = Ledger(bootstrap_servers, writers=2, readers=2)
    ledger.open(replication_factor=3)
    ... ledger.await_progress(); kill something ...
    assert ledger.close() == []

Judged: every acknowledged record is where its acknowledgement said, once, in its producer's order; offsets have no
gaps; an offset never changes its value for a reader; committed offsets of the group never go back.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.topics import create

CLIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0, "retry.backoff.ms": 20}
NO_OFFSET = -1001
Place = tuple[int, int]  # partition and offset


class Writer(threading.Thread):
    """Numbers its records and remembers where, and when, each was acknowledged."""

    def __init__(self, name: str, bootstrap_servers: str, topic: str, partitions: int) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: dict[int, tuple[int, int | None]] = {}
        self.last_acknowledged_at = 0.0
        self.longest_silence_s = 0.0
        self.sent = 0
        self.failures: list[str] = []
        self.ending = threading.Event()
        self._topic = topic
        self._partitions = partitions
        self._client = Producer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )

    def run(self) -> None:
        while not self.ending.is_set():
            if len(self._client) < 500:
                number = self.sent
                self.sent += 1
                self._client.produce(
                    self._topic,
                    f"{self.name}:{number}",
                    partition=number % self._partitions,
                    on_delivery=partial(self._delivered, number),
                )
            self._client.poll(0.004)  # and leave some time to the brokers, which may share two cores with us
        left = self._client.flush(90)
        if left:
            self.failures.append(f"{self.name}: {left} records were never acknowledged")

    def _delivered(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(f"{self.name}: {number}: {error}")
            return
        now = time.monotonic()
        if self.last_acknowledged_at:
            self.longest_silence_s = max(self.longest_silence_s, now - self.last_acknowledged_at)
        self.last_acknowledged_at = now
        self.acknowledged[number] = message.partition(), message.offset()


class Reader(threading.Thread):
    """A member of the group: takes, commits, and checks that what was committed does not go back."""

    def __init__(self, name: str, bootstrap_servers: str, topic: str, seen: Seen) -> None:
        super().__init__(name=name, daemon=True)
        self.failures: list[str] = []
        self.ending = threading.Event()
        self._topic = topic
        self._seen = seen
        self._committed: dict[int, int] = {}
        self._client = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"{topic}-readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "session.timeout.ms": 20_000,
                "heartbeat.interval.ms": 300,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )

    def run(self) -> None:
        self._client.subscribe([self._topic], on_assign=self._on_assign)
        while not self.ending.is_set():
            messages: list[Any] = self._client.consume(200, 0.1)
            for message in messages:
                if message.error() is None:
                    fault = self._seen.take((message.partition(), message.offset()), message.value())
                    if fault:
                        self.failures.append(f"{self.name}: {fault}")
            if messages:
                self._commit()
        self._client.close()

    def _commit(self) -> None:
        try:
            places = self._client.commit(asynchronous=False)
        except KafkaException:
            return  # the coordinator is away or a rebalance came between: nothing was promised
        for place in places or []:
            if place.error is None and place.offset >= 0:
                self._committed[place.partition] = max(self._committed.get(place.partition, 0), place.offset)

    def _on_assign(self, client: Any, places: Any) -> None:
        try:
            found = client.committed(places, timeout=30)
        except KafkaException:
            return
        for place in found:
            if place.error is not None or place.partition not in self._committed:
                continue
            if place.offset == NO_OFFSET or place.offset < self._committed[place.partition]:
                self.failures.append(f"{self.name}: {place} is behind {self._committed}")


class Seen:
    """What readers saw at each place."""

    def __init__(self) -> None:
        self.values: dict[Place, bytes] = {}
        self._lock = threading.Lock()

    def take(self, place: Place, value: bytes) -> str | None:
        """Note a value; what is wrong with it, if the place had another one before."""
        with self._lock:
            before = self.values.setdefault(place, value)
        return None if before == value else f"{place} changed from {before!r} to {value!r}"


class Ledger:
    """See the module."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic: str = "ledger",
        partitions: int = 3,
        writers: int = 2,
        readers: int = 2,
    ) -> None:
        self.topic = topic
        self._bootstrap_servers = bootstrap_servers
        self._partitions = partitions
        self._seen = Seen()
        self.writers = [Writer(f"w{n}", bootstrap_servers, topic, partitions) for n in range(writers)]
        self.readers = [Reader(f"r{n}", bootstrap_servers, topic, self._seen) for n in range(readers)]

    def open(self, *, replication_factor: int = 1, configs: dict[str, str] | None = None) -> None:
        """Make the topic and begin."""
        admin = AdminClient({**CLIENT, "bootstrap.servers": self._bootstrap_servers})
        wanted = NewTopic(self.topic, self._partitions, replication_factor, config=configs or {})
        create(admin, wanted)
        for thread in (*self.writers, *self.readers):
            thread.start()

    def await_progress(self, records: int = 100, seconds: float = 120.0) -> None:
        """Wait until every writer has had so many more records acknowledged, on each partition where it writes."""
        before = [len(writer.acknowledged) for writer in self.writers]
        deadline = time.monotonic() + seconds
        while any(len(writer.acknowledged) < had + records for writer, had in zip(self.writers, before, strict=True)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no progress within {seconds:.0f} s: {[w.failures[:3] for w in self.writers]}")
            time.sleep(0.005)

    def close(self) -> list[str]:
        """End the work and judge it: what is wrong, or nothing."""
        for writer in self.writers:
            writer.ending.set()
        for writer in self.writers:
            writer.join(120)
        found = self.everything()
        records = sum(map(len, found.values()))
        deadline = time.monotonic() + 120
        while self.readers and len(self._seen.values) < records and time.monotonic() < deadline:
            time.sleep(0.05)
        for reader in self.readers:
            reader.ending.set()
        for reader in self.readers:
            reader.join(60)
        return list(self._judge(found))

    def _judge(self, found: dict[int, list[bytes]]) -> Iterator[str]:
        yield from (failure for writer in self.writers for failure in writer.failures)
        yield from (failure for reader in self.readers for failure in reader.failures)
        for writer in self.writers:
            if len(writer.acknowledged) != writer.sent:
                yield f"{writer.name}: {writer.sent} sent, {len(writer.acknowledged)} acknowledged"
            for number, (partition, offset) in writer.acknowledged.items():
                if offset is None:  # an attempt that was not needed was answered: somewhere it is (see below)
                    continue
                there = found[partition][offset] if offset < len(found[partition]) else None
                if there != f"{writer.name}:{number}".encode():
                    yield f"{writer.name}:{number} was acknowledged at {partition}/{offset}; there is {there!r}"
            for partition in range(self._partitions):
                prefix = f"{writer.name}:".encode()
                numbers = [int(value[len(prefix) :]) for value in found[partition] if value.startswith(prefix)]
                if numbers != list(range(partition, writer.sent, self._partitions)):
                    yield f"{writer.name}: partition {partition} has {len(numbers)} records: lost, doubled or moved"
        everything = {(p, o): value for p, values in found.items() for o, value in enumerate(values)}
        if self.readers and self._seen.values != everything:
            yield f"readers saw {len(self._seen.values)} of {len(everything)} records"

    def everything(self) -> dict[int, list[bytes]]:
        """All values by partition; offsets without gaps, or an AssertionError."""
        client = Consumer(
            {**CLIENT, "bootstrap.servers": self._bootstrap_servers, "group.id": "auditor", "fetch.wait.max.ms": 50}
        )
        places = [TopicPartition(self.topic, index, OFFSET_BEGINNING) for index in range(self._partitions)]
        ends = {place.partition: _end(client, place) for place in places}
        client.assign(places)
        found: dict[int, list[bytes]] = defaultdict(list)
        deadline = time.monotonic() + 120
        while any(len(found[index]) < end for index, end in ends.items()):
            assert time.monotonic() < deadline, f"{[len(found[index]) for index in ends]} of {ends} could be read"
            messages: list[Any] = client.consume(1000, 0.5)
            for message in messages:
                if message.error() is None:
                    values = found[message.partition()]
                    assert message.offset() == len(values), f"a gap before offset {message.offset()}"
                    values.append(message.value())
        client.close()
        return found


def _end(client: Consumer, place: TopicPartition) -> int:
    """Where a partition ends; its leader may just be moving home. Raises KafkaException."""
    deadline = time.monotonic() + 120
    while True:
        try:
            ends: tuple[int, int] = client.get_watermark_offsets(place, timeout=60)
            return ends[1]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
