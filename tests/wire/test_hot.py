"""The hand-written answers are byte for byte what kio writes."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from importlib import import_module
from io import BytesIO
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from headrace.core.errors import ErrorCode
from headrace.wire.hot import Endpoint, FetchedPartition, ProducedPartition, fetch_answer, produce_answer
from headrace.wire.messages import decode_response, encode_answer
from headrace.wire.schema import message_class

int16s = st.sampled_from([code.value for code in ErrorCode])
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=200)
nullable_texts = st.none() | texts
names = st.text("abc.-_", min_size=1, max_size=249)
ids = st.none() | st.uuids().filter(lambda value: value.int != 0)
leaders = st.just((-1, -1)) | st.tuples(int32s, int32s)
seconds = st.integers(0, 2**31)
endpoints = st.lists(st.builds(Endpoint, int32s, texts, int32s, nullable_texts), max_size=2)

produced = st.builds(
    ProducedPartition,
    index=int32s,
    error_code=int16s,
    base_offset=int64s,
    append_time_ms=st.just(-1) | seconds.map(lambda value: value * 1000),
    start_offset=int64s,
    error_message=nullable_texts,
    record_errors=st.just(()) | st.lists(st.tuples(int32s, nullable_texts), max_size=3),
    current_leader=leaders,
)
fetched = st.builds(
    FetchedPartition,
    index=int32s,
    error_code=int16s,
    high_watermark=int64s,
    last_stable_offset=int64s,
    start_offset=int64s,
    records=st.binary(max_size=300),
    aborted=st.none() | st.lists(st.tuples(int64s, int64s), max_size=3),
    preferred_replica=int32s,
    diverging_epoch=st.just((-1, -1)) | st.tuples(int32s, int64s),
    current_leader=leaders,
)


def topics_of(partitions):
    return st.lists(st.tuples(names, ids, st.lists(partitions, max_size=3)), max_size=3)


def kio_bytes(api_key, version, instance):
    out = BytesIO()
    entity_writer(message_class(api_key, version, "response"))(out, instance)
    return out.getvalue()


def construct(struct, row):
    """A kio instance out of a plain row, without the fields that the version does not have."""
    return struct(**{field.name: row[field.name] for field in fields(struct)})


def produce_instance(version, topics, throttle_ms, nodes):
    module = import_module(f"kio.schema.produce.v{version}.response")

    def make(name, /, **row):
        return construct(getattr(module, name), row)

    def partition(item):
        row = item._asdict()
        row["error_code"] = ErrorCode(item.error_code)
        time = item.append_time_ms
        row["log_append_time"] = None if time == -1 else datetime.fromtimestamp(time / 1000, UTC)
        row["log_start_offset"] = item.start_offset
        if version >= 8:
            row["record_errors"] = tuple(
                make("BatchIndexAndErrorMessage", batch_index=place, batch_index_error_message=why)
                for place, why in item.record_errors
            )
        if version >= 10:
            node, epoch = item.current_leader
            row["current_leader"] = make("LeaderIdAndEpoch", leader_id=node, leader_epoch=epoch)
        return make("PartitionProduceResponse", **row)

    return make(
        "ProduceResponse",
        responses=tuple(
            make("TopicProduceResponse", name=name, topic_id=topic_id, partition_responses=tuple(map(partition, items)))
            for name, topic_id, items in topics
        ),
        throttle_time=timedelta(milliseconds=throttle_ms),
        node_endpoints=tuple(make("NodeEndpoint", **node._asdict()) for node in nodes) if version >= 10 else (),
    )


def fetch_instance(version, error, session_id, topics, throttle_ms, nodes):
    module = import_module(f"kio.schema.fetch.v{version}.response")

    def make(name, /, **row):
        return construct(getattr(module, name), row)

    def partition(item):
        row = item._asdict()
        row["partition_index"] = item.index
        row["error_code"] = ErrorCode(item.error_code)
        row["log_start_offset"] = item.start_offset
        row["preferred_read_replica"] = item.preferred_replica
        row["aborted_transactions"] = (
            None
            if item.aborted is None
            else tuple(
                make("AbortedTransaction", producer_id=producer, first_offset=first) for producer, first in item.aborted
            )
        )
        if version >= 12:
            epoch, end = item.diverging_epoch
            row["diverging_epoch"] = make("EpochEndOffset", epoch=epoch, end_offset=end)
            node, epoch = item.current_leader
            row["current_leader"] = make("LeaderIdAndEpoch", leader_id=node, leader_epoch=epoch)
            row["snapshot_id"] = make("SnapshotId", epoch=-1, end_offset=-1)
        return make("PartitionData", **row)

    return make(
        "FetchResponse",
        throttle_time=timedelta(milliseconds=throttle_ms),
        error_code=ErrorCode(error),
        session_id=session_id,
        responses=tuple(
            make("FetchableTopicResponse", topic=name, topic_id=topic_id, partitions=tuple(map(partition, items)))
            for name, topic_id, items in topics
        ),
        node_endpoints=tuple(make("NodeEndpoint", **node._asdict()) for node in nodes) if version >= 16 else (),
    )


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=40, deadline=None)
@given(topics=topics_of(produced), throttle_ms=int32s, nodes=endpoints)
def test_a_produce_answer_is_what_the_schema_says(version, topics, throttle_ms, nodes):
    expected = kio_bytes(0, version, produce_instance(version, topics, throttle_ms, nodes))
    assert b"".join(produce_answer(version, topics, throttle_ms, nodes)) == expected


@pytest.mark.parametrize("version", range(4, 19))
@settings(max_examples=40, deadline=None)
@given(error=int16s, session_id=int32s, topics=topics_of(fetched), throttle_ms=int32s, nodes=endpoints)
def test_a_fetch_answer_is_what_the_schema_says(version, error, session_id, topics, throttle_ms, nodes):
    expected = kio_bytes(1, version, fetch_instance(version, error, session_id, topics, throttle_ms, nodes))
    assert b"".join(fetch_answer(version, error, session_id, topics, throttle_ms, nodes)) == expected


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=20, deadline=None)
@given(name=names, topic_id=ids, index=int32s, offset=int64s, start=int64s)
def test_one_plain_produced_partition_takes_the_short_path_with_the_same_bytes(
    version, name, topic_id, index, offset, start
):
    topics = [(name, topic_id, [ProducedPartition(index, 0, offset, -1, start)])]
    expected = kio_bytes(0, version, produce_instance(version, topics, 0, ()))
    assert b"".join(produce_answer(version, topics)) == expected


@pytest.mark.parametrize("version", range(4, 19))
@settings(max_examples=20, deadline=None)
@given(
    name=names,
    topic_id=ids,
    records=st.binary(max_size=300),
    aborted=st.sampled_from([None, ()]),
    preferred=int32s,
    watermark=int64s,
)
def test_one_plain_fetched_partition_takes_the_short_path_with_the_same_bytes(
    version, name, topic_id, records, aborted, preferred, watermark
):
    partition = FetchedPartition(3, 0, watermark, 7, 2, records, aborted, preferred)
    topics = [(name, topic_id, [partition])]
    expected = kio_bytes(1, version, fetch_instance(version, 0, 5, topics, 0, ()))
    assert b"".join(fetch_answer(version, 0, 5, topics)) == expected


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_record_bytes_are_passed_on_and_not_copied(version):
    records = bytes(100_000)
    topic_id = UUID(int=1)
    parts = fetch_answer(version, 0, 0, [("t", topic_id, [FetchedPartition(0, 0, 9, 9, 0, records)])])
    assert any(part is records for part in parts)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_answer_agrees_with_the_general_encoder(version):
    topic_id = UUID(int=77)
    parts = produce_answer(version, [("orders", topic_id, [ProducedPartition(4, 0, 12, -1, 3)])])
    row = {"index": 4, "base_offset": 12, "log_start_offset": 3}
    answer = {"responses": [{"name": "orders", "topic_id": topic_id, "partition_responses": [row]}]}
    assert b"".join(parts) == encode_answer(0, version, answer)
    assert decode_response(0, version, b"".join(parts)).responses[0].partition_responses[0].base_offset == 12
