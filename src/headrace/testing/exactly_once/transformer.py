"""A program that reads `orders` and writes `bills` and `ledger` in transactions, until it is stopped or killed.

    python -m headrace.testing.exactly_once.transformer '{"bootstrap_servers": ..., ...}'

Each transaction takes a few orders. It writes a bill for each, one line into the ledger that names them all, and the
group's offsets. Every record carries the transaction's label and the number of its records, so that a reader can tell
whether it sees all of it. Some transactions are doomed: they are written, and then aborted on purpose.

It is an honest client: it tries again what may be tried again, aborts what must be aborted and goes back to the
committed offsets; on a fatal error it ends, with FENCED if somebody took its place. Where nodes come and go it ends
with STUCK if its offsets cannot be sent for long: librdkafka 2.16 waits for ever for a coordinator that it knew and
that is not in the cluster's metadata any more (its issue 5511). A new process does better.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from headrace.testing.exactly_once.journal import Journal

ORDERS, BILLS, LEDGER = "orders", "bills", "ledger"
PARTITIONS = {ORDERS: 2, BILLS: 2, LEDGER: 1}
GROUP = "billing"
ENDED, FATAL, FENCED, STUCK = 0, 3, 4, 5
# A consumer tells only that it is done for; nothing but a fence does that to one.
FENCES = {KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID, KafkaError.PRODUCER_FENCED, KafkaError._FATAL}
BRISK: dict[str, str | int | float] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "log_level": 0,
    # When it starts over, librdkafka 2.16 drops a broker that its cache of coordinators still names, and then waits for
    # that one for ever (send_offsets_to_transaction after a broker was away).
    "metadata.recovery.strategy": "none",
    # To look into a history that failed: HISTORY_CLIENT='{"debug": "eos,cgrp", "log_level": 7}'.
    **json.loads(os.environ.get("HISTORY_CLIENT", "{}")),
}


class Orders(msgspec.Struct, frozen=True):
    """What a transformer is told to do."""

    bootstrap_servers: str
    name: str  # its transactional id and its group.instance.id
    incarnation: str  # of all transformers that there ever were
    folder: str  # where its journal is to be
    seed: int
    transaction_timeout_ms: int = 10_000
    session_timeout_ms: int = 6000
    give_up_s: float = 0.0  # if offsets cannot be sent for so long; 0: never


class Bill(msgspec.Struct, frozen=True):
    """The value of every record that is written."""

    label: str
    records: int  # in the whole transaction
    orders: list[str]
    doomed: bool


class Transformer:
    """See the module."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._dice = random.Random(orders.seed)
        self._number = 0
        self._journal = Journal(Path(orders.folder) / f"{orders.incarnation}.journal")
        self._ending = False
        self._producer = Producer(
            {
                **BRISK,
                "bootstrap.servers": orders.bootstrap_servers,
                "transactional.id": orders.name,
                "transaction.timeout.ms": orders.transaction_timeout_ms,
                "linger.ms": 0,
            }
        )
        self._consumer = Consumer(
            {
                **BRISK,
                "bootstrap.servers": orders.bootstrap_servers,
                "group.id": GROUP,
                "group.instance.id": orders.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": orders.session_timeout_ms,
                "heartbeat.interval.ms": 300,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 20,
            }
        )

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._ending = True

    def run(self) -> None:
        insist(lambda: self._producer.init_transactions(30))
        self._journal.write("ready")
        # With callbacks, a new generation waits until the old one's orders are dealt with.
        self._consumer.subscribe([ORDERS], on_assign=_note, on_revoke=_note)
        while not self._ending:
            found = self._consumer.consume(self._dice.randint(1, 6), 0.05)
            messages = [message for message in found if _is_order(message)]
            if messages and not self._attempt(messages):
                self._go_back()
        self._consumer.close()

    def _attempt(self, messages: Sequence[Message]) -> bool:
        """One transaction; False if it was aborted."""
        self._number += 1
        label = f"{self._orders.incarnation}/{self._number}"
        doomed = self._dice.random() < 0.15
        member = self._consumer.consumer_group_metadata()
        # Not Consumer.position(): after a seek it still tells of what was taken before.
        ends = {message.partition() or 0: (message.offset() or 0) + 1 for message in messages}
        places = [TopicPartition(ORDERS, partition, offset) for partition, offset in ends.items()]
        self._journal.write("begin", label)
        self._producer.begin_transaction()
        try:
            self._write(messages, label, doomed)
            self._send_offsets(places, member)
            if not doomed:
                self._journal.write("committing", label)
                insist(lambda: self._producer.commit_transaction(30))
                self._journal.write("committed", label)
                return True
            self._producer.flush(5)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._journal.write("aborting", label)
        insist(lambda: self._producer.abort_transaction(30))
        self._journal.write("aborted", label)
        return False

    def _send_offsets(self, places: list[TopicPartition], member: Any) -> None:
        # It may never return, whatever its timeout.
        watch = threading.Timer(self._orders.give_up_s, os._exit, [STUCK]) if self._orders.give_up_s else None
        if watch is not None:
            watch.start()
        try:
            insist(lambda: self._producer.send_offsets_to_transaction(places, member, 30))
        finally:
            if watch is not None:
                watch.cancel()

    def _write(self, messages: Sequence[Message], label: str, doomed: bool) -> None:
        names = [(message.value() or b"").decode() for message in messages]
        count = len(names) + 1
        for name in names:
            value = msgspec.json.encode(Bill(label, count, [name], doomed))
            self._producer.produce(BILLS, value, partition=int(name.rpartition("-")[2]) % PARTITIONS[BILLS])
        self._producer.produce(LEDGER, msgspec.json.encode(Bill(label, count, names, doomed)), partition=0)

    def _go_back(self) -> None:
        """To what is committed: the orders of the aborted transaction are still to be billed."""
        while not self._ending:
            places = self._consumer.assignment()
            try:
                committed = self._consumer.committed(places, 10)
                if any(place.error is not None for place in committed):
                    continue
                for place in committed:
                    offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
                    self._consumer.seek(TopicPartition(place.topic, place.partition, offset))
                return
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                if error.args[0].code() in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                    return  # the partition was taken away meanwhile; its next owner begins at the committed offset


def _note(client: Consumer, places: list[TopicPartition]) -> None:
    """The consumer does what is needed."""


def insist(step: Callable[[], object]) -> None:
    """Do it until it is done, or cannot be done."""
    while True:
        try:
            step()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _is_order(message: Message) -> bool:
    """False if it is an error that the consumer gets over by itself."""
    error = message.error()
    if error is not None and (error.fatal() or error.code() in FENCES):
        raise KafkaException(error)
    return error is None


def main(orders: Orders) -> int:
    transformer = Transformer(orders)
    signal.signal(signal.SIGTERM, transformer.stop)
    try:
        transformer.run()
    except KafkaException as error:
        cause = error.args[0]
        with contextlib.suppress(OSError):
            print(f"{orders.incarnation}: {cause!r}", file=sys.stderr, flush=True)
        return FENCED if cause.code() in FENCES else FATAL
    return ENDED


if __name__ == "__main__":
    # librdkafka may wait for ever, or crash, when a client is taken down that has failed.
    os._exit(main(msgspec.convert(json.loads(sys.argv[1]), Orders)))
