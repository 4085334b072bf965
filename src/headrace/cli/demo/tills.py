"""The broker alone: orders stream through a broker to a group of two, and every one of them is accounted for.

A broker starts on a temporary directory; a shop sends orders; two tills of one consumer group add them up. On the way
the broker is stopped and started again, and one till goes home early. At the end both sides' books must agree.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.demo.board import what_next

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headrace import Broker

TOPIC, GROUP, PARTITIONS = "orders", "tills", 4
PRODUCTS = {"espresso": 240, "flat white": 390, "filter coffee": 310, "croissant": 280, "cinnamon bun": 350}
DRAIN_SECONDS = 60.0
SECONDS = 6.0
SILENT = logging.getLogger("headrace.demo.clients")  # librdkafka's remarks about the broker that we stop on purpose
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


@dataclass
class Books:
    """Orders and takings, as one side sees them."""

    orders: int = 0
    cents: int = 0
    by_product: Counter[str] = field(default_factory=Counter)
    ids: Counter[int] = field(default_factory=Counter)

    def add(self, order: dict[str, Any]) -> None:
        self.orders += 1
        self.cents += order["cents"]
        self.by_product[order["product"]] += order["cents"]
        self.ids[order["id"]] += 1


def run(console: Console, orders: int, seconds: float, keep: bool) -> int:
    """The exit code."""
    directory = tempfile.mkdtemp(prefix="headrace-demo-")
    try:
        return Shop(directory, console, orders, seconds).run()
    finally:
        if keep:
            console.print(f"The data is in {directory}; try: headrace log list {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


class Till(threading.Thread):
    """One consumer of the group: reads, adds up, commits after each batch."""

    def __init__(self, name: str, bootstrap: str) -> None:
        super().__init__(name=name, daemon=True)
        self.books = Books()
        self.partitions: list[int] = []
        self.stopping = threading.Event()
        self._servers = bootstrap

    def run(self) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "client.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
            },
            logger=SILENT,
        )
        consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked)
        try:
            while not self.stopping.is_set():
                messages = [message for message in consumer.consume(500, 0.1) if message.error() is None]
                for message in messages:
                    self.books.add(json.loads(message.value() or b"{}"))
                if messages:
                    consumer.commit(asynchronous=True)
        finally:
            consumer.close()
            self.partitions = []

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self.partitions = sorted(partition.partition for partition in partitions)

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            pass  # nothing was read since the last commit
        self.partitions = []


class Shop:
    """The whole story: send, watch, disturb, settle."""

    def __init__(self, directory: str, console: Console, orders: int, seconds: float) -> None:
        self._directory = directory
        self._console = console
        self._wanted = orders
        self._seconds = seconds
        self._sent = Books()
        self._failed = 0
        self._events: list[str] = []
        self._broker, took_ms = self._open()
        self._note(f"a broker is up on {self._broker.bootstrap_servers} after {took_ms:.0f} ms, on a new directory")
        self._tills = [Till(name, self._broker.bootstrap_servers) for name in ("till-1", "till-2")]

    def _open(self, port: int = 0) -> tuple[Broker, float]:
        from headrace import Broker

        begun = time.perf_counter()
        broker = Broker(self._directory, port=port).start()
        return broker, (time.perf_counter() - begun) * 1000

    def run(self) -> int:
        try:
            return self._run()
        finally:
            self._broker.stop()

    def _run(self) -> int:
        from confluent_kafka.admin import AdminClient, NewTopic
        from rich.live import Live

        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers}, logger=SILENT)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(10)
        del admin  # it would remark on the broker's absence
        self._note(f"topic {TOPIC!r} with {PARTITIONS} partitions; two tills join group {GROUP!r}")
        for till in self._tills:
            till.start()
        sender = threading.Thread(target=self._send, name="shop", daemon=True)
        sender.start()
        live = Live(self._view(), console=self._console, refresh_per_second=8) if self._console.is_terminal else None
        if live is not None:
            live.start()
        try:
            self._disturb(sender, live)
            self._drain(sender, live)
        finally:
            for till in self._tills:
                till.stopping.set()
            for till in self._tills:
                till.join(20)
            if live is not None:
                live.update(self._view())
                live.stop()
        return self._settle()

    def _send(self) -> None:
        from confluent_kafka import Producer

        dice = random.Random(7)
        producer = Producer(
            {
                "bootstrap.servers": self._broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 20,
            },
            logger=SILENT,
        )
        begun = time.monotonic()
        for number in range(self._wanted):
            product = dice.choice(list(PRODUCTS))
            count = dice.randint(1, 4)
            customer = f"c{dice.randint(1, 500)}"
            order = {
                "id": number,
                "customer": customer,
                "product": product,
                "count": count,
                "cents": count * PRODUCTS[product],
            }
            producer.produce(TOPIC, json.dumps(order).encode(), customer, on_delivery=self._delivered(order))
            if number % 100 == 0:
                producer.poll(0)
                ahead = begun + self._seconds * number / self._wanted - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
        producer.flush(DRAIN_SECONDS)

    def _delivered(self, order: dict[str, Any]) -> Any:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self._sent.add(order)
            else:
                self._failed += 1

        return delivered

    def _disturb(self, sender: threading.Thread, live: Any) -> None:
        """Stop and start the broker at a third; send one till home at two thirds."""
        self._watch(lambda: self._sent.orders >= self._wanted // 3 or not sender.is_alive(), live)
        port = int(self._broker.bootstrap_servers.rpartition(":")[2])
        self._broker.stop()
        self._note(f"the broker was stopped after {self._sent.orders:,} acknowledged orders ...")
        self._broker, took_ms = self._open(port)  # the same port and directory: clients find it by themselves
        self._note(f"... and is back after {took_ms:.0f} ms; clients reconnect by themselves")
        self._watch(lambda: self._sent.orders >= self._wanted * 2 // 3 or not sender.is_alive(), live)
        self._tills[1].stopping.set()
        self._tills[1].join(20)
        self._note(f"till-2 went home after {self._tills[1].books.orders:,} orders; till-1 takes over its partitions")

    def _drain(self, sender: threading.Thread, live: Any) -> None:
        self._watch(lambda: not sender.is_alive(), live)
        self._watch(lambda: self._received() >= self._sent.orders, live)

    def _received(self) -> int:
        """What was delivered again counts once."""
        return len({order for till in self._tills for order in list(till.books.ids)})

    def _watch(self, done: Any, live: Any) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while not done() and time.monotonic() < deadline:
            time.sleep(0.05)
            if live is not None:
                live.update(self._view())

    def _note(self, event: str) -> None:
        self._events.append(event)
        if not self._console.is_terminal:
            self._console.print(f"- {event}")

    def _view(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("", "partitions", "orders", "takings")
        for column in table.columns[2:]:
            column.justify = "right"
        table.add_row("shop (sent)", "", f"{self._sent.orders:,}", _euro(self._sent.cents))
        for till in self._tills:
            owned = ", ".join(map(str, till.partitions)) or "-"
            table.add_row(till.name, owned, f"{till.books.orders:,}", _euro(till.books.cents))
        return Group(*(Text(f"- {event}") for event in self._events), table)

    def _settle(self) -> int:
        from rich.table import Table

        received = Books()
        for till in self._tills:
            received.ids += till.books.ids
            received.by_product += till.books.by_product
        missing = len(self._sent.ids - received.ids)
        doubled = sum(count - 1 for count in received.ids.values() if count > 1)
        table = Table("product", "sold", "booked by the tills")
        for column in table.columns[1:]:
            column.justify = "right"
        for product in PRODUCTS:
            table.add_row(product, _euro(self._sent.by_product[product]), _euro(received.by_product[product]))
        self._console.print(table)
        verdict = f"{self._sent.orders:,} orders acknowledged, {missing} missing, {self._failed} refused"
        repeats = (
            f", {doubled} delivered again after the restart (at least once)" if doubled else ", none delivered twice"
        )
        if missing or self._failed or self._sent.orders != self._wanted:
            self._console.print(f"[bold red]The books do not agree:[/] {verdict}{repeats}.")
            return 1
        self._console.print(f"[bold green]The books agree:[/] {verdict}{repeats}.")
        what_next(self._console)
        return 0


def _euro(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"
