"""Options and columns of the sink: what is understood, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from headrace.core.errors import ConfigError
from headrace.group.settings import GroupSettings
from headrace.spark.sink_options import OPTIONS, parse
from headrace.spark.sink_producer import configuration, make_producer
from headrace.spark.sink_rows import Columns, Digest, records

GIVEN = {"kafka.bootstrap.servers": "b:1", "topic": "t"}


def test_defaults_are_exactly_once_and_staged_under_the_checkpoint() -> None:
    options = parse({**GIVEN, "checkpointlocation": "/data/chk/", "queryname": "q"}, "stream")
    assert (options.delivery, options.prefix) == ("exactly_once", "headrace-spark-")
    assert options.staging == "/data/chk/headrace-staging"


def test_names_are_case_insensitive() -> None:
    options = parse({"KAFKA.Bootstrap.Servers": "b:1", "TOPIC": "t", "Delivery": "AT_LEAST_ONCE"}, "batch")
    assert options.delivery == "at_least_once"


def test_names_of_java_become_those_of_librdkafka() -> None:
    options = parse(
        {
            **GIVEN,
            "kafka.max.request.size": "2000000",
            "kafka.buffer.memory": "33554432",
            "kafka.max.block.ms": "1",
            "kafka.compression.type": "zstd",
            "kafka.linger.ms": "50",
        },
        "stream",
    )
    assert options.client == {
        "message.max.bytes": "2000000",
        "queue.buffering.max.kbytes": "32768",
        "compression.type": "zstd",
        "linger.ms": "50",
    }
    make_producer(configuration(options, "id"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kafka.bootstrap.servers": " "}, "'kafka.bootstrap.servers' must not be empty"),
        ({"delivery": "once"}, "option 'delivery' must be exactly_once or exactly_once_partitioned or at_least_once"),
        ({"delivry": "once"}, "option 'delivry' is not known; did you mean 'delivery'?"),
        ({"path": "t"}, "name a topic with the option 'topic'"),
        ({"startingOffsets": "latest"}, "option 'startingOffsets' has no meaning in a write"),
        ({"kafka.key.serializer": "x"}, "option 'kafka.key.serializer' is not supported"),
        ({"kafka.enable.idempotence": "false"}, "options 'kafka.enable.idempotence' .false. and 'delivery'"),
        ({"delivery": "at_least_once", "transactionalIdPrefix": "x"}, "'transactionalIdPrefix' and 'delivery'"),
        ({"delivery": "exactly_once_partitioned", "stagingLocation": "x"}, "option 'stagingLocation' has no meaning"),
        ({"txnAppId": "a", "txnVersion": "1"}, "option 'txnAppId' has no meaning in a streaming write"),
        ({"stageAboveBytes": "-1"}, "option 'stageAboveBytes' must be at least 0, but it is '-1'"),
        ({"kafka.max.request.size": "big"}, "option 'kafka.max.request.size' must be a whole number"),
    ],
)
def test_a_bad_option_is_named(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse({**GIVEN, **more}, "stream")


def test_an_application_needs_a_version_and_transactions() -> None:
    options = parse({**GIVEN, "txnAppId": "a", "txnVersion": "7"}, "batch")
    assert (options.app_id, options.version) == ("a", 7)
    with pytest.raises(ConfigError, match="'txnAppId' and 'txnVersion' need each other"):
        parse({**GIVEN, "txnVersion": "7"}, "batch")
    with pytest.raises(ConfigError, match="'txnAppId' and 'delivery' .at_least_once. contradict"):
        parse({**GIVEN, "txnAppId": "a", "txnVersion": "7", "delivery": "at_least_once"}, "batch")


def test_every_option_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text().partition("## Writing")[2]
    assert [option.name for option in OPTIONS if f"`{option.name}`" not in guide] == []


@pytest.mark.parametrize("prefix", ["", "mine-", "headrace-spark-mine-"])
def test_the_broker_never_forgets_a_marker_whatever_the_prefix(prefix: str) -> None:
    options = parse({**GIVEN, **({"transactionalIdPrefix": prefix} if prefix else {})}, "stream")
    assert options.marker_prefix.startswith(GroupSettings().keep_prefixes)
    assert options.marker_prefix.endswith(prefix)


def test_what_librdkafka_does_not_know_is_named_as_the_user_wrote_it() -> None:
    with pytest.raises(ConfigError, match="option 'kafka.no.such' is refused"):
        make_producer(configuration(parse({**GIVEN, "kafka.no.such": "1"}, "batch")))
    with pytest.raises(ConfigError, match="option 'kafka.linger.ms' is refused"):
        make_producer(configuration(parse({**GIVEN, "kafka.linger.ms": "soon"}, "batch")))


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        ({"key": t.StringType()}, "t", "a column 'value' is needed; there are key"),
        ({"value": t.LongType()}, "t", "column 'value' must be binary or string, not bigint"),
        ({"value": t.StringType()}, "", "Give the option 'topic' or a column 'topic'"),
        ({"value": t.StringType(), "partition": t.LongType()}, "t", "column 'partition' must be int, not bigint"),
        ({"value": t.StringType(), "Value": t.StringType()}, "t", "two columns 'value'"),
        ({"value": t.StringType(), "headers": t.StringType()}, "t", "column 'headers' must be array"),
    ],
)
def test_columns_that_cannot_be_written_are_named(columns: dict[str, t.DataType], topic: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Columns.of(schema(**columns), topic)


def test_the_option_topic_beats_the_column_and_other_columns_are_left_out() -> None:
    kind = schema(offset=t.LongType(), Topic=t.StringType(), VALUE=t.StringType(), key=t.BinaryType())
    rows = pa.record_batch([[1, 2], ["a", None], ["x", None], [b"k", None]], names=["offset", "Topic", "VALUE", "key"])
    there = Columns.of(kind, "t").narrow(rows)
    assert list(records(there, "t")) == [("t", -1, b"k", b"x", None), ("t", -1, None, None, None)]
    with pytest.raises(ConfigError, match="null topic"):
        list(records(Columns.of(kind, "").narrow(rows), ""))


def test_a_digest_sees_every_difference_but_order() -> None:
    first, second = ("t", -1, b"k", b"v", None), ("t", -1, b"l", b"w", None)

    def digest(*rows: tuple) -> str:
        found = Digest()
        for row in rows:
            found.add(row)
        return str(found)

    assert digest(first, second) == digest(second, first)
    others = [
        digest(first),
        digest(first, first),
        digest(first, ("u", -1, b"l", b"w", None)),
        digest(first, ("t", 0, b"l", b"w", None)),
        digest(first, ("t", -1, None, b"w", None)),
        digest(first, ("t", -1, b"l", None, None)),
        digest(first, ("t", -1, b"l", b"", None)),
        digest(first, ("t", -1, b"l", b"w", [("h", b"")])),
        digest(("t", -1, b"l", b"v", None), ("t", -1, b"k", b"w", None)),
    ]
    assert len({digest(first, second), *others}) == 1 + len(others)
