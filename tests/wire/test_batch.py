"""What a producer may send, with Kafka's own error for everything else; and stamping."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import batch, layout

LIMIT = 1 << 20
TIME = 1_700_000_000_000
FIELDS = {  # name -> (position, format)
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}


def make(count=2, **options):
    return batch.build([(b"key", b"value %d" % place) for place in range(count)], timestamp_ms=TIME, **options)


def sealed(data):
    """The same batch with a CRC that matches."""
    changed = bytearray(data)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def altered(data, **values):
    changed = bytearray(data)
    for name, value in values.items():
        position, form = FIELDS[name]
        struct.pack_into(form, changed, position, value)
    return bytes(changed) if "crc" in values else sealed(changed)


def refusal(data, **options):
    with pytest.raises(ApiError) as caught:
        batch.check(data, max_batch_bytes=options.pop("max_batch_bytes", LIMIT), **options)
    assert caught.value.message
    return caught.value.code


def test_the_header_of_a_good_batch_is_returned():
    data = make(3, producer_id=7, producer_epoch=1, base_sequence=40, transactional=True)
    (header,) = batch.check(data, max_batch_bytes=LIMIT)
    assert header == batch.BatchHeader(
        0, len(data), 0, -1, header.crc, layout.TRANSACTIONAL, 2, TIME, TIME, 7, 1, 40, 3
    )
    assert batch.crc_matches(data, header)
    assert batch.is_transactional(header)
    assert not batch.is_control(header)
    assert not batch.uses_append_time(header)


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_accepted(codec):
    (header,) = batch.check(make(5, codec=codec), max_batch_bytes=LIMIT)
    assert batch.codec_of(header) == codec


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_checked(kind):
    assert len(batch.check(kind(make()), max_batch_bytes=LIMIT)) == 1


def test_no_batch_at_all_is_an_invalid_record():
    assert refusal(b"") is ErrorCode.invalid_record


def test_a_batch_cut_anywhere_is_refused():
    data = make()
    codes = {refusal(data[:size]) for size in range(1, len(data))}
    assert codes == {ErrorCode.corrupt_message}


@pytest.mark.parametrize("length", [-1, 0, 48, 1_000_000, -(2**31), 2**31 - 1])
def test_a_length_that_lies_is_corrupt(length):
    assert refusal(altered(make(), length=length)) is ErrorCode.corrupt_message


@pytest.mark.parametrize("magic", [0, 1])
def test_old_record_formats_are_invalid_records(magic):
    assert refusal(altered(make(), magic=magic)) is ErrorCode.invalid_record
    assert refusal(altered(make(), magic=magic)[:30]) is ErrorCode.invalid_record


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_an_unknown_magic_is_corrupt(magic):
    assert refusal(altered(make(), magic=magic)) is ErrorCode.corrupt_message


def test_any_flipped_bit_under_the_crc_is_corrupt():
    data = make()
    for position in range(17, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            assert refusal(damaged) is ErrorCode.corrupt_message


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0, "last_offset_delta": -1},
        {"count": -1},
        {"count": 3},
        {"last_offset_delta": 0},
        {"last_offset_delta": 2},
        {"count": 1000, "last_offset_delta": 999},  # cannot fit
        {"count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
        {"attributes": layout.CONTROL},
        {"attributes": layout.DELETE_HORIZON},
        {"attributes": layout.TRANSACTIONAL},  # without a producer id
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": 1, "producer_epoch": -1, "base_sequence": 0},
        {"base_offset": 1},
    ],
)
def test_a_batch_that_contradicts_itself_is_an_invalid_record(change):
    assert refusal(altered(make(), **change)) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_unsupported(codec):
    assert refusal(altered(make(), attributes=codec)) is ErrorCode.unsupported_compression_type


def test_zstd_is_refused_where_the_request_is_too_old_for_it():
    assert refusal(make(codec=layout.ZSTD), zstd=False) is ErrorCode.unsupported_compression_type
    assert batch.check(make(codec=layout.LZ4), max_batch_bytes=LIMIT, zstd=False)


@pytest.mark.parametrize(
    "change", [{"max_timestamp": -2}, {"base_timestamp": -(2**63)}, {"attributes": layout.APPEND_TIME}]
)
def test_impossible_times_are_invalid_timestamps(change):
    assert refusal(altered(make(), **change)) is ErrorCode.invalid_timestamp


def test_records_without_a_time_are_accepted():
    assert batch.check(altered(make(), base_timestamp=-1, max_timestamp=-1), max_batch_bytes=LIMIT)


def test_a_batch_larger_than_allowed_is_too_large():
    data = make()
    assert refusal(data, max_batch_bytes=len(data) - 1) is ErrorCode.message_too_large
    assert batch.check(data, max_batch_bytes=len(data))


def test_a_producer_sends_exactly_one_batch():
    assert refusal(make() + make()) is ErrorCode.invalid_record


def test_several_batches_pass_where_they_may():
    first, second = make(), make(4, base_offset=2)
    found = batch.check(first + second, max_batch_bytes=LIMIT, single=False)
    assert [(header.position, header.size, header.count) for header in found] == [
        (0, len(first), 2),
        (len(first), len(second), 4),
    ]
    assert refusal(first + second[:-1], single=False) is ErrorCode.corrupt_message
    assert refusal(first + b"junk", single=False) is ErrorCode.corrupt_message


def test_headers_leave_a_partial_batch_out():
    first, second = make(), make(3)
    for size in range(len(first) + len(second)):
        assert len(list(batch.headers((first + second)[:size]))) == (size >= len(first))
    assert [header.count for header in batch.headers(first + second)] == [2, 3]


def test_headers_can_start_and_end_anywhere():
    first, second = make(), make(3)
    data = b"abc" + first + second
    found = list(batch.headers(memoryview(data), 3, 3 + len(first)))
    assert [(header.position, header.count) for header in found] == [(3, 2)]
    assert batch.crc_matches(data, found[0])


@pytest.mark.parametrize("garbage", [bytes(200), b"\xff" * 200])
def test_headers_stop_at_garbage(garbage):
    assert len(list(batch.headers(make() + garbage))) == 1


def test_stamping_keeps_the_checksum_valid():
    data = bytearray(b"prefix" + make(3))
    (header,) = batch.headers(data, 6)
    batch.stamp(data, header, base_offset=1 << 40, leader_epoch=9)
    (stamped,) = batch.headers(data, 6)
    assert stamped == header._replace(base_offset=1 << 40, leader_epoch=9)
    assert batch.crc_matches(data, stamped)
    assert [record.offset for record in batch.records(data, stamped)] == [(1 << 40) + place for place in range(3)]


def test_stamping_append_time_rewrites_the_checksum_and_every_time():
    data = bytearray(b"prefix" + make(3, codec=layout.GZIP))
    (header,) = batch.headers(data, 6)
    batch.stamp_append_time(data, header, timestamp_ms=TIME + 5000)
    (stamped,) = batch.headers(data, 6)
    assert batch.uses_append_time(stamped)
    assert batch.codec_of(stamped) == layout.GZIP
    assert batch.crc_matches(data, stamped)
    assert stamped.base_timestamp == TIME
    assert {record.timestamp for record in batch.records(data, stamped)} == {TIME + 5000}


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_refused_with_an_api_error(data, single):
    with pytest.raises(ApiError):
        batch.check(data, max_batch_bytes=LIMIT, single=single)
    list(batch.headers(data))


@given(st.sampled_from(sorted(FIELDS)), st.data())
def test_any_value_in_any_field_is_accepted_or_an_api_error(name, data):
    position, form = FIELDS[name]
    raw = data.draw(st.binary(min_size=struct.calcsize(form), max_size=struct.calcsize(form)))
    changed = bytearray(make(producer_id=3, producer_epoch=2, base_sequence=1))
    changed[position : position + len(raw)] = raw
    try:
        (header,) = batch.check(sealed(changed), max_batch_bytes=LIMIT)
    except ApiError:
        return
    assert header.count == 2
