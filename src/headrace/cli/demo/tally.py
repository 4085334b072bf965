"""What a plain consumer sees of the topics that Spark writes, committed records only."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from headrace.cli.demo.day import Cell
from headrace.cli.demo.setting import AGAIN, BROKEN, PER_HOUR


class Tally(threading.Thread):
    """Reads from the beginning, and on. No group, no commits: it only looks."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="tally", daemon=True)
        self.cells: dict[tuple[int, str], Cell] = {}
        self.seen: Counter[tuple[int, str]] = Counter()  # how often each window was written
        self.letters: Counter[bytes] = Counter()
        self.reasons: Counter[str] = Counter()
        self.unexplained = 0  # dead letters that do not say why, or where they are from
        self.again: Counter[bytes] = Counter()
        self.leave = threading.Event()
        self._servers = bootstrap

    @property
    def orders(self) -> int:
        """Orders in windows that are closed."""
        return sum(cell.orders for cell in list(self.cells.values()))

    def run(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "demo-tally",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in (PER_HOUR, BROKEN, AGAIN)])
        while not self.leave.is_set():
            self.take(message for message in consumer.consume(500, 0.1) if message.error() is None)
        consumer.close()

    def take(self, messages: Iterable[Any]) -> None:
        for message in messages:
            if message.topic() == PER_HOUR:
                self._window(json.loads(message.value()))
            elif message.topic() == BROKEN:
                self._letter(message.value(), dict(message.headers() or []))
            else:
                self.again[message.value()] += 1

    def _window(self, row: dict[str, Any]) -> None:
        place = datetime.fromisoformat(row["hour"]).hour, row["city"]
        self.cells[place] = Cell(row["orders"], row["cents"], row["id_sum"])
        self.seen[place] += 1

    def _letter(self, value: bytes, headers: dict[str, bytes]) -> None:
        self.letters[value] += 1
        why = headers.get("headrace.error", b"").decode()
        self.reasons[why] += 1
        self.unexplained += not (why and "headrace.offset" in headers)
