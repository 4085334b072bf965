"""Bad manners on the Kafka port: broken frames, stalled peers, floods. Every row of FAULTS about the wire itself."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Broker
from headrace.core import limits
from headrace.core.errors import ErrorCode
from headrace.gateways.kafka import server
from headrace.testing.peer import ClosedError, Peer, frame, header, is_serving, payload
from headrace.wire.batch import build

TLS_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(64)
NUMBERS = itertools.count(1)


def fresh_topic(peer: Peer, *, partitions: int = 1, **configs: str) -> str:
    name = f"abused-{next(NUMBERS)}"
    wanted = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    answer = peer.call(19, 7, {"topics": [wanted], "timeout": 5000})
    assert answer.topics[0].error_code == ErrorCode.none, answer
    return name


def produce_request(topic: str, *batches: bytes | None, acks: int = -1, index: int = 0) -> dict[str, Any]:
    rows = [{"index": index, "records": records} for records in batches]
    return {"acks": acks, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": rows}]}


def fetch_request(topic: str, **fields: Any) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": fields.pop("offset", 0), "partition_max_bytes": 1 << 20}
    part |= {name: fields.pop(name) for name in ("partition_max_bytes", "current_leader_epoch") if name in fields}
    wanted = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 50 << 20}
    return wanted | {"topics": [{"topic": topic, "partitions": [part]}]} | fields


def some_batch(size: int = 10) -> bytes:
    return build([(b"k", b"x" * size)], timestamp_ms=1_700_000_000_000)


# -- frames


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="negative"),
        pytest.param(struct.pack(">i", -(2**31)), id="most negative"),
        pytest.param(struct.pack(">i", 0), id="zero"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="2 GiB"),
        pytest.param(struct.pack(">i", (100 << 20) + 1), id="over the limit"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(b"POST /topics HTTP/1.1\r\n\r\n", id="HTTP POST"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(TLS_HELLO, id="TLS"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="SSH"),
        pytest.param(frame(b"\x00"), id="a frame too short for a header"),
        pytest.param(frame(bytes(9)), id="a header without client id"),
        pytest.param(frame(struct.pack(">hhih", 3, 9, 1, 500) + b"x"), id="a client id longer than the frame"),
        pytest.param(frame(struct.pack(">hhih", 3, 9, 1, -7)), id="a client id of negative length"),
        pytest.param(frame(struct.pack(">hhih", 3, 9, 1, 2) + b"\xff\xfe\x00"), id="a client id that is not UTF-8"),
    ],
)
def test_bytes_that_are_no_request_close_the_connection(peer: Peer, data: bytes):
    peer.send_bytes(data)
    assert peer.is_closed()


def test_a_promised_length_costs_nothing(broker: Broker, memory: Any):
    peers = [Peer(broker.bootstrap_servers) for _ in range(50)]
    for peer in peers:
        peer.send_bytes(struct.pack(">i", 99 << 20) + b"only this")
    assert is_serving(broker.bootstrap_servers)
    assert memory.growth_mib < 30
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    ("key", "version", "length"),
    [(3, 9, (2 << 20) + 1), (1, 11, 50 << 20), (9999, 0, 1000), (32_001, 0, 1000), (32_000, 0, 1 << 20)],
    ids=["Metadata", "Fetch", "an unknown API", "an API for nodes", "a hello"],
)
def test_a_frame_that_would_be_refused_is_refused_when_it_begins(peer: Peer, key: int, version: int, length: int):
    peer.send_bytes(struct.pack(">i", length) + header(key, version))
    assert peer.is_closed()


def test_a_frame_that_trickles_in_is_answered_when_it_is_whole(broker: Broker, peer: Peer):
    data = frame(payload(18, 0, {}, 77))
    for byte in data[:-1]:
        peer.send_bytes(bytes([byte]))
    assert is_serving(broker.bootstrap_servers)
    peer.send_bytes(data[-1:])
    assert peer.receive(18, 0, 77).error_code == ErrorCode.none


def test_half_a_frame_and_a_hang_up_disturb_nobody(broker: Broker):
    for size in (1, 3, 4, 5, 20):
        with Peer(broker.bootstrap_servers) as peer:
            peer.send_bytes(frame(payload(3, 9, {"topics": None}))[:size])
    assert is_serving(broker.bootstrap_servers)


def test_bytes_after_a_request_are_ignored(peer: Peer):
    peer.send_bytes(frame(payload(18, 0, {}, 5) + b"trailing garbage"))
    assert peer.receive(18, 0, 5).error_code == ErrorCode.none
    assert peer.call(18, 0).error_code == ErrorCode.none


# -- APIs and versions


@pytest.mark.parametrize(
    ("key", "version"), [(9999, 0), (-1, 0), (4, 0), (56, 0), (3, 99), (3, -1), (0, 2), (1, 3), (11, 50)]
)
def test_an_unknown_api_or_version_closes_the_connection(peer: Peer, key: int, version: int):
    peer.send_bytes(frame(header(key, version) + bytes(40)))
    assert peer.is_closed()


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_api_versions_request_from_the_future_is_told_our_range(peer: Peer, version: int):
    peer.send_bytes(frame(header(18, version, 42) + b"\x05name\x041.0\x00"))
    answer = peer.receive(18, 0, 42)
    assert answer.error_code == ErrorCode.unsupported_version
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 4)]
    assert peer.call(18, 4, {"client_software_name": "x", "client_software_version": "1"}).error_code == ErrorCode.none


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(struct.pack(">i", 2**31 - 1), id="2 thousand million topics"),
        pytest.param(struct.pack(">i", -5), id="a negative count"),
        pytest.param(struct.pack(">i", 1000) + b"\x00\x01a", id="fewer topics than promised"),
        pytest.param(struct.pack(">ih", 1, 32000) + b"a", id="a name longer than the frame"),
        pytest.param(struct.pack(">ih", 1, 2) + b"\xc3\x28\x01", id="a name that is not UTF-8"),
        pytest.param(struct.pack(">ih", 1, -1) + b"\x01", id="a null name"),
    ],
)
def test_a_body_that_lies_about_its_lengths_closes_the_connection(peer: Peer, memory: Any, body: bytes):
    peer.send_bytes(frame(header(3, 4) + body))
    assert peer.is_closed()
    assert memory.growth_mib < 30


@pytest.mark.parametrize(
    "tail",
    [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80\x80\x80\x80\x10", b"\x01\x00\xff\xff\xff\xff\x07"],
    ids=["an endless varint", "too large a varint", "a tagged field of 2 GiB"],
)
def test_broken_varints_close_the_connection(peer: Peer, tail: bytes):
    peer.send_bytes(frame(header(60, 0) + b"\x00" + tail))
    assert peer.is_closed()


def test_unknown_tagged_fields_are_skipped(peer: Peer):
    tagged = struct.pack(">hhih", 60, 0, 9, 1) + b"x" + b"\x01\x63\x03abc"  # in the header: tag 99, three bytes
    peer.send_bytes(frame(tagged + b"\x00" + b"\x01\x63\x03abc"))
    assert peer.receive(60, 0, 9).error_code == ErrorCode.none


# -- order


def test_a_long_poll_is_not_overtaken_by_a_later_answer(peer: Peer):
    topic = fresh_topic(peer)
    begun = time.monotonic()
    fetch = peer.send(1, 11, fetch_request(topic, max_wait=400))
    metadata = peer.send(3, 9, {"topics": [{"name": topic}]})
    versions = peer.send(18, 0)
    assert peer.receive(1, 11, fetch).error_code == ErrorCode.none
    assert time.monotonic() - begun >= 0.39
    assert peer.receive(3, 9, metadata).topics[0].name == topic
    assert peer.receive(18, 0, versions).error_code == ErrorCode.none


def test_a_long_poll_ends_when_data_comes(broker: Broker, peer: Peer):
    topic = fresh_topic(peer)
    begun = time.monotonic()
    fetch = peer.send(1, 11, fetch_request(topic, max_wait=60_000))
    later = peer.send(18, 0)
    with Peer(broker.bootstrap_servers) as other:
        other.call(0, 9, produce_request(topic, some_batch()))
    assert peer.receive(1, 11, fetch).responses[0].partitions[0].records
    peer.receive(18, 0, later)
    assert time.monotonic() - begun < 50


def test_hundreds_of_pipelined_requests_are_answered_in_order(peer: Peer):
    topic = fresh_topic(peer)
    sent = []
    for number in range(300):
        if number % 3 == 0:
            sent.append((1, 11, peer.send(1, 11, fetch_request(topic, max_wait=30, offset=number // 3))))
        elif number % 3 == 1:
            sent.append((0, 9, peer.send(0, 9, produce_request(topic, some_batch()))))
        else:
            sent.append((3, 9, peer.send(3, 9, {"topics": [{"name": topic}]})))
    answers = [(key, peer.receive(key, version, number)) for key, version, number in sent]
    offsets = [answer.responses[0].partition_responses[0].base_offset for key, answer in answers if key == 0]
    assert offsets == list(range(100))


# -- peers that stall, floods


def test_a_peer_that_never_reads_is_paused_and_others_are_served(broker: Broker, memory: Any):
    with Peer(broker.bootstrap_servers) as other, Peer(broker.bootstrap_servers, receive_buffer_bytes=4096) as greedy:
        topic = fresh_topic(other)
        for _ in range(4):
            other.call(0, 9, produce_request(topic, some_batch(1_000_000)))
        request = fetch_request(topic, partition_max_bytes=5 << 20)
        greedy.socket.settimeout(0.3)
        sent = []
        for _ in range(5000):  # 20 GB of answers, if they were all made
            try:
                sent.append(greedy.send(1, 11, request))
            except TimeoutError:
                break
        assert other.call(3, 9, {"topics": [{"name": topic}]}).topics[0].name == topic  # while the greedy one waits
        assert memory.growth_mib < 200
        greedy.socket.settimeout(60)
        for number in sent[:10]:
            assert len(greedy.receive(1, 11, number).responses[0].partitions[0].records) > 4_000_000


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that waits only 0.3 s for the rest of a frame."""
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(server, "HALF_FRAME_SECONDS", 0.3)
    with Broker() as broker:
        yield broker


def test_a_frame_that_is_never_finished_closes_the_connection(hasty: Broker):
    with Peer(hasty.bootstrap_servers) as peer:
        peer.send_bytes(frame(payload(18, 0, {}, 1))[:-1])
        assert peer.is_closed()


def test_a_frame_is_not_given_up_while_nobody_reads_it(hasty: Broker):
    with Peer(hasty.bootstrap_servers) as peer, Peer(hasty.bootstrap_servers) as other:
        fetch = payload(1, 11, fetch_request(fresh_topic(other), max_wait=1500), 5)
        last = frame(payload(18, 0, {}, 6))
        peer.send_bytes(frame(fetch) * limits.IN_FLIGHT_PER_CONNECTION + last[:7])
        is_serving(hasty.bootstrap_servers)  # so that the broker has read that, and reads no more
        peer.send_bytes(last[7:])
        for _ in range(limits.IN_FLIGHT_PER_CONNECTION):
            assert peer.receive(1, 11, 5).error_code == ErrorCode.none
        assert peer.receive(18, 0, 6).error_code == ErrorCode.none


@pytest.mark.parametrize("cap", ["kafka_max_connections_per_ip", "kafka_max_connections"])
def test_connections_over_the_cap_are_closed_at_once_and_places_become_free(cap: str):
    caps: dict[str, Any] = {cap: 20}
    with Broker(**caps) as small:
        peers = [Peer(small.bootstrap_servers) for _ in range(30)]
        served = []
        for peer in peers:
            try:
                served.append(peer.call(18, 0).error_code == ErrorCode.none)
            except ClosedError:
                served.append(False)
        assert served == [True] * 20 + [False] * 10
        for peer in peers:
            peer.close()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                assert is_serving(small.bootstrap_servers)
                break
            except ClosedError:
                continue
        else:
            pytest.fail("no place became free")


def test_five_hundred_idle_connections_do_no_harm(broker: Broker, memory: Any):
    peers = [Peer(broker.bootstrap_servers) for _ in range(500)]
    assert is_serving(broker.bootstrap_servers)
    assert all(peer.call(18, 0).error_code == ErrorCode.none for peer in peers[::50])
    assert memory.growth_mib < 60
    for peer in peers:
        peer.close()


def test_a_peer_that_resets_in_the_middle_of_a_long_poll_leaves_nothing_behind(broker: Broker, peer: Peer):
    topic = fresh_topic(peer)
    for _ in range(50):
        with Peer(broker.bootstrap_servers) as rude:
            rude.send(1, 11, fetch_request(topic, max_wait=30_000))
            rude.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer = peer.call(0, 9, produce_request(topic, some_batch()))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none


# -- absurd but well-formed


@pytest.mark.parametrize(
    "absurd",
    [
        {"max_wait": -1, "min_bytes": 2**31 - 1},
        {"max_wait": 0, "max_bytes": -5},
        {"max_wait": 0, "partition_max_bytes": -1},
        {"max_wait": 0, "max_bytes": 2**31 - 1, "partition_max_bytes": 2**31 - 1},
        {"max_wait": 0, "max_bytes": 0, "partition_max_bytes": 0},
        {"max_wait": 0, "min_bytes": -(2**31)},
    ],
    ids=str,
)
def test_absurd_fetch_sizes_are_clamped(peer: Peer, absurd: dict[str, int]):
    topic = fresh_topic(peer)
    peer.call(0, 9, produce_request(topic, some_batch()))
    part = peer.call(1, 11, fetch_request(topic, **absurd)).responses[0].partitions[0]
    assert part.error_code == ErrorCode.none
    assert part.high_watermark == 1


@pytest.mark.parametrize("offset", [-1, -(2**63), 2, 2**63 - 1])
def test_a_fetch_offset_outside_the_log_is_out_of_range(peer: Peer, offset: int):
    topic = fresh_topic(peer)
    peer.call(0, 9, produce_request(topic, some_batch()))
    part = peer.call(1, 11, fetch_request(topic, offset=offset, max_wait=5000)).responses[0].partitions[0]
    assert part.error_code == ErrorCode.offset_out_of_range


def test_an_oversized_batch_is_returned_whole_by_a_small_fetch(peer: Peer):
    topic = fresh_topic(peer)
    data = some_batch(500_000)
    peer.call(0, 9, produce_request(topic, data))
    part = peer.call(1, 11, fetch_request(topic, max_bytes=100, partition_max_bytes=100)).responses[0].partitions[0]
    assert len(part.records) == len(data)


@pytest.mark.parametrize(
    ("batches", "limits"),
    [
        pytest.param(1, {"max_bytes": 1000, "min_bytes": 5 << 20}, id="less is allowed than wanted"),
        pytest.param(3, {"max_bytes": 1 << 20, "min_bytes": 1 << 20}, id="batches do not fill it to the last byte"),
        pytest.param(3, {"min_bytes": 1_500_000}, id="the rest is in the next segment"),
    ],
)
def test_what_is_there_is_not_kept_back_because_one_answer_cannot_hold_it_all(
    peer: Peer, batches: int, limits: dict[str, int]
):
    """Waiting would bring nothing: the records that are missing have been there all the time."""
    topic = fresh_topic(peer, segment_bytes=str(1 << 20))
    for _ in range(batches):
        peer.call(0, 9, produce_request(topic, some_batch(600_000)))
    fetch = fetch_request(topic, max_wait=60_000, partition_max_bytes=64 << 20, **limits)
    assert peer.call(1, 11, fetch).responses[0].partitions[0].records


def test_unknown_sessions_replicas_and_epochs_get_their_own_errors(peer: Peer):
    topic = fresh_topic(peer)
    answer = peer.call(1, 11, fetch_request(topic, session_id=99, session_epoch=3))
    assert answer.error_code == ErrorCode.fetch_session_id_not_found
    answer = peer.call(1, 11, fetch_request(topic, replica_id=2))
    assert answer.error_code == ErrorCode.cluster_authorization_failed
    part = peer.call(1, 11, fetch_request(topic, current_leader_epoch=1000)).responses[0].partitions[0]
    assert part.error_code == ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize("count", [2**31 - 1, 10_001, 0, -7])
def test_absurd_partition_counts_are_refused_at_once(peer: Peer, count: int):
    topic = {"name": f"wide-{count}", "num_partitions": count, "replication_factor": 1}
    answer = peer.call(19, 7, {"topics": [topic], "timeout": 5000})
    assert answer.topics[0].error_code == ErrorCode.invalid_partitions


def test_names_that_climb_reach_no_file(tmp_path: Any):
    data_dir = tmp_path / "deep" / "data"
    data_dir.parent.mkdir()
    with Broker(str(data_dir)) as broker, Peer(broker.bootstrap_servers) as peer:
        for name in ("..", ".", "../x", "../../x", "a/../../x", "/etc/x", "a\\b", "nul\0x", "x" * 250, "", "Ünï"):
            wanted = {"name": name, "num_partitions": 1, "replication_factor": 1}
            created = peer.call(19, 7, {"topics": [wanted], "timeout": 5000})
            assert created.topics[0].error_code == ErrorCode.invalid_topic_exception, name
            produced = peer.call(0, 9, produce_request(name, some_batch()))
            assert produced.responses[0].partition_responses[0].error_code == ErrorCode.invalid_topic_exception, name
            described = peer.call(3, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": True})
            assert described.topics[0].error_code == ErrorCode.invalid_topic_exception, name
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in data_dir.parent.iterdir()] == ["data"]
