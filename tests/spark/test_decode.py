from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.spark.decode import PAGE_ROWS, Decoder, Span
from headrace.spark.fetch import read_answer
from headrace.wire import batch
from headrace.wire.hot import FetchedPartition, fetch_answer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
ALL = Span(0, 1 << 62)
TOPIC_ID = UUID(int=7)

texts = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
a_batch = st.tuples(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=40), st.sampled_from([0, 1, 2, 3, 4]), headers
)


def stacked(batches, *, first_offset=0, timestamp_ms=1_700_000_000_000, gap=0):
    data, offset = b"", first_offset
    for items, codec, extra in batches:
        data += batch.build(items, timestamp_ms=timestamp_ms, base_offset=offset, codec=codec, headers=extra)
        offset += len(items) + gap
    return data


def opened(data, span=ALL, aborted=(), schema=SCHEMA, **more):
    decoder = Decoder("orders", 3, schema, **more)
    after, pages = decoder.pages(memoryview(bytearray(data)), span, aborted)
    table = pa.Table.from_batches(list(pages), schema=schema)
    table.validate(full=True)
    return after, table


def plain(data, span=ALL):
    """What the slow, careful reader finds."""
    return [
        record
        for header in batch.headers(data)
        for record in batch.records(data, header)
        if span.start <= record.offset < span.end
    ]


def tuples(table):
    names = ("offset", "timestamp", "key", "value", "headers")
    columns = [table[name].cast(pa.int64()) if name == "timestamp" else table[name] for name in names]
    found = []
    for offset, time_us, key, value, extra in zip(*(column.to_pylist() for column in columns), strict=True):
        extra = tuple((item["key"], item["value"]) for item in extra) if extra is not None else ()
        found.append(batch.Record(offset, time_us // 1000, key, value, extra))
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(a_batch, max_size=5), st.integers(0, 100), st.integers(0, 60), st.integers(0, 60), st.integers(0, 3))
def test_every_codec_gives_what_the_careful_reader_gives(batches, first, skip, length, gap):
    data = stacked(batches, first_offset=first, gap=gap)
    span = Span(first + skip, first + skip + length)
    after, table = opened(data, span)
    assert tuples(table) == plain(data, span)
    last = [header.base_offset + header.last_offset_delta + 1 for header in batch.headers(data)]
    assert after == (last[-1] if last else span.start)


def test_topic_partition_and_kind_of_time_are_filled_in():
    _, table = opened(stacked([([(b"k", b"v")] * 3, 0, ())]))
    assert table["topic"].to_pylist() == ["orders"] * 3
    assert table["partition"].to_pylist() == [3] * 3
    assert table["timestampType"].to_pylist() == [0] * 3


def test_append_time_holds_for_all_records_of_a_batch():
    data = bytearray(stacked([([(None, b"v")] * 2, 0, ())]))
    (header,) = batch.headers(data)
    batch.stamp_append_time(data, header, timestamp_ms=1_800_000_000_123)
    _, table = opened(data)
    assert table["timestampType"].to_pylist() == [1, 1]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1_800_000_000_123_000] * 2


def test_no_headers_are_null_as_in_the_kafka_connector():
    _, table = opened(stacked([([(b"k", b"v")], 0, ()), ([(b"k", b"v")], 0, (("h", None),))]))
    assert table["headers"].to_pylist() == [None, [{"key": "h", "value": None}]]


def test_columns_come_in_the_order_that_was_asked_for():
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    _, table = opened(stacked([([(b"k", b"v")] * 2, 4, ())]), schema=schema)
    assert table.schema == schema
    assert table.to_pydict() == {"offset": [0, 1], "value": [b"v", b"v"]}


def test_records_that_compaction_left_keep_their_offsets():
    data = stacked([([(b"k%d" % n, b"v") for n in range(10)], 4, ())], first_offset=100)
    (header,) = batch.headers(data)
    kept = [record for record in batch.records(data, header) if record.offset in (103, 107)]
    after, table = opened(batch.rebuild(header, kept))
    assert table["offset"].to_pylist() == [103, 107]
    assert after == 110


def test_a_batch_emptied_by_compaction_still_moves_on():
    data = stacked([([(b"k", b"v")] * 4, 0, ())])
    (header,) = batch.headers(data)
    after, table = opened(batch.rebuild(header, []))
    assert (after, table.num_rows) == (4, 0)


def test_large_answers_come_in_bounded_pages():
    data = stacked([([(b"k", b"v" * 100)] * 5000, 0, ())] * 12)
    _, pages = Decoder("t", 0, SCHEMA).pages(memoryview(data), ALL)
    sizes = [page.num_rows for page in pages]
    assert sum(sizes) == 60_000
    assert max(sizes) <= PAGE_ROWS
    assert len(sizes) > 4


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch():
    data = stacked([([(b"k", b"v")] * 3, 0, ()), ([(b"k", b"v")] * 3, 0, ())])
    after, table = opened(data[:-1])
    assert (after, table["offset"].to_pylist()) == (3, [0, 1, 2])


def test_old_batches_are_not_opened_when_time_is_bounded():
    old, young = stacked([([(b"k", b"old")], 0, ())]), None
    young = stacked([([(b"k", b"young")], 0, ())], first_offset=1, timestamp_ms=1_800_000_000_000)
    _, table = opened(old + young, Span(0, 10, oldest_ms=1_750_000_000_000))
    assert table["value"].to_pylist() == [b"young"]


# transactions


def transactional(offset, values, producer):
    return batch.build(
        [(None, value) for value in values],
        timestamp_ms=1,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset, producer, *, commit):
    key = b"\x00\x00" + (b"\x00\x01" if commit else b"\x00\x00")
    return batch.build(
        [(key, bytes(6))],
        timestamp_ms=1,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        control=True,
        transactional=True,
    )


# Producer 1 aborts twice and commits in between; producer 2 commits; an outsider writes in the middle of it all.
HISTORY = b"".join(
    [
        transactional(0, [b"aborted-0", b"aborted-1"], 1),
        transactional(2, [b"two-2"], 2),
        batch.build([(None, b"plain-3")], timestamp_ms=1, base_offset=3),
        marker(4, 1, commit=False),
        transactional(5, [b"one-5"], 1),
        marker(6, 1, commit=True),
        marker(7, 2, commit=True),
        transactional(8, [b"aborted-8"], 1),
        marker(9, 1, commit=False),
    ]
)
ABORTED = [(1, 0), (1, 8)]


@pytest.mark.parametrize("version", [12, 13])
def test_aborted_transactions_and_control_records_are_skipped(version):
    answer = fetch_answer(
        version,
        0,
        0,
        [("orders", TOPIC_ID, [FetchedPartition(3, 0, 10, 10, 0, HISTORY, ABORTED)])],
    )
    found = read_answer(version, memoryview(b"".join(answer)))
    assert found.aborted == ABORTED
    assert (found.high_watermark, found.last_stable_offset, found.start_offset) == (10, 10, 0)
    after, table = opened(found.records, aborted=found.aborted)
    assert table["value"].to_pylist() == [b"two-2", b"plain-3", b"one-5"]
    assert after == 10


def test_read_uncommitted_shows_all_but_control_records():
    _, table = opened(HISTORY)
    assert len(table) == 6


def test_an_abort_that_began_before_the_fetched_range_counts():
    data = transactional(5, [b"aborted"], 1) + marker(6, 1, commit=False) + transactional(7, [b"next"], 1)
    _, table = opened(data, Span(5, 10), aborted=[(1, 2)])
    assert table["value"].to_pylist() == [b"next"]


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("code", [ErrorCode.offset_out_of_range, ErrorCode.not_leader_or_follower])
def test_a_partitions_fault_is_read(version, code):
    answer = fetch_answer(version, 0, 0, [("orders", TOPIC_ID, [FetchedPartition(3, code, -1, aborted=None)])])
    assert read_answer(version, memoryview(b"".join(answer))).error_code == code


def test_a_fault_of_the_whole_answer_is_read():
    answer = b"".join(fetch_answer(13, ErrorCode.unknown_topic_id, 0, []))
    assert read_answer(13, memoryview(answer)).error_code == ErrorCode.unknown_topic_id


# damage


def test_a_wrong_checksum_is_an_error():
    data = bytearray(stacked([([(b"k", b"value")], 0, ())]))
    data[-3] ^= 1
    with pytest.raises(ApiError, match="checksum"):
        opened(data)


def test_an_older_format_is_an_error():
    data = bytearray(stacked([([(b"k", b"value")], 0, ())]))
    data[16] = 1
    with pytest.raises(ApiError, match="older than v2"):
        opened(data)


@settings(max_examples=400, deadline=None)
@given(st.lists(a_batch, min_size=1, max_size=3), st.data())
def test_damaged_bytes_are_an_error_or_other_records_but_never_a_crash(batches, draw):
    data = bytearray(stacked(batches))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(17, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        decoder = Decoder("orders", 3, SCHEMA, check_crcs=False)
        _, pages = decoder.pages(memoryview(data), ALL)
        for page in pages:
            page.num_rows  # noqa: B018
    except ApiError as error:
        assert error.code in (ErrorCode.corrupt_message, ErrorCode.unsupported_compression_type)
