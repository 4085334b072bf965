"""Fuzzing the Kafka port: random frames, generated requests of every API and version, and mutations of valid ones.

The promise: nothing but answers, error codes and clean closes; other connections notice nothing.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import Broker
from headrace.apis import TABLE
from headrace.core.errors import ErrorCode
from headrace.testing.peer import ClosedError, Peer, frame, header, payload
from headrace.wire.batch import build
from headrace.wire.layout import ATTRIBUTES_AT, CRC_AT
from headrace.wire.schema import FIXED, WireField, message_class, wire_fields

ROWS = [
    (api.key, version)
    for api in TABLE.values()
    if not (api.for_peers or api.private)
    for version in range(api.versions[0], api.versions[1] + 1)
]
FUZZ = settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NOTICE_SECONDS = 15.0  # how long another connection may have to wait for an answer; this machine may be busy

BITS = {"b": 7, "h": 15, "i": 31, "q": 63}
SPECIAL_TEXTS = ["", "t", "fuzz", "..", "a/b", "__consumer_offsets", "x" * 300, "ü"]
BATCH = build([(b"k", b"v")], timestamp_ms=1_700_000_000_000)


def numbers(letter: str) -> st.SearchStrategy[Any]:
    if letter == "?":
        return st.booleans()
    if letter == "d":
        return st.floats(allow_nan=False)
    if letter.isupper():
        return st.integers(0, 2 ** (BITS[letter.lower()] + 1) - 1)
    bits = BITS[letter]
    return st.one_of(st.integers(-2, 10), st.integers(-(2**bits), 2**bits - 1))


def scalars(item: WireField) -> st.SearchStrategy[Any]:
    if item.struct is not None:
        return structs(item.struct)
    if item.kind in FIXED:
        return numbers(FIXED[item.kind])
    if item.kind == "uuid":
        return st.one_of(st.none(), st.uuids(), st.just(UUID(int=1)))
    if item.kind == "string":
        return st.one_of(st.sampled_from(SPECIAL_TEXTS), st.text(max_size=20))
    if item.kind == "records":
        return st.one_of(st.just(BATCH), st.binary(max_size=100))
    return st.binary(max_size=60)


def values(item: WireField) -> st.SearchStrategy[Any]:
    found = scalars(item)
    if item.array:
        found = st.lists(found, max_size=3)
    if item.nullable and not (item.kind in FIXED and not item.array):
        found = st.one_of(st.none(), found)
    return found


def structs(message: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({item.name: values(item) for item in wire_fields(message)})


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, int, bytes]:
    """API key, version and the whole payload of a well-formed request."""
    key, version = draw(st.sampled_from(ROWS))
    request = draw(structs(message_class(key, version, "request")))
    return key, version, payload(key, version, request)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A well-formed request after some accidents behind its API key and version."""
    _, _, data = draw(requests())
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(8, max(8, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "maximum", "repeat"])):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=20))
            case "maximum":
                data[at : at + 4] = draw(
                    st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"])
                )
            case "repeat":
                data += data[at:]
    return bytes(data)


@pytest.fixture(scope="module")
def control(broker: Broker) -> Any:
    """The connection of a well-behaved client."""
    with Peer(broker.bootstrap_servers) as peer:
        yield peer


def exchange(broker: Broker, data: bytes) -> bytes:
    """Send, hang up, and take what comes until the broker hangs up too."""
    found = b""
    with Peer(broker.bootstrap_servers, timeout_s=10.0) as peer, contextlib.suppress(ClosedError, OSError):
        peer.send_bytes(data)
        peer.socket.shutdown(socket.SHUT_WR)
        while piece := peer.socket.recv(65536):
            found += piece
    return found


def check_calm(control: Peer, caplog: pytest.LogCaptureFixture) -> None:
    begun = time.monotonic()
    assert control.call(18, 0).error_code == ErrorCode.none
    assert time.monotonic() - begun < NOTICE_SECONDS
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@FUZZ
@given(data=st.binary(max_size=200))
def test_random_bytes(broker: Broker, control: Peer, caplog: pytest.LogCaptureFixture, data: bytes):
    exchange(broker, data)
    check_calm(control, caplog)


@FUZZ
@given(row=st.sampled_from(ROWS), body=st.binary(max_size=200))
def test_random_bodies(broker: Broker, control: Peer, caplog: pytest.LogCaptureFixture, row: Any, body: bytes):
    exchange(broker, frame(header(*row) + body))
    check_calm(control, caplog)


@FUZZ
@given(request=requests())
def test_generated_requests_are_answered_or_closed(
    broker: Broker, control: Peer, caplog: pytest.LogCaptureFixture, request: Any
):
    _, _, data = request
    exchange(broker, frame(data))
    check_calm(control, caplog)


@FUZZ
@given(data=mutations())
def test_mutated_requests_are_answered_or_closed(
    broker: Broker, control: Peer, caplog: pytest.LogCaptureFixture, data: bytes
):
    exchange(broker, frame(data))
    check_calm(control, caplog)


def produce(control: Peer, topic: str, batch: bytes) -> Any:
    rows = [{"index": 0, "records": batch}]
    request = {"acks": -1, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": rows}]}
    return control.call(0, 9, request).responses[0].partition_responses[0]


def offset_at(control: Peer, topic: str, timestamp_ms: int) -> Any:
    part = {"partition_index": 0, "timestamp": timestamp_ms}
    return (
        control.call(2, 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]})
        .topics[0]
        .partitions[0]
    )


@FUZZ
@given(data=st.data())
def test_mutated_batches_are_refused_or_kept(
    broker: Broker, control: Peer, caplog: pytest.LogCaptureFixture, data: st.DataObject
):
    """Also with a checksum that is right: what is inside then is the client's own rubbish, and must not hurt us."""
    codec = data.draw(st.integers(0, 4), label="codec")
    policy = data.draw(st.sampled_from(["delete", "compact"]), label="policy")
    batch = bytearray(build([(b"key", b"value" * 20)] * 3, timestamp_ms=1_700_000_000_000, codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans(), label="sealed"):
        struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    topic = f"fuzzed-{policy}"
    configs = [{"name": "cleanup.policy", "value": policy}]
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    control.call(19, 7, {"topics": [wanted], "timeout": 5000})
    end = offset_at(control, topic, -1).offset
    row = produce(control, topic, bytes(batch))
    after = offset_at(control, topic, -1).offset
    assert (after > end) == (row.error_code == ErrorCode.none)
    for timestamp_ms in (-3, 1_700_000_000_000, 0, 2**62):
        offset_at(control, topic, timestamp_ms)
    part = {"partition": 0, "fetch_offset": end, "partition_max_bytes": 1 << 20}
    fetch = {"replica_id": -1, "max_bytes": 1 << 20, "topics": [{"topic": topic, "partitions": [part]}]}
    found = control.call(1, 11, fetch).responses[0].partitions[0]
    assert found.error_code == ErrorCode.none
    assert bool(found.records) == (after > end)
    check_calm(control, caplog)
