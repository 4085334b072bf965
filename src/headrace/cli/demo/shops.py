"""The shops at work: a thread that plays a day into topics.

Rules:
- A tick is acknowledged as a whole before the next begins: event time never runs ahead of what the broker has.
- The day takes its time, but does not pass HOLD before `hurry` is set: whoever watches wants to see something first.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from headrace.cli.demo.day import ORDERS, TICKS, Day, Record

HOLD = 0.55  # of the day
FLUSH_SECONDS = 60.0


class Shops(threading.Thread):
    """See the module. `part` of the day is over; `failure` says what went wrong, if something did."""

    def __init__(self, day: Day, bootstrap: str, seconds: float) -> None:
        super().__init__(name="shops", daemon=True)
        self.day = day
        self.part = 0.0
        self.sent = 0  # orders that the broker has acknowledged
        self.failure = ""
        self.hurry = threading.Event()
        self.leave = threading.Event()
        self._servers = bootstrap
        self._seconds = seconds

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5})
        try:
            for number, records in enumerate(self.day.ticks(), 1):
                began = time.monotonic()
                self._send(producer, records)
                self.sent += sum(record.topic == ORDERS for record in records)
                self.part = number / TICKS
                while self.part >= HOLD and not self.hurry.is_set() and not self.leave.is_set():
                    self.hurry.wait(0.1)
                self.leave.wait(max(0.0, began + self._seconds / TICKS - time.monotonic()))
                if self.leave.is_set():
                    return
            self._send(producer, [self.day.closing()])  # no order: it only tells Spark that the day is over
        except Exception as error:  # at the edge: the play looks at it
            self.failure = f"{type(error).__name__}: {error}"

    def _send(self, producer: Any, records: list[Record]) -> None:
        refused: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                refused.append(str(error))

        for record in records:
            producer.produce(record.topic, record.value, record.key, on_delivery=delivered)
        left = producer.flush(FLUSH_SECONDS)
        if refused or left:
            raise RuntimeError(refused[0] if refused else f"{left} records were not acknowledged in time")
