"""Batch reads, compared with what a plain consumer sees."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # the first query of a session is slow on a busy machine

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def rows_of(frame):
    """Rows in the form of `Kafka.rows`."""
    found = []
    for row in frame.selectExpr("*", "unix_millis(timestamp) as ms").collect():
        headers = getattr(row, "headers", None)
        found.append(
            (
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                row.topic,
                row.partition,
                row.offset,
                row.ms,
                row.timestampType,
                None if headers is None else tuple((item.key, item.value and bytes(item.value)) for item in headers),
            )
        )
    return sorted(found, key=lambda row: row[3:5])


def failure(action):
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


@pytest.fixture(scope="module")
def mixed(kafka):
    """A topic with everything: all codecs, null and empty keys and values, headers, several partitions."""
    topic = kafka.topic(3)
    for partition in range(3):
        for codec in CODECS:
            records = [
                {
                    "value": None
                    if index % 7 == 3
                    else b""
                    if index % 11 == 5
                    else b"%s-%d " % (codec.encode(), index) * 9,
                    "key": None if index % 5 == 1 else b"key-%d" % index,
                    "headers": [("codec", codec.encode()), ("none", None), ("codec", b"again")] if index % 3 else None,
                    "timestamp": 1_700_000_000_000 + index,
                }
                for index in range(300)
            ]
            kafka.produce(topic, records, codec=codec, partition=partition)
    return topic


@pytest.mark.basic
def test_all_that_a_plain_consumer_sees_is_read(table, kafka, mixed):
    expected = kafka.rows(mixed, 3)
    assert len(expected) == 3 * 5 * 300
    assert rows_of(table(subscribe=mixed, includeHeaders="true")) == expected


def test_columns_and_types_are_those_of_the_kafka_connector(table, mixed):
    assert table(subscribe=mixed, includeHeaders="true").schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in table(subscribe=mixed).columns


def test_only_the_asked_for_columns_are_read(table, kafka, mixed):
    expected = [(row[4], row[1]) for row in kafka.rows(mixed, 3)]
    by_schema = table(subscribe=mixed, schema="offset bigint, value binary")
    by_option = table(subscribe=mixed, columns="offset,value")
    assert by_schema.columns == by_option.columns == ["offset", "value"]
    for frame in (by_schema, by_option):
        found = [(row.offset, None if row.value is None else bytes(row.value)) for row in frame.collect()]
        assert Counter(found) == Counter(expected)


def test_a_schema_that_the_source_cannot_give_is_refused(table, mixed):
    assert "column 'colour'" in failure(lambda: table(subscribe=mixed, schema="colour string").count())
    assert "column 'offset' is bigint, not string" in failure(
        lambda: table(subscribe=mixed, schema="offset string").count()
    )


def test_assigned_partitions_are_read_and_no_others(table, mixed):
    frame = table(assign=json.dumps({mixed: [0, 2]}))
    assert {row.partition for row in frame.select("partition").distinct().collect()} == {0, 2}


def test_a_pattern_is_looked_for_in_names_as_the_kafka_connector_does(table, kafka):
    pat = kafka.topic()
    for name in (f"{pat}-a", f"{pat}-b", f"{pat}-abc", f"other-{pat}-a"):
        kafka.produce(kafka.topic(name=name), [name.encode()])
    frame = table(subscribePattern=f"^{pat}-[a-c]$").union(table(subscribePattern=f"r-{pat}"))
    assert {row.topic for row in frame.collect()} == {f"{pat}-a", f"{pat}-b", f"other-{pat}-a"}


def test_offsets_bound_a_read_per_partition(table, mixed):
    frame = table(
        subscribe=mixed,
        startingOffsets=json.dumps({mixed: {"0": 10, "1": -2, "2": 1500}}),
        endingOffsets=json.dumps({mixed: {"0": 20, "1": 5, "2": -1}}),
    )
    found = sorted((row.partition, row.offset) for row in frame.collect())
    assert found == [(0, offset) for offset in range(10, 20)] + [(1, offset) for offset in range(5)]


def test_times_bound_a_read(table, kafka):
    topic = kafka.topic()
    kafka.produce(topic, [{"value": b"%d" % index, "timestamp": 1000 + index} for index in range(100)])
    for bounds in (
        {"startingTimestamp": "1040", "endingTimestamp": "1060"},
        {
            "startingOffsetsByTimestamp": json.dumps({topic: {"0": 1040}}),
            "endingOffsetsByTimestamp": json.dumps({topic: {"0": 1060}}),
        },
    ):
        frame = table(subscribe=topic, startingOffsets="earliest", **bounds)
        assert sorted(row.offset for row in frame.collect()) == list(range(40, 60))
    assert "has no record at or after 5000" in failure(lambda: table(subscribe=topic, startingTimestamp="5000").count())
    late = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    assert table(subscribe=topic, **late).count() == 0
    assert table(subscribe=topic, endingTimestamp="5000").count() == 100


def test_large_partitions_are_split_into_tasks(table, mixed):
    frame = table(subscribe=mixed, minPartitions="6")
    assert frame.rdd.getNumPartitions() == 6
    assert frame.distinct().count() == 4500
    frame = table(subscribe=mixed, maxRecordsPerPartition="400")
    assert frame.rdd.getNumPartitions() == 3 * 4
    assert frame.count() == 4500


def test_an_empty_topic_is_an_empty_table(table, kafka):
    assert table(subscribe=kafka.topic(2)).count() == 0


def test_append_time_is_told(table, kafka):
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    kafka.produce(topic, [{"value": b"v", "timestamp": 5}])
    ((*_, timestamp_ms, kind, _),) = rows_of(table(subscribe=topic, includeHeaders="true"))
    assert kind == 1
    assert timestamp_ms >= before_ms


def test_large_records_are_read(table, kafka):
    topic = kafka.topic(max_message_bytes="10000000")
    kafka.produce(topic, [b"a" * 3_000_000, b"b"], **{"message.max.bytes": 10_000_000})
    assert [len(row.value) for row in table(subscribe=topic).sort("offset").collect()] == [3_000_000, 1]


def test_deleted_records_are_an_error_or_skipped(table, kafka):
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % index for index in range(10)])
    kafka.trim(topic, 0, 4)
    start = json.dumps({topic: {"0": 1}})
    assert "offset 1 of" in failure(lambda: table(subscribe=topic, startingOffsets=start).count())
    frame = table(subscribe=topic, startingOffsets=start, failOnDataLoss="false")
    assert sorted(row.offset for row in frame.collect()) == [4, 5, 6, 7, 8, 9]
    assert table(subscribe=topic).count() == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"subscrib": "t"}, "option 'subscrib' is not known; did you mean 'subscribe'?"),
        ({"subscribe": "t", "kafka.security.protocol": "SSL"}, "this source speaks PLAINTEXT only"),
        ({"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}, "cannot reach a broker at 127.0.0.1:1"),
    ],
)
def test_faults_are_told_in_a_sentence(table, options, words):
    assert words in failure(lambda: table(**options).count())


def test_a_topic_is_never_made_by_asking_for_it(table, kafka):
    failure(lambda: table(subscribe="not-made").count())
    assert "not-made" not in kafka.admin.list_topics(timeout=60).topics


def test_sql_can_use_the_source(spark, kafka, mixed):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW mixed USING headrace "
        f"OPTIONS ('kafka.bootstrap.servers' '{kafka.bootstrap}', subscribe '{mixed}')"
    )
    assert spark.sql("SELECT count(*) AS n, max(offset) AS last FROM mixed").first() == (4500, 1499)


# filters that are pushed down


@pytest.fixture
def pushed(spark, table):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield lambda **options: table(pushdown="true", **options)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.fixture(scope="module")
def hours(kafka):
    """Two partitions, one record per second from 1970-01-01T00:00:01 on, in small batches."""
    topic = kafka.topic(2)
    for partition in range(2):
        for start in range(1, 100, 9):
            records = [{"value": b"v", "timestamp": second * 1000} for second in range(start, start + 9)]
            kafka.produce(topic, records, partition=partition)
    return topic


def moment(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("timestamp'%Y-%m-%d %H:%M:%S'")


@pytest.mark.parametrize(
    ("condition", "rows", "tasks"),
    [
        ("partition = 1", 99, 1),
        ("partition in (1, 5)", 99, 1),
        ("partition > 0 and offset < 10", 10, 1),
        ("offset >= 90", 18, 2),
        ("offset = 7", 2, 2),
        (f"timestamp >= {moment(95)}", 10, 2),
        (f"timestamp > {moment(95)} and partition = 0", 4, 1),
        (f"timestamp >= {moment(500)}", 0, 1),
        (f"timestamp < {moment(5)}", 8, 2),
        ("topic = 'nothing'", 0, 1),
    ],
)
def test_filters_prune_what_is_read_and_change_no_result(pushed, table, hours, condition, rows, tasks):
    frame = pushed(subscribe=hours).where(condition)
    assert frame.rdd.getNumPartitions() == tasks
    assert frame.count() == table(subscribe=hours).where(condition).count() == rows


def test_an_hour_is_read_as_an_hour_when_disorder_is_bounded(hours, kafka):
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    from headrace.spark.offsets import BatchOffsets
    from headrace.spark.options import parse
    from headrace.spark.pushdown import Bounds, prune

    bounds = Bounds()
    bounds.narrow(GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(40, UTC)))
    bounds.narrow(LessThan(("timestamp",), datetime.fromtimestamp(60, UTC)))
    base = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": hours, "pushdown": "true"}
    for more, expected in (({}, (39, 99)), ({"timestampDisorder": "5s"}, (39, 64))):
        offsets = BatchOffsets(parse({**base, **more}, "batch"))
        assert {each[2:] for each in prune(offsets.ranges(), bounds, offsets)} == {expected}
