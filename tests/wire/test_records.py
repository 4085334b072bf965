"""Records: opened as they were built, whatever the codec; refused when they lie."""

import struct

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import batch, codecs, layout
from headrace.wire.batch import BatchHeader, Record

TIME = 1_700_000_000_000
blobs = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=50)), max_size=3).map(tuple)


def header_of(data):
    (header,) = batch.headers(data)
    return header


def opened(data, **options):
    return list(batch.records(data, header_of(data), **options))


def batch_of(payload, *, count=1, attributes=0, last_offset_delta=None):
    """A batch around arbitrary bytes."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    data = bytearray(
        layout.HEADER.pack(0, 49 + len(payload), -1, 2, 0, attributes, delta, TIME, TIME, -1, -1, -1, count) + payload
    )
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize("codec", range(5))
@settings(max_examples=40, deadline=None)
@given(
    items=st.lists(st.tuples(blobs, blobs), min_size=1, max_size=20),
    headers=header_lists,
    base_offset=st.integers(0, 1 << 62),
    time=st.integers(-1, 1 << 60),
)
def test_what_was_built_is_opened(codec, items, headers, base_offset, time):
    data = batch.build(items, timestamp_ms=time, base_offset=base_offset, codec=codec, headers=headers)
    (header,) = batch.check(data, max_batch_bytes=1 << 20, single=False)
    assert list(batch.records(data, header)) == [
        Record(base_offset + place, time, key, value, headers) for place, (key, value) in enumerate(items)
    ]


@pytest.mark.parametrize("codec", range(5))
def test_large_batches_come_back(codec):
    items = [(b"%d" % place, b"some text %d " % place * 50) for place in range(3000)]
    data = batch.build(items, timestamp_ms=TIME, codec=codec)
    assert [(record.key, record.value) for record in opened(data)] == items


def test_raw_snappy_is_opened_too():
    plain = batch.build([(b"k", b"v" * 1000)], timestamp_ms=TIME)
    payload = bytes(cramjam.snappy.compress_raw(plain[61:]))
    assert opened(batch_of(payload, attributes=layout.SNAPPY)) == opened(plain)


def test_linked_lz4_blocks_with_checksums_are_opened_too():
    plain = batch.build([(b"k", b"value " * 50_000)], timestamp_ms=TIME)
    payload = bytes(cramjam.lz4.compress(plain[61:]))
    assert opened(batch_of(payload, attributes=layout.LZ4)) == opened(plain)


def test_our_lz4_frames_have_independent_blocks_for_the_java_client():
    frame = codecs.compress(layout.LZ4, b"text " * 100_000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


def test_our_snappy_has_the_framing_of_the_java_client():
    assert codecs.compress(layout.SNAPPY, b"text").startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


@pytest.mark.parametrize("codec", [layout.NONE, layout.GZIP])
def test_kafka_python_and_we_read_each_others_batches(codec):
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    builder.append(0, TIME, b"key", b"value" * 100, [("h", b"x")])
    theirs = bytes(builder.build())
    assert opened(theirs) == [Record(0, TIME, b"key", b"value" * 100, (("h", b"x"),))]
    ours = batch.build([(b"key", b"value" * 100)], timestamp_ms=TIME, codec=codec, headers=(("h", b"x"),))
    (record,) = list(DefaultRecordBatch(bytearray(ours)))
    assert (record.key, record.value, record.headers) == (b"key", b"value" * 100, [("h", b"x")])


def test_append_time_is_every_records_time():
    data = batch_of(b"\x0c\x00\x08\x00\x01\x01\x00", attributes=layout.APPEND_TIME)
    assert opened(data)[0].timestamp == TIME
    assert opened(batch_of(b"\x0c\x00\x08\x00\x01\x01\x00"))[0].timestamp == TIME + 4


def test_a_batch_can_be_rebuilt_with_fewer_records():
    items = [(b"k%d" % place, b"v") for place in range(5)]
    options = {
        "producer_id": 5,
        "producer_epoch": 1,
        "base_sequence": 10,
        "codec": layout.LZ4,
        "headers": (("h", b"x"),),
    }
    data = batch.build(items, timestamp_ms=TIME, base_offset=100, leader_epoch=3, **options)
    header = header_of(data)
    kept = [record for record in batch.records(data, header) if record.offset in (101, 104)]
    smaller = batch.rebuild(header, kept)
    rebuilt = header_of(smaller)
    assert batch.crc_matches(smaller, rebuilt)
    assert list(batch.records(smaller, rebuilt)) == kept
    same = ("base_offset", "leader_epoch", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence")
    assert all(getattr(rebuilt, name) == getattr(header, name) for name in same)
    assert rebuilt.count == 2


def test_an_empty_batch_is_never_built():
    with pytest.raises(ValueError):
        batch.build([], timestamp_ms=TIME)


GOOD = b"\x14\x00\x00\x00\x02k\x02v\x02\x00\x01"  # one record: key k, value v, one header with an empty name


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0c",  # a length and nothing else
        b"\x01\x00\x00\x00\x01\x01\x00",  # a negative length
        b"\x0a\x00\x00\x00\x01\x01\x00",  # too short a length
        b"\x0e\x00\x00\x00\x01\x01\x00\x00",  # too long a length
        b"\x0c\x00\x00\x00\x01\x01\x00x",  # bytes left over
        b"\x0c\x00\x00\x02\x01\x01\x00",  # an offset outside the batch
        b"\x0c\x00\x00\x01\x01\x01\x00",  # a negative offset
        b"\x0c\x00\x00\x00\x03\x01\x00",  # a key of length -2
        b"\x0c\x00\x00\x00\x7e\x01\x00",  # a key beyond the end
        b"\x0c\x00\x00\x00\x01\x7e\x00",  # a value beyond the end
        b"\x0c\x00\x00\x00\x01\x01\x7e",  # more headers than bytes
        b"\x0c\x00\x00\x00\x01\x01\x01",  # a negative number of headers
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",  # a header without a name
        b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01",  # a header's name that is not UTF-8
        b"\xff\xff\xff\xff\xff\xff\x00",  # a varint without end
        b"\x0c\x00" + b"\xff" * 12,  # a long varint without end
    ],
)
def test_malformed_records_are_corrupt(payload):
    with pytest.raises(ApiError) as caught:
        opened(batch_of(payload))
    assert caught.value.code is ErrorCode.corrupt_message


def test_a_well_formed_record_by_hand_is_opened():
    assert opened(batch_of(GOOD)) == [Record(0, TIME, b"k", b"v", (("", None),))]


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_a_wrong_count_is_corrupt(count):
    with pytest.raises(ApiError):
        opened(batch_of(GOOD, count=count, last_offset_delta=5))


@settings(max_examples=500)
@given(payload=st.binary(max_size=120), codec=st.integers(0, 7), count=st.integers(-1, 40))
def test_arbitrary_payloads_are_records_or_an_api_error(payload, codec, count):
    try:
        opened(batch_of(payload, count=count, attributes=codec))
    except ApiError:
        pass


@settings(max_examples=500, deadline=None)
@given(
    codec=st.integers(0, 4),
    place=st.integers(0, 1 << 20),
    patch=st.binary(min_size=1, max_size=6),
    cut=st.integers(0, 1 << 20),
)
def test_damaged_payloads_are_records_or_an_api_error(codec, place, patch, cut):
    good = batch.build([(b"key", b"value " * 20), (None, b"x")], timestamp_ms=TIME, codec=codec)[61:]
    damaged = bytearray(good)
    place %= len(damaged)
    damaged[place : place + len(patch)] = patch
    if cut % 3 == 0:
        del damaged[cut % len(damaged) :]
    try:
        opened(batch_of(bytes(damaged), count=2, attributes=codec))
    except ApiError:
        pass


@given(st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 13), st.binary(max_size=100))
def test_a_header_that_does_not_fit_the_data_is_an_api_error(values, data):
    header = BatchHeader(*values)._replace(position=max(values[0], 0), count=min(values[12], 1000))
    try:
        list(batch.records(data, header))
    except ApiError:
        pass
