"""Streaming reads: progress, restarts, limits, partitions that come and records that go."""

from __future__ import annotations

import json
import time

import pytest

from headrace.spark import cluster
from headrace.spark.offsets import LostRecordsError, StreamOffsets
from headrace.spark.options import parse
from headrace.spark.source import partitions_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # the first query of a session is slow on a busy machine

WAIT_SECONDS = 120.0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A query goes on without a group that does not answer in five seconds; these tests want its answer."""
    monkeypatch.setattr(cluster, "GROUP_SECONDS", 60.0)


def eventually(condition, what):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def values(rows):
    return sorted(int(bytes(row[3])) for row in rows)


def numbers(start, stop):
    return [b"%d" % index for index in range(start, stop)]


def offset_log(checkpoint, batch_id):
    return json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])


def latest_offset(query):
    progress = query.lastProgress
    found = progress and progress["sources"][0]["latestOffset"]
    return json.loads(found) if isinstance(found, str) else found


def test_available_now_reads_what_is_there_and_goes_on_after_a_restart(stream, kafka):
    topic = kafka.topic(2)
    for partition in range(2):
        kafka.produce(topic, numbers(partition * 100, partition * 100 + 100), partition=partition)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "80", "kafka.group.id": "an"}
    assert values(stream.drain(**options)) == list(range(200))
    assert offset_log(stream.checkpoint, 0) == {topic: {"0": 40, "1": 40}}
    assert offset_log(stream.checkpoint, 2) == {topic: {"0": 100, "1": 100}}
    assert kafka.committed("an", topic, 2) == [100, 100]
    kafka.produce(topic, numbers(200, 250))
    assert values(stream.drain(**options)) == list(range(200, 250))
    assert kafka.committed("an", topic, 2) == [150, 100]


def test_a_stream_that_starts_at_the_end_sees_only_what_comes_and_reports_its_lag(stream, kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 10))
    rows = []
    query = stream.start(rows, subscribe=topic, **{"kafka.group.id": "tail"})
    try:
        eventually(lambda: kafka.committed("tail", topic) == [10], "the start to be pinned")
        kafka.produce(topic, numbers(10, 20))
        eventually(lambda: len(rows) == 10, "new records")
        eventually(lambda: latest_offset(query) == {topic: {"0": 20}}, "progress")  # may come in two batches
        eventually(lambda: kafka.committed("tail", topic) == [20], "progress in the group")
        assert values(rows) == list(range(10, 20))
    finally:
        query.stop()


def test_partitions_that_appear_are_read_from_their_beginning(stream, kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 10))
    rows = []
    query = stream.start(rows, subscribe=topic, startingOffsets="earliest")
    try:
        eventually(lambda: len(rows) == 10, "the first partition")
        kafka.grow(topic, 3)
        for partition in (1, 2):
            kafka.produce(topic, numbers(partition * 10, partition * 10 + 10), partition=partition)
        eventually(lambda: len(rows) >= 30, "the new partitions")
        assert values(rows) == list(range(30))
    finally:
        query.stop()


def test_topics_that_appear_match_the_pattern_of_a_running_query(stream, kafka):
    live = kafka.topic()
    kafka.produce(kafka.topic(name=f"{live}-0"), numbers(0, 5))
    rows = []
    query = stream.start(rows, subscribePattern=f"^{live}-.*", startingOffsets="earliest")
    try:
        eventually(lambda: len(rows) == 5, "the first topic")
        kafka.produce(kafka.topic(name=f"{live}-1"), numbers(5, 10))
        eventually(lambda: len(rows) >= 10, "the second topic")
        assert values(rows) == list(range(10))
    finally:
        query.stop()


def test_records_deleted_between_two_runs_stop_the_query(stream, kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 10))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert values(stream.drain(**options)) == list(range(10))
    kafka.produce(topic, numbers(10, 20))
    kafka.trim(topic, 0, 15)
    with pytest.raises(Exception, match="offsets 10 to 14 are gone"):
        stream.drain(**options)
    assert values(stream.drain(**options, failOnDataLoss="false")) == list(range(15, 20))


# the driver's side without Spark


def stream_offsets(kafka, clock=lambda: 0.0, **options):
    given = {"kafka.bootstrap.servers": kafka.bootstrap, **options}
    return StreamOffsets(parse(given, "stream"), monotonic=clock)


def test_the_start_is_pinned_until_the_first_batch_is_on_record(kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 5))
    options = {"subscribe": topic, "kafka.group.id": f"pin-{topic}"}
    first = stream_offsets(kafka, **options)
    assert first.initial() == {(topic, 0): 5}
    kafka.produce(topic, numbers(5, 8))
    # It crashed before its first batch was on record: the next one starts where it did.
    again = stream_offsets(kafka, **options)
    assert again.initial() == {(topic, 0): 5}
    assert again.next(again.initial()) == {(topic, 0): 8}
    kafka.grow(topic, 2)
    kafka.produce(topic, numbers(0, 3), partition=1)
    grown = stream_offsets(kafka, **options)
    assert grown.initial() == {(topic, 0): 5, (topic, 1): 0}, "nobody has read the new partition"
    grown.next({(topic, 0): 8, (topic, 1): 3})
    assert kafka.committed(f"pin-{topic}", topic) == [8]
    kafka.produce(topic, numbers(8, 9))
    # A new query of the same group is a new query.
    assert stream_offsets(kafka, **options).initial() == {(topic, 0): 9, (topic, 1): 3}


def test_a_pin_does_not_hold_for_other_starting_options(kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 5))
    options = {"subscribe": topic, "kafka.group.id": f"other-{topic}"}
    assert stream_offsets(kafka, **options).initial() == {(topic, 0): 5}
    assert stream_offsets(kafka, startingOffsets="earliest", **options).initial() == {(topic, 0): 0}


def test_nothing_is_committed_if_told_so(kafka):
    topic = kafka.topic()
    offsets = stream_offsets(kafka, subscribe=topic, commitOffsets="false", **{"kafka.group.id": f"quiet-{topic}"})
    offsets.initial()
    offsets.next({(topic, 0): 0})
    assert kafka.committed(f"quiet-{topic}", topic) == [-1001]


def test_few_records_wait_for_more_but_not_for_ever(kafka):
    topic = kafka.topic()
    now = [0.0]
    offsets = stream_offsets(
        kafka,
        lambda: now[0],
        subscribe=topic,
        startingOffsets="earliest",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="60s",
    )
    start = offsets.initial()
    assert offsets.next(start, least=10) == start  # the first trigger is always due, and finds nothing
    kafka.produce(topic, numbers(0, 4))
    assert offsets.next(start, least=10) == start
    now[0] = 61.0
    assert offsets.next(start, least=10) == {(topic, 0): 4}
    kafka.produce(topic, numbers(4, 20))
    assert offsets.next({(topic, 0): 4}, least=10) == {(topic, 0): 20}


def test_a_topic_made_anew_is_noticed(kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 5))
    strict = stream_offsets(kafka, subscribe=topic, startingOffsets="earliest", commitOffsets="false")
    lenient = stream_offsets(
        kafka, subscribe=topic, startingOffsets="earliest", commitOffsets="false", failOnDataLoss="false"
    )
    end = strict.next(strict.initial())
    assert lenient.next(lenient.initial()) == end
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.produce(topic, numbers(0, 2))
    with pytest.raises(LostRecordsError, match="deleted and made anew"):
        strict.next(end)
    after = lenient.next(end)
    assert after == {(topic, 0): 2}
    assert [each[2:] for each in lenient.ranges(end, after)] == [(0, 2)]


def test_a_deleted_topic_stops_the_query(kafka):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 5))
    offsets = stream_offsets(kafka, subscribe=topic, startingOffsets="earliest", commitOffsets="false")
    end = offsets.next(offsets.initial())
    kafka.delete(topic)
    with pytest.raises(LostRecordsError, match=f"topic {topic} does not exist"):
        offsets.next(end)


def test_a_topic_that_is_deleted_while_its_end_is_looked_up_is_lost_too(kafka):
    """With cached partitions, that is whenever it is deleted."""
    gone, stays = kafka.topic(), kafka.topic()
    given = {"subscribe": f"{gone},{stays}", "startingOffsets": "earliest", "commitOffsets": "false"}
    given["partition.metadata.cache.ttl.ms"] = "600000"
    for topic in (gone, stays):
        kafka.produce(topic, numbers(0, 5))
    strict, lenient = stream_offsets(kafka, **given), stream_offsets(kafka, failOnDataLoss="false", **given)
    end = strict.next(strict.initial())
    assert lenient.next(lenient.initial()) == end
    kafka.delete(gone)
    kafka.produce(stays, numbers(5, 8))
    with pytest.raises(LostRecordsError, match=f"topic {gone} does not exist"):
        strict.next(end)
    assert lenient.next(end) == {(gone, 0): 5, (stays, 0): 8}


def test_a_deleted_topic_does_not_hold_up_the_others_if_losses_are_forgiven(kafka):
    gone, stays = kafka.topic(), kafka.topic()
    offsets = stream_offsets(
        kafka,
        subscribe=f"{gone},{stays}",
        startingOffsets="earliest",
        commitOffsets="false",
        failOnDataLoss="false",
    )
    for topic in (gone, stays):
        kafka.produce(topic, numbers(0, 5))
    end = offsets.next(offsets.initial())
    kafka.delete(gone)
    kafka.produce(stays, numbers(5, 8))
    after = offsets.next(end)
    assert after == {(gone, 0): 5, (stays, 0): 8}
    assert offsets.plan(offsets.ranges(end, after)) == [(stays, 0, 5, 8)]
    kafka.topic(name=gone)
    kafka.produce(gone, numbers(0, 2))
    assert offsets.next(after) == {(gone, 0): 2, (stays, 0): 8}
    assert offsets.ranges(after, {(gone, 0): 2, (stays, 0): 8})[0] == (gone, 0, 0, 2), "it is another topic now"


def test_a_log_that_seems_shorter_for_a_moment_is_looked_at_again(kafka, monkeypatch):
    topic = kafka.topic()
    kafka.produce(topic, numbers(0, 5))
    offsets = stream_offsets(kafka, subscribe=topic, startingOffsets="earliest", commitOffsets="false")
    real, asked = offsets.at, []

    def at(places, time_ms):
        asked.append(time_ms)
        return dict.fromkeys(places, 3) if len(asked) < 3 else real(places, time_ms)

    monkeypatch.setattr(offsets, "at", at)
    assert offsets.next({(topic, 0): 5}) == {(topic, 0): 5}
    monkeypatch.setattr(offsets, "at", lambda places, time_ms: dict.fromkeys(places, 3))
    with pytest.raises(LostRecordsError, match="was read up to 5 but now ends at 3"):
        offsets.next({(topic, 0): 5})


def test_a_batch_that_is_repeated_does_not_leave_out_a_partition_that_is_gone(kafka):
    there = kafka.topic()
    offsets = stream_offsets(kafka, subscribePattern=f"^{there}$", commitOffsets="false")
    for start in ({("gone", 0): 1}, {}):
        ranges = offsets.ranges(start, {("gone", 0): 4})
        with pytest.raises(LostRecordsError, match="gone-0 does not exist any more"):
            partitions_of(offsets, ranges)
