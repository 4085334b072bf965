from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.spark.options import EARLIEST, LATEST, OPTIONS, parse

GOOD = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def refused(options, mode="batch"):
    with pytest.raises(ConfigError) as caught:
        parse(options, mode)
    return str(caught.value)


def test_names_are_case_insensitive():
    found = parse({"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": " a, b ,a", "failondataloss": "FALSE"}, "batch")
    assert (found.bootstrap, found.subscription.topics, found.fail_on_data_loss) == ("h:1", ("a", "b"), False)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("subscrib", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.max.poll.record", "kafka.max.poll.records"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_known_one(wrong, meant):
    message = refused({**GOOD, wrong: "1"})
    assert repr(wrong) in message
    assert f"did you mean {meant!r}?" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "t"}, "'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": "h:1"}, "one of the options 'subscribe', 'subscribePattern' and 'assign'"),
        ({**GOOD, "assign": '{"t":[0]}'}, "'subscribe' and 'assign' contradict"),
        ({**GOOD, "startingOffsets": "latest"}, "'startingOffsets' cannot be latest in a batch"),
        ({**GOOD, "startingOffsets": '{"orders":{"0":-1}}'}, "cannot be latest (-1) in a batch"),
        ({**GOOD, "endingOffsets": "earliest"}, "'endingOffsets' cannot be earliest"),
        ({**GOOD, "endingOffsets": '{"orders":{"0":-2}}'}, "'endingOffsets' cannot be earliest"),
        (
            {**GOOD, "startingTimestamp": "9", "endingTimestamp": "8"},
            "options 'startingTimestamp' (9) and 'endingTimestamp' (8) contradict each other",
        ),
        (
            {**GOOD, "startingOffsets": '{"orders":{"0":1,"1":7}}', "endingOffsets": '{"orders":{"0":-1,"1":6}}'},
            "options 'startingOffsets' (7) and 'endingOffsets' (6) of orders-1 contradict each other",
        ),
        ({**GOOD, "startingOffsets": "first"}, '\'startingOffsets\' must be "earliest", "latest" or JSON'),
        ({**GOOD, "startingOffsets": '{"orders":{"0":-3}}'}, "has offset -3"),
        ({**GOOD, "maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' has no meaning in a batch read"),
        ({**GOOD, "minPartitions": "0"}, "'minPartitions' must be at least 1, but it is '0'"),
        ({**GOOD, "failOnDataLoss": "no"}, "'failOnDataLoss' must be true or false, but it is 'no'"),
        ({**GOOD, "columns": "value,nothing"}, "has no column 'nothing'"),
        ({**GOOD, "columns": "value", "includeHeaders": "true"}, "'includeHeaders' and 'columns' contradict"),
        ({**GOOD, "timestampDisorder": "1m"}, "'timestampDisorder' needs 'pushdown'"),
        ({**GOOD, "kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({**GOOD, "kafka.enable.auto.commit": "true"}, "use commitOffsets"),
        ({**GOOD, "KAFKA.Key.Deserializer": "x"}, "'KAFKA.Key.Deserializer' is not supported: keys are binary"),
        ({**GOOD, "kafka.value.deserializer": "x"}, "values are binary"),
        ({**GOOD, "kafka.interceptor.classes": "x"}, "there are no interceptors"),
        ({**GOOD, "kafka.security.protocol": "SASL_SSL"}, "speaks PLAINTEXT only"),
        ({**GOOD, "kafka.sasl.mechanism": "PLAIN"}, "'kafka.sasl.mechanism' is not supported yet"),
        ({**GOOD, "path": "x"}, "has no path"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, "is not a regular expression"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t":0}'}, "'assign' must be JSON"),
    ],
)
def test_a_bad_option_is_one_sentence(options, words):
    message = refused(options)
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' has no meaning in a streaming read"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "'minOffsetsPerTrigger' (9) is above"),
        ({"maxTriggerDelay": "5m"}, "'maxTriggerDelay' needs 'minOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "must be a duration"),
    ],
)
def test_streams_have_rules_of_their_own(options, words):
    assert words in refused({**GOOD, **options}, "stream")


def test_streams_start_at_the_end_and_batches_at_the_beginning():
    assert parse(GOOD, "stream").start.offset == LATEST
    assert parse(GOOD, "batch").start.offset == EARLIEST
    assert parse(GOOD, "batch").end.offset == LATEST


def test_one_time_for_all_beats_times_beats_offsets():
    offsets = {"startingOffsets": '{"orders":{"0":5}}'}
    times = {"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}
    assert parse({**GOOD, **offsets}, "stream").start.offsets == {("orders", 0): 5}
    assert parse({**GOOD, **offsets, **times}, "stream").start.times_ms == {("orders", 0): 1000}
    assert parse({**GOOD, **offsets, **times, "startingTimestamp": "7"}, "stream").start.time_ms == 7


def test_committed_records_are_read_unless_told_otherwise():
    assert parse(GOOD, "stream").read_committed
    assert not parse({**GOOD, "kafka.isolation.level": "read_uncommitted"}, "stream").read_committed


def test_the_group_is_the_users_or_stays_the_same_for_the_same_query():
    first, again = parse(GOOD, "stream").group, parse(dict(GOOD), "stream").group
    other = parse({**GOOD, "subscribe": "others"}, "stream").group
    assert first == again != other
    assert parse({**GOOD, "groupIdPrefix": "mine"}, "stream").group.startswith("mine-")
    assert parse({**GOOD, "groupIdPrefix": "mine", "kafka.group.id": "g"}, "stream").group == "g"


def test_what_only_a_java_consumer_needs_is_accepted():
    assert parse({**GOOD, "kafka.max.poll.records": "5", "kafka.client.rack": "a"}, "batch").extra


def test_every_option_says_what_it_means():
    assert all(option.meaning for option in OPTIONS)
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


def test_every_option_is_in_the_guide():
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [option.name for option in OPTIONS if f"`{option.name}`" not in guide] == []
