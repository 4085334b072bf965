"""Request and response headers, compared with kio's."""

import struct
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer

from headrace.core.errors import ProtocolError
from headrace.wire.headers import FIRST_FLEXIBLE, parse_request_header, response_header
from headrace.wire.schema import message_class, versions_of

VERSIONS = [(key, version) for key in FIRST_FLEXIBLE for version in versions_of(key)]


@given(
    st.sampled_from(VERSIONS),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=300),
    st.binary(max_size=9),
)
def test_a_header_that_kio_writes_is_read(api, correlation_id, client_id, body):
    key, version = api
    struct_ = message_class(key, version, "request").__header_schema__
    assert struct_ in (HeaderV1, HeaderV2)
    out = BytesIO()
    row = {"request_api_key": key, "request_api_version": version, "correlation_id": correlation_id}
    entity_writer(struct_)(out, struct_(**row, client_id=client_id))
    header = parse_request_header(out.getvalue() + body)
    assert header == (key, version, correlation_id, client_id or "", len(out.getvalue()))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_header_or_a_protocol_error(frame):
    try:
        header = parse_request_header(frame)
    except ProtocolError:
        return
    assert 10 <= header.body_offset <= len(frame)


@given(st.sampled_from(VERSIONS), st.binary(max_size=60))
def test_arbitrary_bytes_after_a_known_key_are_a_header_or_a_protocol_error(api, rest):
    try:
        header = parse_request_header(struct.pack(">hh", *api) + rest)
    except ProtocolError:
        return
    assert header[:2] == api
    assert header.body_offset <= 4 + len(rest)


def test_tagged_fields_of_a_header_are_skipped():
    frame = struct.pack(">hhih", 18, 3, 7, 1) + b"c" + b"\x02" + b"\x00\x03abc" + b"\x85\x01\x00" + b"body"
    header = parse_request_header(frame)
    assert frame[header.body_offset :] == b"body"


@pytest.mark.parametrize("tags", [b"\x01", b"\x01\x00", b"\x01\x00\x05abc", b"\xff\xff\xff\xff\x07", b"\xff" * 6, b""])
def test_tagged_fields_that_do_not_fit_are_refused(tags):
    with pytest.raises(ProtocolError):
        parse_request_header(struct.pack(">hhih", 18, 3, 7, 1) + b"c" + tags)


def test_a_client_id_longer_than_the_frame_is_refused():
    with pytest.raises(ProtocolError):
        parse_request_header(struct.pack(">hhih", 3, 1, 7, 50) + b"short")


def test_a_client_id_of_negative_length_is_refused():
    with pytest.raises(ProtocolError):
        parse_request_header(struct.pack(">hhih", 3, 1, 7, -2) + b"short")


def test_an_unknown_key_is_read_so_that_the_caller_can_decide():
    header = parse_request_header(struct.pack(">hhih", 9999, 5, 42, 2) + b"me" + b"?")
    assert header == (9999, 5, 42, "me", 12)


def test_a_version_beyond_what_we_know_is_read_as_flexible():
    header = parse_request_header(struct.pack(">hhih", 18, 99, 42, 2) + b"me" + b"\0")
    assert header.api_version == 99
    assert header.body_offset == 13


@given(st.sampled_from(VERSIONS), st.integers(-(2**31), 2**31 - 1))
def test_a_response_header_is_what_kio_writes(api, correlation_id):
    key, version = api
    struct_ = message_class(key, version, "response").__header_schema__
    out = BytesIO()
    entity_writer(struct_)(out, struct_(correlation_id=correlation_id))
    assert response_header(key, version, correlation_id) == out.getvalue()


def test_an_api_versions_response_header_is_always_v0():
    assert response_header(18, 4, 1) == b"\0\0\0\1"
