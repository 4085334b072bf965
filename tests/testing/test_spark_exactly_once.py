"""The judge of the histories: it must see what is missing, double and strange. (Histories themselves: tests/spark.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import Broker
from headrace.testing.spark_exactly_once.flows import PARTITIONS, complaints, fits, key, topics, value

pytestmark = [pytest.mark.process]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as broker:
        names = [topic for flow in ("exactly_once", "letters") for topic in topics(flow)]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            future.result(30)
        yield broker.bootstrap_servers


def put(bootstrap: str, topic: str, rows: list[tuple[bytes, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for name, text in rows:
        producer.produce(topic, text, name)
    assert producer.flush(60) == 0


def test_a_missing_and_a_double_row_are_found(bootstrap: str, tmp_path: Path) -> None:
    put(bootstrap, "exactly_once", [(key(number), value(number)) for number in range(10)])
    assert list(complaints("exactly_once", bootstrap, tmp_path, 10)) == []
    [missing] = complaints("exactly_once", bootstrap, tmp_path, 11)
    assert "1 of 11 are missing" in missing and "'k10'" in missing
    put(bootstrap, "exactly_once", [(key(3), value(3))])
    [double] = complaints("exactly_once", bootstrap, tmp_path, 10)
    assert "1 are double or strange" in double and "'k3'" in double


def test_rows_and_dead_letters_are_judged_apart(bootstrap: str, tmp_path: Path) -> None:
    good = [number for number in range(20) if fits(number)]
    bad = [number for number in range(20) if not fits(number)]
    put(bootstrap, "letters-out", [(key(number), b'{"id":%d}' % number) for number in good])
    put(bootstrap, "letters-dead", [(key(number), value(number)) for number in bad[1:]])
    [told] = complaints("letters", bootstrap, tmp_path, 20)
    assert told.startswith("letters: dead letters: 1 of 3 are missing")
    put(bootstrap, "letters-dead", [(key(bad[0]), value(bad[0]))])
    assert list(complaints("letters", bootstrap, tmp_path, 20)) == []
