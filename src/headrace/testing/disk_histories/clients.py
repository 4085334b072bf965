"""The clients of a history: they write, read and commit all the time, and write down what they were told.

Rules:
- What is sent is written down before the client library has it; what was acknowledged, after the library said so.
- The format of the ledgers is the judge's: see `judge.py`.
- Producers wait for as long as a history may take: only what nobody may refuse ends them.
- Nothing here judges. Readers note what they are given, right or wrong.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

BRISK: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "log_level": 0,
    "topic.metadata.refresh.interval.ms": 1000,
}
PLAIN: Final = "plain"
PAIRS: Final = "pairs"
PARTITIONS: Final = {PLAIN: 3, PAIRS: 2}
GROUP: Final = "readers"
PATIENCE_MS: Final = 240_000
TRANSACTION_MS: Final = 20_000
CALL_SECONDS: Final = 30.0
HASTY_SECONDS: Final = 0.5  # some aborts do not wait for what is under way
IN_FLIGHT: Final = 200
PADDING: Final = "." * 80
NO_OFFSET: Final = -1001


class Ledger:
    """A file of lines, in the order in which things became known."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"{name}.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"is": kind, **facts}, separators=(",", ":")) + "\n"
        with self._lock:
            if not self._file.closed:  # nobody reads any more: the history is over
                self._file.write(line)

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Client(threading.Thread):
    """Works until it is told to end."""

    def __init__(self, name: str, servers: str, ledger: Ledger) -> None:
        super().__init__(name=name, daemon=True)
        self.ending = threading.Event()
        self.steps = 0  # that were acknowledged
        self.broken: str | None = None  # the client library gave up, or we did
        self._servers = servers
        self._ledger = ledger

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # the history tells
            self.broken = f"{self.name}: {type(error).__name__}: {error}"

    def work(self) -> None:
        raise NotImplementedError

    def _delivered(self, n: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            offset = message.offset()
            self._ledger.write("acked", by=self.name, n=n, offset=-1 if offset is None else offset)
            self.steps += 1
        else:
            self._ledger.write("failed", by=self.name, n=n, why=str(error), fatal=error.fatal())


class Writer(Client):
    """An idempotent producer."""

    def work(self) -> None:
        client = Producer(
            {
                **BRISK,
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "message.timeout.ms": PATIENCE_MS,
                "linger.ms": 2,
                "batch.num.messages": 20,
            }
        )
        for n in itertools.count():
            while len(client) >= IN_FLIGHT and not self.ending.is_set():
                client.poll(0.05)
            if self.ending.is_set():
                break
            place: dict[str, Any] = {"topic": PLAIN, "partition": n % PARTITIONS[PLAIN]}
            value = f"{self.name}:{n}:{PADDING}"
            self._ledger.write("sent", by=self.name, n=n, value=value, **place)
            client.produce(value=value, on_delivery=partial(self._delivered, n), **place)
            client.poll(0.004)
        left = client.flush(PATIENCE_MS / 1000)
        if left:
            self.broken = f"{self.name}: {left} records were never acknowledged"


class Transactor(Client):
    """A transactional producer: some records to each partition, then a commit or an abort."""

    def work(self) -> None:
        numbers, turns = itertools.count(), itertools.count()
        while not self.ending.is_set():
            client = Producer(
                {
                    **BRISK,
                    "bootstrap.servers": self._servers,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": TRANSACTION_MS,
                    "message.timeout.ms": TRANSACTION_MS,
                    "linger.ms": 1,
                }
            )
            try:
                self._insist(client.init_transactions)
                while not self.ending.is_set():
                    self._transact(client, next(turns), numbers)
            except KafkaException:
                time.sleep(0.2)  # nothing is known of the last one; the next client of this name ends it

    def _transact(self, client: Producer, turn: int, numbers: itertools.count[int]) -> None:
        tx = f"{self.name}/{turn}"
        client.begin_transaction()
        for index in range(2 * PARTITIONS[PAIRS]):
            n = next(numbers)
            place: dict[str, Any] = {"topic": PAIRS, "partition": index % PARTITIONS[PAIRS]}
            value = f"{self.name}:{n}:{tx}"
            self._ledger.write("sent", by=self.name, n=n, value=value, tx=tx, **place)
            client.produce(value=value, on_delivery=partial(self._delivered, n), **place)
        try:
            if turn % 5 == 4:
                client.flush(HASTY_SECONDS if turn % 10 == 4 else CALL_SECONDS)
                self._insist(client.abort_transaction)
                self._ledger.write("tx", tx=tx, fate="aborted")
            else:
                self._insist(client.commit_transaction)
                self._ledger.write("tx", tx=tx, fate="committed")
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._insist(client.abort_transaction)
            self._ledger.write("tx", tx=tx, fate="aborted")
        self.ending.wait(0.05)

    def _insist(self, call: Callable[[float], None]) -> None:
        while True:
            try:
                call(CALL_SECONDS)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self.ending.wait(0.05):
                    raise


class Seen:
    """What readers have noted already: the same record at the same place need not be noted twice."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int, int, bool], bytes] = {}

    def note(self, by: str, message: Any, *, committed: bool) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._BAD_MSG or "CRC" in error.str():
                facts = {"topic": message.topic(), "partition": message.partition()}
                self._ledger.write("damaged", by=by, why=error.str(), **facts)
            return
        key = message.topic(), message.partition(), message.offset(), committed
        value = message.value() or b""
        with self._lock:
            if self._known.get(key) == value:
                return
            self._known[key] = value
        place = {"topic": key[0], "partition": key[1], "offset": key[2]}
        self._ledger.write("read", by=by, committed=committed, value=value.decode(errors="backslashreplace"), **place)


class Reader(Client):
    """A member of the group: reads committed records and commits."""

    def __init__(self, name: str, servers: str, ledger: Ledger, seen: Seen, ids: itertools.count[int]) -> None:
        super().__init__(name, servers, ledger)
        self._seen = seen
        self._ids = ids

    def work(self) -> None:
        client = Consumer(
            {
                **BRISK,
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
                "session.timeout.ms": 20_000,
                "heartbeat.interval.ms": 1000,
            }
        )
        client.subscribe(list(PARTITIONS), on_assign=self._on_assign)
        while not self.ending.is_set():
            messages = client.consume(500, 0.2)
            for message in messages:
                self._seen.note(self.name, message, committed=True)
            if any(message.error() is None for message in messages):
                self._commit(client)
        client.close()

    def _commit(self, client: Consumer) -> None:
        try:
            places = client.commit(asynchronous=False)
        except KafkaException:
            return  # the coordinator is away or a rebalance came between: nothing was promised
        for place in places or []:
            if place.error is None and place.offset >= 0:
                facts = {"topic": place.topic, "partition": place.partition, "offset": place.offset}
                self._ledger.write("committed", group=GROUP, **facts)
                self.steps += 1

    def _on_assign(self, client: Any, places: Any) -> None:
        number = next(self._ids)
        self._ledger.write("asking", id=number, group=GROUP)
        try:
            found = client.committed(places, timeout=CALL_SECONDS)
        except KafkaException:
            return
        for place in found:
            if place.error is None:
                facts = {"topic": place.topic, "partition": place.partition}
                offset = -1 if place.offset == NO_OFFSET else place.offset
                self._ledger.write("found", id=number, offset=offset, **facts)


class Auditor(Client):
    """Reads everything from the beginning, again and again: all records, committed or not."""

    def __init__(self, name: str, servers: str, ledger: Ledger, seen: Seen) -> None:
        super().__init__(name, servers, ledger)
        self._seen = seen

    def work(self) -> None:
        while not self.ending.is_set():
            read(self._servers, self.name, self._seen, PARTITIONS, seconds=3.0, ending=self.ending)
            self.steps += 1
            self.ending.wait(1.0)


def read(
    servers: str,
    by: str,
    seen: Seen,
    topics: dict[str, int],
    *,
    seconds: float,
    ending: threading.Event | None = None,
    until: tuple[str, int, int] | None = None,
) -> bool:
    """Read all records of topics for so long, or until a place was reached or everything; whether it was."""
    client = Consumer(
        {
            **BRISK,
            "bootstrap.servers": servers,
            "group.id": by,
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "enable.partition.eof": True,
        }
    )
    places = [
        TopicPartition(topic, index, OFFSET_BEGINNING) for topic, count in topics.items() for index in range(count)
    ]
    if until is not None:
        places = [TopicPartition(*until[:2], OFFSET_BEGINNING)]
    client.assign(places)
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline and not (ending is not None and ending.is_set()):
            messages: list[Any] = client.consume(1000, 0.2)
            for message in messages:
                error = message.error()
                place = message.topic(), message.partition()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    ended.add(place)
                else:
                    seen.note(by, message, committed=False)
                if until is not None and error is None and (*place, message.offset()) >= until:
                    return True
            if len(ended) == len(places):
                return True
        return False
    finally:
        client.close()
