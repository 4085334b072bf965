"""Records that are what their batch says, and records that are not, judged beside other readers of the format."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import batch, layout
from headrace.wire.codecs import TooLargeToOpenError
from headrace.wire.validation import Opened, Scan, ends_are_right

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch

TIME = 1_700_000_000_000
BLOBS = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=9), BLOBS), max_size=2).map(tuple)
ITEMS = st.lists(st.tuples(BLOBS, BLOBS), min_size=1, max_size=100)
CODECS = range(5)


def header_of(data: bytes) -> batch.BatchHeader:
    return next(batch.headers(data))


def open_batch(data: bytes) -> Opened:
    return Opened(data, header_of(data), 1 << 26)


def scan(data: bytes, at_once: int = 1 << 30) -> Scan:
    found = Scan(open_batch(data), header_of(data), wants_keys=True)
    while not found.step(at_once):
        pass
    return found


def are_ends_right(data: bytes) -> bool:
    opened = open_batch(data)
    return ends_are_right(opened.room, opened.start, opened.end, header_of(data).count)


def sealed(data: bytearray) -> bytes:
    struct.pack_into(">I", data, layout.CRC_AT, crc32c(bytes(data[layout.ATTRIBUTES_AT :])))
    return bytes(data)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None)
@given(ITEMS, HEADERS, st.integers(1, 30))
def test_what_is_built_right_is_right(codec: int, items: list[Any], headers: Any, at_once: int) -> None:
    data = batch.build(items, timestamp_ms=TIME, codec=codec, headers=headers)
    found = scan(data, at_once)
    assert (found.oldest, found.newest) == (0, 0)
    assert found.keyless == [place for place, (key, _) in enumerate(items) if key is None]
    assert isinstance(are_ends_right(data), bool), "it may not know, but it does not refuse"


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000, 8192, 8193, 9000])
@pytest.mark.parametrize("value", [b"", b"x" * 100, bytes(100), b"\x01" * 300])
def test_the_last_record_is_found_from_its_end(count: int, value: bytes) -> None:
    assert are_ends_right(batch.build([(None, value)] * count, timestamp_ms=TIME))


def test_a_last_record_that_cannot_be_found_in_time_is_left_to_a_scan() -> None:
    data = batch.build([(None, b"v")] * 9 + [(None, b"\x12" * 500)], timestamp_ms=TIME)  # 0x12 is its own offset
    assert not are_ends_right(data)
    assert scan(data).newest == 0


def read_by_others(data: bytes) -> int:
    """How many records kafka-python finds in a batch; it raises whatever it likes."""
    found = DefaultRecordBatch(data)
    assert found.validate_crc()
    count = 0
    for record in found:
        count += 1
        assert record.offset == count - 1
        assert record.key is None or isinstance(record.key, bytes)
        assert all(isinstance(name, str) for name, _ in record.headers)
    return count


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(st.tuples(BLOBS, BLOBS), min_size=1, max_size=5),
    HEADERS,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from([-2, -1, 0, 0, 0, 0, 1, 2**31 - 1]),
)
def test_what_passes_is_read_by_others_and_by_us(
    items: list[Any], headers: Any, changes: list[tuple[int, int]], more: int
) -> None:
    """Bytes of a good batch are changed, and its checksum is right all the same."""
    data = bytearray(batch.build(items, timestamp_ms=TIME, headers=headers))
    for place, value in changes:
        data[layout.HEADER_BYTES + place % (len(data) - layout.HEADER_BYTES)] = value
    count = min(max(len(items) + more, 1), 2**31 - 1)
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    changed = sealed(data)
    try:
        scan(changed)
    except ApiError as error:
        assert error.code is ErrorCode.invalid_record
        return
    assert len(list(batch.records(changed, header_of(changed)))) == count
    assert read_by_others(changed) == count


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 20), st.sampled_from(CODECS))
def test_arbitrary_bytes_are_right_or_refused(payload: bytes, count: int, codec: int) -> None:
    data = bytearray(layout.HEADER.pack(0, 49, -1, 2, 0, codec, count - 1, TIME, TIME, -1, -1, -1, count) + payload)
    struct.pack_into(">i", data, 8, len(data) - 12)
    changed = sealed(data)
    try:
        are_ends_right(changed)
        scan(changed)
    except ApiError as error:
        assert error.code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_opens_to_more_than_is_allowed_can_be_told_from_garbage(codec: int) -> None:
    data = batch.build([(None, bytes(3 << 20))], timestamp_ms=TIME, codec=codec)
    with pytest.raises(TooLargeToOpenError):
        Opened(data, header_of(data), 2 << 20)
    assert Opened(data, header_of(data), 4 << 20).end > 3 << 20
    garbage = batch.build([(None, b"v")], timestamp_ms=TIME)[: layout.HEADER_BYTES] + b"garbage" * 9
    header = header_of(garbage[:8] + struct.pack(">i", len(garbage) - 12) + garbage[12:])
    with pytest.raises(ApiError) as caught:
        Opened(garbage, header._replace(attributes=codec), 4 << 20)
    assert not isinstance(caught.value, TooLargeToOpenError)
