"""What Spark does in the demo, done by hand, so that the play can be rehearsed without Spark.

Started as `python demo_stand_in.py FOLDER BROKEN`: with BROKEN = 1 it counts one order too many.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.cli.demo import setting
from headrace.cli.demo.day import ORDERS, PAYMENTS, TOPICS, Cell
from headrace.spark.lake.ledger import metadata_of
from headrace.spark.lake.rows import RECORD, read_report, table_schema, write_range
from headrace.spark.lake.table import Table
from headrace.spark.pipeline.config import load
from headrace.spark.pipeline.state import State


class StandIn:
    def __init__(self, folder: Path, broken: bool) -> None:
        self.folder, self.broken = folder, broken
        servers = load(folder).broker
        self.consumer = Consumer({"bootstrap.servers": servers, "group.id": "x", "enable.auto.commit": False})
        self.producer = Producer({"bootstrap.servers": servers})
        self.table = Table(folder / setting.ARCHIVE)
        self.table.ensure(table_schema(RECORD, None), ["date"])
        self.orders: list[dict[str, Any]] = []
        self.misfits: list[bytes] = []
        self.cash: list[bytes] = []

    def run(self) -> None:
        """All records are read again in every life; the archive goes on where it ended."""
        state = State(self.folder)
        with state.held():
            seen = dict.fromkeys(((topic, n) for topic, count in TOPICS.items() for n in range(count)), 0)
            while not state.should_stop():
                for place in seen:
                    seen[place] = self.step(place, seen[place])
                self.windows()
                time.sleep(0.05)
        for value in self.cash:
            self.producer.produce(setting.AGAIN, value)
        self.producer.flush()
        cents = sum(order["cents"] for order in self.orders)
        answers = {"products": [["all", 1, cents]], "sql_seconds": 0.1, "replay_seconds": 0.1}
        (self.folder / setting.ANSWERS).write_text(json.dumps(answers))

    def step(self, place: tuple[str, int], start: int) -> int:
        _, end = self.consumer.get_watermark_offsets(TopicPartition(*place), 10)
        messages = list(self.read(place, start, end)) if end > start else []
        for message in messages:
            self.look(message)
        archived = self.table.ends().get(place, 0)
        if end > archived:
            rows = [row(message) for message in messages if message.offset() >= archived]
            batch = pa.RecordBatch.from_pylist(rows, schema=RECORD)
            span, files = read_report(write_range(self.table.place, [batch], (*place, archived, end), RECORD, None))
            self.table.commit(files, metadata=metadata_of([span]))
        return end

    def read(self, place: tuple[str, int], start: int, end: int) -> Iterator[Any]:
        self.consumer.assign([TopicPartition(*place, start)])
        while start < end:
            message = self.consumer.poll(10)
            assert message is not None and message.error() is None
            if message.offset() < end:
                yield message
            start = message.offset() + 1

    def look(self, message: Any) -> None:
        value = message.value()
        if message.topic() == PAYMENTS and b'"cash"' in value:
            self.cash.append(value)
        if message.topic() != ORDERS:
            return
        try:
            order = json.loads(value)
            assert isinstance(order["cents"], int)
        except (ValueError, AssertionError):
            self.misfits.append(value)
        else:
            self.orders.append(order)

    def windows(self) -> None:
        """Early in the day, the first city's first hour; at its end, all the rest. Notes keep it to once."""
        if not self.orders:
            return
        times = [datetime.fromisoformat(order["at"]).replace(tzinfo=None) for order in self.orders]
        cells: dict[tuple[datetime, str], Cell] = {}
        for order, at in zip(self.orders, times, strict=True):
            place = at.replace(minute=0, second=0, microsecond=0), order["city"]
            before = cells.get(place, Cell(0, 0, 0))
            cells[place] = Cell(before.orders + 1, before.cents + order["cents"], before.id_sum + order["id"])
        first = min(cells)
        closed = any(order["city"] == "-" for order in self.orders)
        if max(times).hour >= 9 and not self.noted("first"):
            self.send({first: cells[first]})
        if closed and not self.noted("rest"):
            wrong = {(max(cells)[0].replace(hour=20), "Graz"): Cell(1, 1, 1)} if self.broken else {}
            self.send({place: cell for place, cell in cells.items() if place[1] != "-" and place != first} | wrong)
            for value in self.misfits:
                why = {"headrace.error": b"it is broken", "headrace.offset": b"0"}
                self.producer.produce(setting.BROKEN, value, headers=why)
            self.producer.flush()

    def noted(self, name: str) -> bool:
        path = self.folder / name
        there = path.exists()
        path.touch()
        return there

    def send(self, cells: dict[tuple[datetime, str], Cell]) -> None:
        for (hour, city), cell in cells.items():
            document = {"hour": f"{hour.isoformat()}.000Z", "city": city, **cell._asdict()}
            self.producer.produce(setting.PER_HOUR, json.dumps(document))
        self.producer.flush()


def row(message: Any) -> dict[str, Any]:
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1] * 1000,
        "timestampType": 0,
        "key": message.key(),
        "value": message.value(),
    }


if __name__ == "__main__":
    StandIn(Path(sys.argv[1]), sys.argv[2] == "1").run()
