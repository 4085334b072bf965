"""Exactly once without Spark: publishers and task writers against a broker, rivals, replays, restarts of the broker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.errors import ClientError
from headrace.spark import sink_partition
from headrace.spark.sink_driver import Publisher
from headrace.spark.sink_marker import NOTHING, Markers
from headrace.spark.sink_options import SinkOptions
from headrace.spark.sink_partition import TaskWriter
from headrace.spark.sink_producer import Outlet
from headrace.spark.sink_rows import records
from headrace.spark.staging import Staging
from headrace.testing.process import BrokerProcess
from tests.spark.conftest import Kafka

pytestmark = [pytest.mark.process]

TRAVELS = Staging("", 0)
PATIENCE_MS = 200_000


def batch(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def numbered(start: int, end: int) -> pa.RecordBatch:
    return batch(*[b"%d" % number for number in range(start, end)])


def values(kafka: Kafka, topic: str) -> list[bytes]:
    return [row[1] for row in kafka.rows(topic)]


@pytest.fixture
def options(kafka: Kafka) -> SinkOptions:
    return SinkOptions(kafka.bootstrap, kafka.topic(), patience_ms=PATIENCE_MS)


def publish(publisher: Publisher, batch_id: int, *batches: pa.RecordBatch) -> bool:
    return publisher.publish(batch_id, [TRAVELS.pack(batches, "p")], TRAVELS)


def test_a_batch_is_published_once_whoever_tries_again(kafka: Kafka, options: SinkOptions) -> None:
    old, new = Publisher(options, "q1"), Publisher(options, "q1")
    assert publish(old, 0, batch(b"a"))
    assert publish(new, 0, batch(b"a")) is False
    assert publish(new, 1, batch(b"b"))
    assert publish(old, 1, batch(b"other rows, same batch")) is False, "the older one was fenced, and looked again"
    assert publish(old, 2, batch(b"c"))
    assert values(kafka, options.topic) == [b"a", b"b", b"c"]


def test_what_a_dead_driver_left_open_is_aborted(kafka: Kafka, options: SinkOptions) -> None:
    dead = Outlet(options, "q2")
    dead.initialise()
    dead.begin()
    dead.send(records(batch(b"half"), options.topic))
    dead.flush()
    assert publish(Publisher(options, "q2"), 0, batch(b"whole"))
    assert values(kafka, options.topic) == [b"whole"]
    dead.abandon()


def test_a_marker_is_the_highest_of_its_topics_and_survives_one_of_them(kafka: Kafka, options: SinkOptions) -> None:
    one, two = kafka.topic(), kafka.topic()
    anywhere = SinkOptions(kafka.bootstrap, "", patience_ms=PATIENCE_MS)
    rows = pa.record_batch([pa.array([b"v", b"v"]), pa.array([one.encode(), two.encode()])], names=["value", "topic"])
    publisher = Publisher(anywhere, "q3")
    publish(publisher, 0, rows.slice(0, 1))
    publish(publisher, 1, rows)
    kafka.delete(one)
    assert Markers(anywhere).read("q3").next_batch == 2
    assert Markers(anywhere).read("nobody") == NOTHING


def test_a_batch_from_an_older_checkpoint_is_refused(kafka: Kafka, options: SinkOptions) -> None:
    publisher = Publisher(options, "q4")
    publish(publisher, 0, batch(b"a"))
    publish(publisher, 5, batch(b"b"))  # empty batches leave no marker
    with pytest.raises(ClientError, match="older copy"):
        publish(publisher, 3, batch(b"c"))


def test_a_record_that_is_refused_leaves_nothing_and_the_next_batch_goes_on(kafka: Kafka, options: SinkOptions) -> None:
    publisher = Publisher(options, "q5")
    nowhere = pa.record_batch([pa.array([b"a", b"b"]), pa.array([0, 99], pa.int32())], names=["value", "partition"])
    with pytest.raises(ClientError, match="[Uu]nknown partition"):
        publish(publisher, 0, nowhere)
    assert publish(publisher, 0, batch(b"c"))
    assert values(kafka, options.topic) == [b"c"]


def test_large_parts_go_to_a_file_and_come_back(kafka: Kafka, options: SinkOptions, tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "staging"), 10_000)
    small, large = staging.pack([batch(b"small")], "1-0"), staging.pack([batch(bytes(9)), numbered(0, 9000)], "1-1")
    assert not small.path
    assert large.path
    assert not large.content
    assert large.rows == 9001
    publisher = Publisher(options, "q6")
    publisher.publish(0, [small, large], staging)
    assert values(kafka, options.topic) == [b"small", bytes(9), *[b"%d" % number for number in range(9000)]]
    staging.clean("1-")
    assert list((tmp_path / "staging").iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_staging_place_may_be_a_path_or_an_address(tmp_path: Path, prefix: str) -> None:
    staging = Staging(f"{prefix}{tmp_path}/staging", 0)
    part = staging.pack([batch(b"v")], "0-0")
    assert [each.num_rows for each in staging.unpack(part)] == [1]
    assert len(list((tmp_path / "staging").iterdir())) == 1


def test_a_task_that_committed_and_was_lost_is_not_written_again(kafka: Kafka, options: SinkOptions) -> None:
    assert TaskWriter(options, "t1-0").write(0, [numbered(0, 100)]) == 100
    assert TaskWriter(options, "t1-0").write(0, [numbered(50, 100), numbered(0, 50)]) == 100, "in another order"
    assert TaskWriter(options, "t1-0").write(1, []) == 0
    assert Counter(values(kafka, options.topic)) == Counter(b"%d" % number for number in range(100))


@pytest.mark.parametrize("other", [numbered(0, 99), numbered(1, 101), batch(*[b"0"] * 100), batch()])
def test_a_task_whose_rows_differ_when_repeated_fails(
    kafka: Kafka, options: SinkOptions, other: pa.RecordBatch
) -> None:
    TaskWriter(options, options.topic).write(0, [numbered(0, 100)])
    with pytest.raises(ClientError, match="does not repeat itself"):
        TaskWriter(options, options.topic).write(0, [other])
    assert len(values(kafka, options.topic)) == 100


def test_a_speculative_copy_and_its_rival_write_once_and_both_succeed(kafka: Kafka, options: SinkOptions) -> None:
    half_way, go_on = threading.Event(), threading.Event()
    counts = []

    def slowly() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 50)
        half_way.set()
        assert go_on.wait(200)
        yield numbered(50, 100)

    slow = threading.Thread(target=lambda: counts.append(TaskWriter(options, "t3-0").write(0, slowly())))
    slow.start()
    assert half_way.wait(200)
    counts.append(TaskWriter(options, "t3-0").write(0, [numbered(0, 100)]))
    go_on.set()
    slow.join(200)
    assert counts == [100, 100]
    assert Counter(values(kafka, options.topic)) == Counter(b"%d" % number for number in range(100))


def test_an_attempt_whose_rival_never_commits_fails_and_may_be_repeated(
    kafka: Kafka, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_partition, "RIVAL_SECONDS", 0.5)

    def fenced_on_the_way() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 10)
        Outlet(options, "t4-0").initialise()
        yield numbered(10, 20)

    with pytest.raises(ClientError, match="another attempt has fenced"):
        TaskWriter(options, "t4-0").write(0, fenced_on_the_way())
    assert TaskWriter(options, "t4-0").write(0, [numbered(0, 20)]) == 20
    assert len(values(kafka, options.topic)) == 20


def test_a_broker_that_is_killed_between_and_within_batches_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--log-level", "warning") as broker:
        kafka = Kafka(broker.bootstrap_servers)
        options = SinkOptions(broker.bootstrap_servers, kafka.topic(), patience_ms=PATIENCE_MS)
        publisher = Publisher(options, "q7")
        for batch_id in range(3):
            rows = numbered(batch_id * 20_000, (batch_id + 1) * 20_000)
            killer = threading.Timer(0.05 * batch_id, lambda: (broker.kill(), broker.start()))
            killer.start()
            publish(publisher, batch_id, rows)
            killer.join()
        again: Any = Publisher(options, "q7")
        assert publish(again, 2, rows) is False
        assert Counter(values(kafka, options.topic)) == Counter(b"%d" % number for number in range(60_000))
