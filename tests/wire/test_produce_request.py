"""The hand-written reader of Produce requests against kio, and against bytes that lie."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.wire.messages import decode_request, encode_request
from headrace.wire.produce_request import read_produce_request

VERSIONS = range(3, 14)
TOPICS = st.lists(
    st.tuples(
        st.text(max_size=200),
        st.uuids(),
        st.lists(st.tuples(st.integers(-5, 2**31 - 1), st.none() | st.binary(max_size=300)), max_size=3),
    ),
    max_size=3,
)


def encode(version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: list) -> bytes:
    data = [
        {"name": name, "topic_id": topic_id, "partition_data": [{"index": i, "records": r} for i, r in batches]}
        for name, topic_id, batches in topics
    ]
    fields = {"transactional_id": transactional_id, "acks": acks, "timeout": timeout_ms, "topic_data": data}
    return encode_request(0, version, fields)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.none() | st.text(max_size=200), st.integers(-1, 1), st.integers(0, 2**31 - 1), TOPICS, st.binary(max_size=9))
def test_it_reads_what_kio_reads(version, transactional_id, acks, timeout_ms, topics, prefix):
    data = prefix + encode(version, transactional_id, acks, timeout_ms, topics)
    mine = read_produce_request(version, data, len(prefix))
    theirs = decode_request(0, version, data, len(prefix))
    assert mine.transactional_id == theirs.transactional_id == transactional_id
    assert (mine.acks, mine.timeout_ms) == (theirs.acks, theirs.timeout // timedelta(milliseconds=1))
    assert mine.topics == [
        (
            "" if version >= 13 else topic.name,
            topic.topic_id if version >= 13 else None,
            [(part.index, part.records) for part in topic.partition_data],
        )
        for topic in theirs.topic_data
    ]


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
def test_damaged_bytes_are_a_protocol_error_or_a_request(version, data):
    good = encode(version, "t", -1, 1000, [("topic", UUID(int=7), [(0, b"x" * 40), (1, None)])])
    position = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[position] = data.draw(st.integers(0, 255))
    for raw in (bytes(bad), good[:position], data.draw(st.binary(max_size=100))):
        try:
            read_produce_request(version, raw, 0)
        except ProtocolError:
            pass


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_noticed(version):
    good = encode(version, None, -1, 1000, [("topic", UUID(int=7), [(0, b"x" * 40)])])
    for end in range(len(good)):
        with pytest.raises(ProtocolError):
            read_produce_request(version, good[:end], 0)


def test_an_absurd_count_allocates_nothing():
    with pytest.raises(ProtocolError):
        read_produce_request(3, b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x00" + b"\x7f\xff\xff\xff", 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_partitions_of_all_topics_together_are_bounded(version):
    """Each costs something, also if it is refused: many topics must not multiply what one may have."""
    half = [(index, None) for index in range(5000)]
    two = [("one", UUID(int=1), half), ("two", UUID(int=2), half)]
    read_produce_request(version, encode(version, None, 1, 1000, two), 0)
    with pytest.raises(ProtocolError):
        read_produce_request(version, encode(version, None, 1, 1000, [*two, ("three", UUID(int=3), half[:1])]), 0)
