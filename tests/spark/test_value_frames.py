"""Values as columns in Spark: good, bad, and the way back through a topic."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.spark.values import dead_letters, decode, encode, infer_schema

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SOURCE = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
NOON = datetime.datetime(2025, 1, 31, 12)


def frame(spark: Any, *values: bytes | None) -> Any:
    rows = [(b"k", value, "orders", 3, 10 + index, NOON, 0) for index, value in enumerate(values)]
    return spark.createDataFrame(rows, SOURCE).coalesce(1)


def test_what_fits_is_typed_and_what_does_not_is_kept_with_its_reason(spark: Any) -> None:
    given = frame(spark, b'{"id":1,"offset":5}', b"broken", b'{"id":"x"}', None)
    good, bad = decode(given, "json", "id bigint, offset int", on_error="dlq")
    assert good.columns == ["id", "offset", "key", "topic", "partition", "record_offset", "timestamp"]
    assert [tuple(row) for row in good.collect()] == [(1, 5, b"k", "orders", 3, 10, NOON)]
    found = [(row.topic, row.partition, row.offset, row.key, row.value, row.error) for row in bad.collect()]
    assert [row[:5] for row in found] == [
        ("orders", 3, 11, b"k", b"broken"),
        ("orders", 3, 12, b"k", b'{"id":"x"}'),
        ("orders", 3, 13, b"k", None),
    ]
    assert found[0][5].startswith("not JSON")
    assert [row[5] for row in found[1:]] == ["id must be a whole number of 64 bits, not text", "the value is null"]


def test_fail_names_the_record_and_skip_goes_on(spark: Any) -> None:
    given = frame(spark, b'{"id":1}', b"broken", None)
    with pytest.raises(Exception, match=r"record orders-3-11 does not fit: not JSON"):
        decode(given, "json", "id bigint").good.collect()
    good, bad = decode(given, "json", "id bigint", on_error="skip", nulls="keep", keep=())
    assert [tuple(row) for row in good.collect()] == [(1,), (None,)]
    assert bad.count() == 1
    assert decode(given, "json", "id bigint", on_error="skip", nulls="skip").good.count() == 1


def test_formats_that_spark_reads_itself(spark: Any) -> None:
    given = frame(spark, "ä".encode(), b"\xff", b'{"a":[1]}')
    good, bad = decode(given, "text", on_error="dlq", keep=())
    assert [row.value for row in good.collect()] == ["ä", '{"a":[1]}']
    assert [(row.offset, row.value, row.error) for row in bad.collect()] == [(11, b"\xff", "not UTF-8")]
    good, bad = decode(given, "variant", on_error="dlq", keep=())
    assert [row.j for row in good.selectExpr("to_json(value) j").collect()] == ['{"a":[1]}']
    assert {row.error for row in bad.collect()} == {"not JSON"}
    assert decode(given, "binary", keep=()).good.count() == 3


def test_a_schema_is_inferred_from_a_sample(spark: Any) -> None:
    given = frame(spark, b'{"id":1,"tags":["x"]}', b'{"price":1.5,"at":{"x":true}}', b"broken", b"[1]", b"5")
    assert infer_schema(given).simpleString() == (
        "struct<id:bigint,tags:array<string>,price:double,at:struct<x:boolean>>"
    )
    with pytest.raises(ConfigError, match="no schema can be inferred"):
        infer_schema(frame(spark, b"x", None))


def test_rows_are_encoded_beside_what_the_sink_knows(spark: Any) -> None:
    table = spark.createDataFrame([("k", 1, "x"), ("l", None, "y")], "key string, id bigint, name string").coalesce(1)
    assert [tuple(row) for row in encode(table).collect()] == [("k", b'{"id":1,"name":"x"}'), ("l", b'{"name":"y"}')]
    good, _ = decode(encode(table, "avro"), "avro", _avro(table), keep=("key",))
    assert [tuple(row) for row in good.collect()] == [(1, "x", "k"), (None, "y", "l")]
    assert [row.value for row in encode(table, "text", columns=["name"]).collect()] == [b"x", b"y"]
    with pytest.raises(ConfigError, match="format text writes one column, not id, name"):
        encode(table, "text")


def _avro(table: Any) -> Any:
    from headrace.spark.values.avro_of_spark import avro_of

    return avro_of(table.select("id", "name").schema)


def test_dead_letters_go_to_a_topic_with_where_they_came_from(spark: Any, kafka: Any) -> None:
    topic = kafka.topic()
    _, bad = decode(frame(spark, b'{"id":1}', b"broken"), "json", "id bigint", on_error="dlq")
    writer = dead_letters(bad, topic).write.format("headrace").mode("append")
    writer.option("kafka.bootstrap.servers", kafka.bootstrap).save()
    [row] = kafka.rows(topic)
    assert row[:2] == (b"k", b"broken")
    headers = dict(row[7])
    assert headers.pop("headrace.error").startswith(b"not JSON")
    assert headers == {
        "headrace.topic": b"orders",
        "headrace.partition": b"3",
        "headrace.offset": b"11",
        "headrace.timestamp": b"2025-01-31 12:00:00",
    }


def test_bad_arguments_are_named(spark: Any) -> None:
    given = frame(spark, b"")
    for arguments, words in [
        ({"format": "xml"}, "format must be json or"),
        ({"on_error": "ignore"}, "on_error must be fail or"),
        ({"format": "json"}, "format json needs a schema"),
        ({"format": "protobuf", "schema": b""}, "needs the name of a message"),
        ({"schema": "id bigint", "column": "payload"}, "no column 'payload'"),
        ({"schema": "id bigint,,"}, "is not DDL"),
    ]:
        with pytest.raises(ConfigError, match=words):
            decode(given, **arguments)
