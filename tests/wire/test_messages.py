"""Every message of every version: the encoder against kio's own, and the decoder against bad bytes."""

import struct
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from random import Random
from types import NoneType
from typing import get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from headrace.core.errors import ErrorCode, ProtocolError
from headrace.wire.guard import Walk, walk_of
from headrace.wire.headers import FIRST_FLEXIBLE
from headrace.wire.messages import (
    ELEMENTS_PER_REQUEST,
    decode_request,
    decode_response,
    element_encoder,
    encode_answer,
    encode_answer_in_steps,
    encode_request,
    joined,
)
from headrace.wire.schema import message_class, plain, versions_of

KEYS = sorted(api_key_map)
MESSAGES = [
    (key, version, direction) for key in KEYS for version in versions_of(key) for direction in ("request", "response")
]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "orders", "größe", "x" * 126, "y" * 127, "z" * 128, "long" * 100)


def scalar(random, kind):
    if kind in BITS:
        edge = 1 << (BITS[kind] - 1)
        return random.choice((0, 1, -1, edge - 1, -edge, random.randrange(-edge, edge)))
    match kind:
        case "uint16":
            return random.randrange(1 << 16)
        case "float64":
            return random.choice((0.0, 1.5, -1e300))
        case "bool":
            return random.random() < 0.5
        case "error_code":
            return random.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=random.choice((0, 1, -1, 2**31 - 1, random.randrange(1 << 31))))
        case "datetime_i64":
            return datetime.fromtimestamp(random.randrange(1 << 31), UTC)
        case "uuid":
            return UUID(int=random.randrange(1, 1 << 128))
        case "string":
            return random.choice(TEXTS)
    return random.randbytes(random.choice((0, 1, 127, 128, 300)))


def arbitrary(random, kind, metadata):
    """A random value of a kio field's type."""
    if NoneType in get_args(kind):
        if random.random() < 0.3:
            return None
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        count = random.choice((0, 1, 2, 3) if is_dataclass(get_args(kind)[0]) else (0, 1, 3, 9, 130))
        return tuple(arbitrary(random, get_args(kind)[0], metadata) for _ in range(count))
    if is_dataclass(kind):
        return kind(**{field.name: arbitrary_field(random, field) for field in fields(kind)})
    return scalar(random, metadata["kafka_type"])


def arbitrary_field(random, field):
    value = arbitrary(random, field.type, field.metadata)
    # kio cannot write null into a tagged field unless null is its default.
    if value is None and "tag" in field.metadata and field.default is not None:
        return field.default
    return value


def written_by_kio(instance):
    out = BytesIO()
    entity_writer(type(instance))(out, instance)
    return out.getvalue()


def arbitrary_message(seed, key, version, direction):
    return arbitrary(Random(f"{seed}/{key}/{version}/{direction}"), message_class(key, version, direction), {})


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_messages_are_written_as_kio_writes_them_and_read_back(key, seed):
    for version in versions_of(key):
        for direction, encode, decode in (
            ("request", encode_request, decode_request),
            ("response", encode_answer, decode_response),
        ):
            instance = arbitrary_message(seed, key, version, direction)
            expected = written_by_kio(instance)
            assert encode(key, version, plain(instance)) == expected
            assert plain(decode(key, version, b"abc" + expected, 3)) == plain(instance)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_an_answer_that_is_written_in_steps_is_the_same(key, seed):
    for version in versions_of(key):
        answer = plain(arbitrary_message(seed, key, version, "response"))
        assert encoded_in_steps(key, version, answer) == encode_answer(key, version, answer)


@pytest.mark.parametrize("version", versions_of(3))
def test_elements_that_were_encoded_before_stand_where_they_would(version):
    rows = [{"name": "a", "partitions": [{"partition_index": 1}]}, {"name": "b" * 200}] * 70
    found = joined(element_encoder(3, version, "topics"), rows)
    for encode in (encode_answer, encoded_in_steps):
        assert encode(3, version, {"topics": found}) == encode_answer(3, version, {"topics": rows})


def encoded_in_steps(key, version, answer):
    out = bytearray()
    list(encode_answer_in_steps(key, version, answer, out))
    return bytes(out)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_the_walk_ends_where_kio_ends(key, seed):
    for version in versions_of(key):
        for direction in ("request", "response"):
            instance = arbitrary_message(seed, key, version, direction)
            data = written_by_kio(instance) + b"more"
            end = walk_of(type(instance))(data, 0, Walk(10**9))
            assert end == entity_reader(type(instance))(data, 0)[1] == len(data) - 4


@settings(max_examples=2000, deadline=None)
@given(message=st.sampled_from(MESSAGES), data=st.binary(max_size=200))
def test_arbitrary_bytes_are_a_message_or_a_protocol_error(message, data):
    key, version, direction = message
    try:
        (decode_request if direction == "request" else decode_response)(key, version, data, 0)
    except ProtocolError:
        pass


@settings(max_examples=1500, deadline=None)
@given(
    message=st.sampled_from(MESSAGES),
    seed=st.integers(0, 50),
    cut=st.integers(0, 10_000),
    patch=st.sampled_from(
        (b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80", b"\0")
    ),
    place=st.integers(0, 10_000),
)
def test_damaged_messages_are_a_message_or_a_protocol_error(message, seed, cut, patch, place):
    key, version, direction = message
    data = bytearray(written_by_kio(arbitrary_message(seed, key, version, direction)))
    place %= len(data) + 1
    data[place : place + len(patch)] = patch
    if cut % 2:
        del data[cut % len(data) :]
    try:
        (decode_request if direction == "request" else decode_response)(key, version, bytes(data), 0)
    except ProtocolError:
        pass


HUGE_COUNTS = [
    (3, 1, struct.pack(">i", 2**31 - 1)),
    (3, 12, b"\xff\xff\xff\xff\x07"),
    (3, 12, b"\xff\xff\xff\xff\x0f"),
    (3, 12, b"\xff\xff\xff\xff\xff\x0f"),
    (0, 3, struct.pack(">hhii", -1, 1, 1, 2**31 - 1)),
    (0, 9, b"\0\0\1\0\0\0\1\xff\xff\xff\xff\x07"),
    (0, 9, b"\0\0\1\0\0\0\1\x02\x02t\xff\xff\xff\xff\x07"),
]


@pytest.mark.parametrize(("key", "version", "data"), HUGE_COUNTS)
def test_a_huge_count_is_refused_before_kio_allocates_for_it(key, version, data):
    with pytest.raises(ProtocolError):
        decode_request(key, version, data, 0)


def test_more_elements_than_the_loop_can_bear_are_refused():
    data = b"\x00" * 6 + struct.pack(">i", ELEMENTS_PER_REQUEST + 1)
    with pytest.raises(ProtocolError, match="too many elements"):
        decode_request(3, 1, struct.pack(">i", ELEMENTS_PER_REQUEST + 1) + bytes(2 * (ELEMENTS_PER_REQUEST + 1)) + data)


def test_a_null_array_where_none_may_be_is_refused():
    with pytest.raises(ProtocolError, match="null"):
        decode_request(0, 9, b"\0\0\1\0\0\0\1\0\0", 0)
    with pytest.raises(ProtocolError, match="null"):
        decode_request(0, 3, struct.pack(">hhii", -1, 1, 1, -1), 0)


def test_a_null_array_where_null_means_all_is_read():
    assert decode_request(3, 1, struct.pack(">i", -1)).topics is None


def test_unknown_tagged_fields_are_skipped_at_every_level():
    tags = b"\x02" + b"\x63\x03abc" + b"\x64\x00"
    partition = b"\0\0\0\x07" + b"\x04xyz" + tags
    topic = b"\x07orders" + b"\x02" + partition + tags
    request = decode_request(0, 9, b"head" + b"\0\0\1\0\0\0\1" + b"\x02" + topic + tags, 4)
    assert request.topic_data[0].name == "orders"
    assert request.topic_data[0].partition_data[0].records == b"xyz"


def test_known_and_unknown_tagged_fields_may_mix():
    fixed = struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, 0) + b"\1\1\1"
    request = decode_request(1, 12, fixed + b"\x02" + b"\x00\x03\x03ab" + b"\x63\x01z")
    assert request.cluster_id == "ab"


def test_a_tagged_field_whose_size_lies_is_refused():
    fixed = struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, 0) + b"\1\1\1"
    with pytest.raises(ProtocolError, match="size"):
        decode_request(1, 12, fixed + b"\x01" + b"\x00\x05\x03abXY")


@pytest.mark.parametrize(("key", "version"), [(3, 99), (3, -1), (4, 0), (999, 0), (-1, 0)])
def test_an_unknown_api_or_version_is_a_protocol_error(key, version):
    with pytest.raises(ProtocolError):
        decode_request(key, version, b"", 0)


def test_bytes_after_the_message_are_ignored_as_kafka_does():
    data = encode_request(12, 4, {"group_id": "g", "member_id": "m"})
    assert decode_request(12, 4, data + b"extra").group_id == "g"


def test_missing_fields_get_the_defaults_of_the_schema():
    topic = decode_response(3, 12, encode_answer(3, 12, {"topics": [{"partitions": [{}]}]})).topics[0]
    assert topic.topic_authorized_operations == -(2**31)
    assert topic.partitions[0].leader_epoch == -1
    assert decode_response(3, 12, encode_answer(3, 12, {})).controller_id == -1


def test_an_array_without_default_is_empty_and_not_null():
    assert decode_response(19, 7, encode_answer(19, 7, {"topics": [{"name": "t"}]})).topics[0].configs == ()


def test_names_of_other_versions_are_dropped():
    answer = {"error_code": 3, "throttle_time": 9, "topics": [{"name": "t", "topic_id": UUID(int=5)}]}
    assert decode_response(3, 1, encode_answer(3, 1, answer)).topics[0].name == "t"


def test_names_that_no_version_has_are_our_bug():
    with pytest.raises(AssertionError, match="trottle"):
        encode_answer(12, 4, {"trottle": 1})
    with pytest.raises(AssertionError, match=r"ledger.* in topics\.partitions"):
        encode_answer(3, 12, {"topics": [{"partitions": [{"ledger": 1}]}]})


def test_a_null_that_the_version_does_not_allow_is_our_bug():
    with pytest.raises(AssertionError, match="name must not be null"):
        encode_answer(3, 9, {"topics": [{"name": None}]})
    with pytest.raises(AssertionError, match="topics must not be null"):
        encode_answer(3, 9, {"topics": None})


def test_a_number_that_does_not_fit_is_our_bug():
    with pytest.raises(AssertionError, match="does not fit"):
        encode_answer(12, 4, {"throttle_time": 1 << 40})


def test_durations_may_be_timedeltas_or_milliseconds():
    by_duration = encode_answer(12, 4, {"throttle_time": timedelta(seconds=2), "error_code": ErrorCode.none})
    assert by_duration == encode_answer(12, 4, {"throttle_time": 2000, "error_code": 0})


def test_the_table_of_flexible_versions_agrees_with_the_schema():
    assert set(FIRST_FLEXIBLE) == set(KEYS)
    for key, version, direction in MESSAGES:
        message = message_class(key, version, direction)
        assert message.__flexible__ == (version >= FIRST_FLEXIBLE[key]), (key, version)
