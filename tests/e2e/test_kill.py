"""kill -9 of a broker under load, again and again: nothing acknowledged is lost, doubled or moved; groups go on."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.process import BrokerProcess

pytestmark = pytest.mark.process

KILLS = 20
PARTITIONS = 3
TOPIC, GROUP = "ledger", "bookkeepers"
CLIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0, "retry.backoff.ms": 20}


class Writer(threading.Thread):
    """Numbers its records and remembers where each was acknowledged."""

    def __init__(self, name: str, bootstrap_servers: str) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: dict[int, tuple[int, int]] = {}  # number -> partition, offset
        self.sent = 0
        self.failures: list[str] = []
        self.ending = threading.Event()
        self.client = Producer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "linger.ms": 1,
                "batch.num.messages": 50,
            }
        )

    def run(self) -> None:
        while not self.ending.is_set():
            if len(self.client) < 2000:
                number = self.sent
                self.sent += 1
                self.client.produce(
                    TOPIC,
                    f"{self.name}:{number}",
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, message, number=number: self._delivered(error, message, number),
                )
            self.client.poll(0.0005)
        left = self.client.flush(60)
        if left:
            self.failures.append(f"{left} records were never acknowledged")

    def _delivered(self, error, message, number: int) -> None:
        if error is not None:
            self.failures.append(f"{number}: {error}")
        else:
            self.acknowledged[number] = message.partition(), message.offset()


class Reader(threading.Thread):
    """A member of the group: takes, commits, and checks that what was committed does not go back."""

    def __init__(self, name: str, bootstrap_servers: str, seen: dict, lock: threading.Lock) -> None:
        super().__init__(name=name, daemon=True)
        self.seen, self.lock = seen, lock
        self.committed: dict[int, int] = {}
        self.failures: list[str] = []
        self.ending = threading.Event()
        self.client = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 300,
            }
        )

    def run(self) -> None:
        self.client.subscribe([TOPIC], on_assign=self._on_assign)
        while not self.ending.is_set():
            messages = self.client.consume(200, 0.1)
            with self.lock:
                for message in messages:
                    if message.error() is None:
                        place = message.partition(), message.offset()
                        if self.seen.setdefault(place, message.value()) != message.value():
                            self.failures.append(f"{place} changed from {self.seen[place]} to {message.value()}")
            if messages:
                self._commit()
        self.client.close()

    def _commit(self) -> None:
        try:
            places = self.client.commit(asynchronous=False)
        except KafkaException:
            return  # the broker is away or a rebalance came between: nothing was promised
        for place in places or []:
            if place.error is None and place.offset >= 0:
                self.committed[place.partition] = max(self.committed.get(place.partition, 0), place.offset)

    def _on_assign(self, client, places) -> None:
        for place in client.committed(places, timeout=20):
            if place.error is None and place.offset < self.committed.get(place.partition, 0) and place.offset != -1001:
                self.failures.append(f"{place} is behind {self.committed}")
            if place.error is None and place.offset == -1001 and place.partition in self.committed:
                self.failures.append(f"the offset of {place} is forgotten")


def everything(bootstrap_servers: str) -> dict[int, list[bytes]]:
    """All values by partition, checked to have offsets without gaps."""
    client = Consumer({**CLIENT, "bootstrap.servers": bootstrap_servers, "group.id": "auditor"})
    ends = {
        index: client.get_watermark_offsets(TopicPartition(TOPIC, index), timeout=20)[1] for index in range(PARTITIONS)
    }
    client.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: dict[int, list[bytes]] = defaultdict(list)
    deadline = time.monotonic() + 60
    while sum(map(len, found.values())) < sum(ends.values()):
        assert time.monotonic() < deadline, f"{sum(map(len, found.values()))} of {ends} could be read"
        for message in client.consume(1000, 1.0):
            assert message.error() is None, message.error()
            assert message.offset() == len(found[message.partition()]), "offsets have a gap"
            found[message.partition()].append(message.value())
    client.close()
    return found


def await_progress(writers: list[Writer], records: int = 100) -> None:
    """Every kill shall come in the middle of the work."""
    before = [len(writer.acknowledged) for writer in writers]
    deadline = time.monotonic() + 30
    while any(len(writer.acknowledged) < had + records for writer, had in zip(writers, before, strict=True)):
        assert time.monotonic() < deadline, f"no progress: {[writer.failures for writer in writers]}"
        time.sleep(0.005)


def create_topic(bootstrap_servers: str) -> None:
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(20)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_twenty_kills_under_load_lose_nothing(tmp_path: Path):
    dice = random.Random(7)
    seen: dict[tuple[int, int], bytes] = {}
    lock = threading.Lock()
    with BrokerProcess(tmp_path / "data", "--log-level", "warning") as broker:
        create_topic(broker.bootstrap_servers)
        writers = [Writer(f"w{number}", broker.bootstrap_servers) for number in range(2)]
        readers = [Reader(f"r{number}", broker.bootstrap_servers, seen, lock) for number in range(2)]
        for thread in (*writers, *readers):
            thread.start()
        for _ in range(KILLS):
            await_progress(writers)
            time.sleep(dice.uniform(0.0, 0.2))
            broker.kill()
            broker.start()
        for writer in writers:
            writer.ending.set()
        for writer in writers:
            writer.join(90)
        found = everything(broker.bootstrap_servers)
        deadline = time.monotonic() + 60
        while len(seen) < sum(map(len, found.values())) and time.monotonic() < deadline:
            time.sleep(0.1)
        for reader in readers:
            reader.ending.set()
        for reader in readers:
            reader.join(30)
        log = broker.log_tail(200)

    assert [failure for thread in (*writers, *readers) for failure in thread.failures] == []
    for writer in writers:
        assert len(writer.acknowledged) == writer.sent
        for number, (partition, offset) in writer.acknowledged.items():
            assert found[partition][offset] == f"{writer.name}:{number}".encode(), "an acknowledged record moved"
        for partition in range(PARTITIONS):
            numbers = [
                int(value.split(b":")[1]) for value in found[partition] if value.startswith(writer.name.encode())
            ]
            assert numbers == list(range(partition, writer.sent, PARTITIONS)), "lost, doubled or out of order"
    assert seen == {(p, o): value for p, values in found.items() for o, value in enumerate(values)}
    assert "Traceback" not in log, log


@pytest.mark.timeout(60)
def test_committed_offsets_survive_a_kill_right_after_the_answer(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.bootstrap_servers)
        for number in range(1, 4):
            client = Consumer({**CLIENT, "bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})
            places = [TopicPartition(TOPIC, index, number * 10 + index, f"round {number}") for index in range(3)]
            client.commit(offsets=places, asynchronous=False)
            broker.kill()
            broker.start()
            found = client.committed([TopicPartition(TOPIC, index) for index in range(3)], timeout=20)
            client.close()
            assert [(place.offset, place.metadata) for place in found] == [
                (number * 10 + index, f"round {number}") for index in range(3)
            ]
