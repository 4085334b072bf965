"""What is run, and what must be there in the end, by the name of a flow.

Rules:
- Every flow reads the topic `in` and writes to places that bear its name: topics, or a table in the history's folder.
- Rows that come out are compared with rows that went in as multisets of (key, value).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

SOURCE: Final = "in"
PARTITIONS: Final = 2
COPIES: Final = ("exactly_once", "exactly_once_partitioned")  # named like their delivery
READ_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05

Rows = Counter[tuple[bytes | None, bytes | None]]


def key(number: int) -> bytes:
    return b"k%d" % (number % 97)


def value(number: int) -> bytes:
    """JSON with the number; every seventh is broken."""
    text = b'{"id":%d,"pad":"%s"}' % (number, b"x" * (number % 50))
    return text if fits(number) else text[:-1]


def fits(number: int) -> bool:
    return number % 7 != 3


def topics(flow: str) -> list[str]:
    """What has to be made before the flow is started."""
    if flow in COPIES:
        return [flow]
    return [f"{flow}-out", f"{flow}-dead"] if flow == "letters" else [f"{flow}-dead"]


def document(flow: str, bootstrap: str, per_batch: int) -> dict[str, Any]:
    """The pipeline of a flow."""
    sinks: dict[str, dict[str, Any]] = {
        "letters": {"type": "topic", "from": "rows", "topic": "letters-out", "key": "key"},
        "table": {"type": "table", "from": "rows", "path": "rows"},
    }
    decode = {"schema": "id long, pad string", "on_error": "dlq", "dlq": f"{flow}-dead", "keep": ["key"]}
    return {
        "name": flow,
        "broker": bootstrap,
        "sources": {"records": {"topic": SOURCE, "max_per_batch": per_batch, "decode": decode}},
        # Nothing but a shuffle: what is done again comes in another order.
        "transform": [{"name": "rows", "sql": "select /*+ repartition(3, id) */ id, key from records"}],
        "sinks": [sinks[flow]],
    }


def complaints(flow: str, bootstrap: str, folder: Path, records: int) -> Iterator[str]:
    """What is missing, double or strange."""
    numbers = range(records)
    if flow in COPIES:
        everything: Rows = Counter((key(n), value(n)) for n in numbers)
        yield from _differences(flow, everything, committed(bootstrap, flow))
        return
    good: Rows = Counter((key(n), b"%d" % n) for n in numbers if fits(n))
    bad: Rows = Counter((key(n), value(n)) for n in numbers if not fits(n))
    found = _table(folder / flow / "rows") if flow == "table" else _decoded(committed(bootstrap, f"{flow}-out"))
    yield from _differences(f"{flow}: rows", good, found)
    yield from _differences(f"{flow}: dead letters", bad, committed(bootstrap, f"{flow}-dead"))


def _differences(what: str, wanted: Rows, found: Rows) -> Iterator[str]:
    missing, double = wanted - found, found - wanted
    if missing:
        yield f"{what}: {missing.total()} of {wanted.total()} are missing, such as {next(iter(missing))}"
    if double:
        yield f"{what}: {double.total()} are double or strange, such as {next(iter(double))}"


def committed(bootstrap: str, topic: str) -> Rows:
    """Keys and values, as a plain consumer of committed records sees them."""
    places = [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    consumer = _reader(bootstrap, "read_committed")
    _await_decided(consumer, _reader(bootstrap, "read_uncommitted"), places)
    consumer.assign(places)
    found: Rows = Counter()
    left = set(range(PARTITIONS))
    while left:
        message = consumer.poll(READ_SECONDS)
        assert message is not None, f"a reader of {topic} waits in vain"
        fault = message.error()
        if fault is not None:
            assert fault.code() == KafkaError._PARTITION_EOF, fault
            left.discard(message.partition())
        else:
            found[message.key(), message.value()] += 1
    consumer.close()
    return found


def _reader(bootstrap: str, level: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def _await_decided(committed: Consumer, all_records: Consumer, places: list[TopicPartition]) -> None:
    """A commit is answered before its markers are written; a reader of committed records ends before them."""
    deadline = time.monotonic() + READ_SECONDS
    for place in places:
        while True:
            stable, end = (each.get_watermark_offsets(place, READ_SECONDS)[1] for each in (committed, all_records))
            if stable >= end:
                break
            assert time.monotonic() < deadline, f"a transaction stays open in {place.topic}-{place.partition}"
            time.sleep(_LOOK_SECONDS)
    all_records.close()


def _decoded(rows: Rows) -> Rows:
    import json

    return Counter({(name, b"%d" % json.loads(text or b"")["id"]): count for (name, text), count in rows.items()})


def _table(path: Path) -> Rows:
    from headrace.spark.lake import arrow_table

    return Counter((row["key"].encode(), b"%d" % row["id"]) for row in arrow_table(path).to_pylist())
