"""The sink in Spark: what a plain consumer of committed records finds in the topic."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

DELIVERIES = ("exactly_once", "exactly_once_partitioned", "at_least_once")
ROWS = "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int"


def write(frame: Any, kafka: Any, **options: Any) -> None:
    writer = frame.write.format("headrace").mode("append").option("kafka.bootstrap.servers", kafka.bootstrap)
    writer.options(**options).save()


def found(kafka: Any, topic: str, partitions: int = 1) -> list[tuple[Any, ...]]:
    """Key, value, partition, headers."""
    return [(row[0], row[1], row[3], row[7]) for row in kafka.rows(topic, partitions)]


class Copy:
    """A query from topic to topic."""

    def __init__(self, spark: Any, kafka: Any, source: str, target: str, checkpoint: Path, **options: Any) -> None:
        self.spark, self.kafka = spark, kafka
        self.source, self.target = source, target
        self.checkpoint = checkpoint
        self.options = options

    def frame(self, per_batch: int) -> Any:
        reader = self.spark.readStream.format("headrace").option("kafka.bootstrap.servers", self.kafka.bootstrap)
        return (
            reader.option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", per_batch)
            .load()
            .select("key", "value")
        )

    def run(self, *, per_batch: int = 1000, change: Any = None, trigger: Any = None) -> Any:
        frame = self.frame(per_batch)
        writer = (
            (frame if change is None else change(frame))
            .writeStream.format("headrace")
            .option("kafka.bootstrap.servers", self.kafka.bootstrap)
            .option("topic", self.target)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**self.options)
            .trigger(availableNow=True)
        )
        query = writer.start()
        try:
            query.awaitTermination(400)
            assert not query.isActive, "the query did not end"
        finally:
            query.stop()
        return query


@pytest.fixture
def copy(spark: Any, kafka: Any, tmp_path: Path) -> Any:
    def make(**options: Any) -> Copy:
        source, target = kafka.topic(2), kafka.topic(2)
        for partition in range(2):
            kafka.produce(source, [b"%d-%d" % (partition, number) for number in range(1000)], partition=partition)
        return Copy(spark, kafka, source, target, tmp_path / "checkpoint", **options)

    return make


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_table_arrives_with_keys_headers_partitions_and_nulls(spark: Any, kafka: Any, delivery: str) -> None:
    topic = kafka.topic(3)
    rows = [
        (b"k", b"v", None, None, 0),
        (None, b"no key", None, None, 1),
        (b"tombstone", None, None, None, 1),
        (b"", b"", [("a", b"1"), ("a", None), ("ä", b"")], None, 2),
        (b"x" * 300, b"y" * 70_000, [], None, 2),
    ]
    write(spark.createDataFrame(rows, ROWS).coalesce(1), kafka, topic=topic, delivery=delivery)
    assert found(kafka, topic, 3) == [
        (b"k", b"v", 0, None),
        (None, b"no key", 1, None),
        (b"tombstone", None, 1, None),
        (b"", b"", 2, (("a", b"1"), ("a", None), ("ä", b""))),
        (b"x" * 300, b"y" * 70_000, 2, None),
    ]


def test_rows_go_to_the_topics_that_their_column_names_and_text_becomes_bytes(spark: Any, kafka: Any) -> None:
    one, two = kafka.topic(1), kafka.topic(1)
    frame = spark.createDataFrame(
        [(one, "k", "ä"), (two, None, "b"), (one, "k", "c")], "topic string, key string, value string"
    )
    write(frame.coalesce(1), kafka)
    assert [row[:2] for row in found(kafka, one)] == [(b"k", "ä".encode()), (b"k", b"c")]
    assert [row[:2] for row in found(kafka, two)] == [(None, b"b")]


def test_keys_land_where_java_puts_them(spark: Any, kafka: Any) -> None:
    topic = kafka.topic(8)
    write(spark.range(100).selectExpr("string(id) key", "string(id) value"), kafka, topic=topic)
    places = {int(key): partition for key, _, partition, _ in found(kafka, topic, 8)}
    # murmur2, as Java's DefaultPartitioner computes it
    assert [places[number] for number in range(10)] == JAVA_PLACES


JAVA_PLACES: list[int] = []


def murmur2(key: bytes) -> int:
    """Java's, written down again from its definition, to check librdkafka's choice of partitions."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for start in range(0, len(key) & ~3, 4):
        k = int.from_bytes(key[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    tail = key[len(key) & ~3 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


JAVA_PLACES.extend((murmur2(b"%d" % number) & 0x7FFFFFFF) % 8 for number in range(10))


@pytest.mark.basic
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_stream_is_copied_whole_and_once(copy: Any, kafka: Any, delivery: str) -> None:
    job = copy(delivery=delivery)
    job.run()
    kafka.produce(job.source, [b"later"], partition=0)
    job.run()
    values = Counter(row[1] for row in found(kafka, job.target, 2))
    assert values == Counter([b"%d-%d" % (p, n) for p in range(2) for n in range(1000)] + [b"later"])


@pytest.mark.parametrize("delivery", DELIVERIES[:2])
def test_a_batch_that_is_replayed_is_not_written_twice(copy: Any, kafka: Any, delivery: str) -> None:
    job = copy(delivery=delivery)
    job.run()
    before = found(kafka, job.target, 2)
    commits = sorted((job.checkpoint / "commits").iterdir(), key=lambda path: path.name.zfill(9))
    for name in (f"{commits[-1].name}", f".{commits[-1].name}.crc"):
        (job.checkpoint / "commits" / name).unlink(missing_ok=True)
    job.run()
    assert found(kafka, job.target, 2) == before


def test_a_replay_that_differs_fails_loudly(copy: Any, kafka: Any) -> None:
    job = copy(delivery="exactly_once_partitioned")
    job.run(per_batch=10_000)
    before = found(kafka, job.target, 2)
    for path in (job.checkpoint / "commits").iterdir():
        path.unlink()
    with pytest.raises(Exception, match="this query does not repeat itself"):
        job.run(per_batch=10_000, change=lambda frame: frame.selectExpr("key", "concat(value, X'21') value"))
    assert found(kafka, job.target, 2) == before


def test_a_checkpoint_that_is_older_than_the_topic_is_refused(copy: Any, kafka: Any) -> None:
    job = copy()
    job.run(per_batch=500)
    for folder in ("commits", "offsets"):
        for path in (job.checkpoint / folder).iterdir():
            if path.name.strip(".").split(".")[0] not in ("0", "1"):
                path.unlink()
    (job.checkpoint / "commits" / "1").unlink()
    (job.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(Exception, match="the checkpoint is an older copy"):
        job.run(per_batch=500)


def test_large_parts_wait_under_the_checkpoint_and_are_cleaned_up(copy: Any, kafka: Any) -> None:
    job = copy(stageAboveBytes=0)
    job.run()
    assert len(found(kafka, job.target, 2)) == 2000
    folders = list((job.checkpoint / "headrace-staging").iterdir())
    assert len(folders) == 1, "one query"
    assert list(folders[0].iterdir()) == []


def test_the_marker_counts_batches_in_a_group_of_the_querys_name(copy: Any, kafka: Any) -> None:
    job = copy()
    query = job.run(per_batch=1000)
    group = f"headrace-spark-{query.id}"
    assert kafka.marked(group) == {(job.target, 0): 2}


def test_a_task_that_fails_after_others_is_written_once(copy: Any, kafka: Any, tmp_path: Path) -> None:
    """local[2,4] retries; the first attempt dies in the middle of its rows."""
    flag = str(tmp_path / "died")

    def once(batches: Any) -> Any:
        import os

        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and not os.path.exists(flag):
                open(flag, "w").close()
                os._exit(1)

    for delivery in DELIVERIES[:2]:
        Path(flag).unlink(missing_ok=True)
        job = copy(delivery=delivery)
        job.checkpoint = job.checkpoint / delivery
        job.run(per_batch=10_000, change=lambda frame: frame.mapInArrow(once, "key binary, value binary"))
        assert Path(flag).exists(), "nothing died"
        values = Counter(row[1] for row in found(kafka, job.target, 2))
        assert values == Counter(b"%d-%d" % (p, n) for p in range(2) for n in range(1000)), delivery


@pytest.mark.parametrize("delivery", DELIVERIES[:2])
def test_a_version_of_an_application_is_written_once(spark: Any, kafka: Any, delivery: str) -> None:
    """How a query with foreachBatch, and thus one in update mode, writes exactly once."""
    topic = kafka.topic(1)
    table = spark.sql("select 'v' value")
    for version in (0, 0, 1, 1):
        write(table, kafka, topic=topic, delivery=delivery, txnAppId=f"app-{delivery}", txnVersion=version)
    assert len(found(kafka, topic)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "where to write"),
        ({"topic": "t", "topc": "t"}, "did you mean 'topic'"),
        ({"topic": "t", "delivery": "twice"}, "option 'delivery' must be exactly_once or"),
        ({"topic": "t", "subscribe": "t"}, "option 'subscribe' has no meaning in a write"),
        ({"topic": "t", "kafka.acks": "1"}, "options 'kafka.acks' .1. and 'delivery'"),
        ({"topic": "t", "kafka.no.such.thing": "1"}, "option 'kafka.no.such.thing' is refused"),
        ({"topic": "t", "kafka.transactional.id": "mine"}, "use transactionalIdPrefix"),
    ],
)
def test_a_bad_option_is_named(spark: Any, kafka: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        write(spark.sql("select 'v' value"), kafka, **options)


def test_a_topic_cannot_be_overwritten(spark: Any, kafka: Any) -> None:
    writer = spark.sql("select 'v' value").write.format("headrace").option("topic", "t").mode("overwrite")
    with pytest.raises(Exception, match="can only be appended to"):
        writer.option("kafka.bootstrap.servers", kafka.bootstrap).save()


def test_a_record_that_cannot_be_written_fails_the_write_and_leaves_nothing(spark: Any, kafka: Any) -> None:
    topic = kafka.topic(1)
    frame = spark.createDataFrame([("fine", 0), ("nowhere", 7)], "value string, partition int").coalesce(1)
    start = time.monotonic()
    with pytest.raises(Exception, match="[Uu]nknown partition"):
        write(frame, kafka, topic=topic, publishTimeoutMs=300_000)
    assert time.monotonic() - start < 300, "it was tried again and again"
    assert found(kafka, topic) == []
