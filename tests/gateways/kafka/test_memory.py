"""Memory has bounds in all: real brokers, with little memory for requests and answers, and peers that want it all."""

from __future__ import annotations

import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.core.errors import ErrorCode
from headrace.testing.peer import ClosedError, Peer, frame, header, payload
from headrace.testing.process import BrokerProcess
from headrace.wire.batch import build

pytestmark = pytest.mark.process

MIB = 1 << 20
MEMORY_MIB = 32
BATCH_BYTES = 256 * 1024
GROWTH_MIB = 3 * MEMORY_MIB  # twice the budget is the hard limit, and an allocator is not exact
PRODUCE, FETCH, METADATA = 0, 1, 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    flags = ("--kafka-memory-bytes", f"{MEMORY_MIB}MiB", "--storage-flush", "os")
    with BrokerProcess(tmp_path / "data", *flags) as broker:
        with Peer(broker.bootstrap_servers) as peer:
            create(peer, "t")
            assert (
                metric(broker, "headrace_memory_used_bytes") == 0
            )  # and the page is loaded before anything is measured
            for _ in range(64):
                assert produce(peer, "t", BATCH_BYTES) == ErrorCode.none
        yield broker


def create(peer: Peer, topic: str, partitions: int = 1) -> None:
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    assert peer.call(19, 7, {"topics": [wanted], "timeout": 60_000}).topics[0].error_code == ErrorCode.none


def produce(peer: Peer, topic: str, size: int) -> int:
    batch = build([(b"k", b"x" * size)], timestamp_ms=int(time.time() * 1000))
    rows = [{"index": 0, "records": batch}]
    asked = {"acks": -1, "timeout": 60_000, "topic_data": [{"name": topic, "partition_data": rows}]}
    return int(peer.call(PRODUCE, 9, asked).responses[0].partition_responses[0].error_code)


def fetch_request(topic: str, size: int) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": size}
    wanted = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": size}
    return wanted | {"topics": [{"topic": topic, "partitions": [part]}]}


def rss_mib(broker: BrokerProcess) -> float:
    return float(psutil.Process(broker.pid).memory_info().rss) / MIB


class Watch:
    """The broker's memory from now on; the largest that was seen."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.base = rss_mib(broker)
        self.peak = self.base

    def look(self) -> None:
        self.peak = max(self.peak, rss_mib(self._broker))

    @property
    def growth(self) -> float:
        return self.peak - self.base


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def metric(broker: BrokerProcess, name: str) -> float:
    assert broker.http_url is not None
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def others_are_served(broker: BrokerProcess) -> None:
    """Small requests at once; large ones, if need be, when those who block them have been closed."""
    with Peer(broker.bootstrap_servers) as peer:
        begun = time.monotonic()
        assert peer.call(METADATA, 9, {"topics": [{"name": "t"}]}).topics[0].name == "t"
        assert produce(peer, "t", 1000) == ErrorCode.none
        assert time.monotonic() - begun < 60
        assert produce(peer, "t", MIB - 200) == ErrorCode.none
        part = peer.call(FETCH, 11, fetch_request("t", 4 * MIB)).responses[0].partitions[0]
        assert len(part.records) >= BATCH_BYTES


def test_answers_that_nobody_reads_take_no_more_than_their_share(broker: BrokerProcess):
    watch = Watch(broker)
    greedy = []
    for _ in range(40):  # 640 MB of answers, if they were all made
        peer = Peer(broker.bootstrap_servers, receive_buffer_bytes=4096)
        for _ in range(3):
            peer.send(FETCH, 11, fetch_request("t", 16 * MIB))
        greedy.append(peer)
        watch.look()
    others_are_served(broker)
    watch.look()
    assert watch.growth < GROWTH_MIB
    for peer in greedy:
        peer.close()
    until(lambda: metric(broker, "headrace_memory_used_bytes") == 0)
    until(lambda: rss_mib(broker) < watch.base + MEMORY_MIB)


def test_frames_that_are_never_finished_take_no_more_than_their_share(broker: BrokerProcess):
    watch = Watch(broker)
    rude = []
    piece = bytes(256 * 1024)
    for _ in range(12):  # 180 MB, if they were all taken
        peer = Peer(broker.bootstrap_servers, timeout_s=0.2)
        rude.append(peer)
        try:
            peer.send_bytes(struct.pack(">i", 15 * MIB) + header(PRODUCE, 9))
            for _ in range(56):
                peer.send_bytes(piece)
                watch.look()
        except (TimeoutError, ClosedError):
            pass
    others_are_served(broker)
    watch.look()
    assert watch.growth < GROWTH_MIB
    for peer in rude:
        peer.close()
    until(lambda: metric(broker, "headrace_memory_used_bytes") == 0)
    until(lambda: rss_mib(broker) < watch.base + MEMORY_MIB)


def test_large_requests_all_come_through_though_they_do_not_fit_at_once(broker: BrokerProcess):
    """Each is begun before any is finished: they must not block each other for ever."""
    batch = build([(b"k", b"x" * 900_000)], timestamp_ms=int(time.time() * 1000))
    with Peer(broker.bootstrap_servers) as peer:
        create(peer, "wide", partitions=8)
    rows = [{"index": index, "records": batch} for index in range(8)]
    asked = {"acks": -1, "timeout": 60_000, "topic_data": [{"name": "wide", "partition_data": rows}]}
    whole = frame(payload(PRODUCE, 9, asked, 7))
    watch = Watch(broker)
    peers = [Peer(broker.bootstrap_servers) for _ in range(12)]
    sent = dict.fromkeys(peers, 0)
    for peer in peers:
        peer.socket.setblocking(False)
    deadline = time.monotonic() + 60
    while any(place < len(whole) for place in sent.values()):
        assert time.monotonic() < deadline, "they block each other"
        for peer, place in sent.items():
            try:
                sent[peer] += peer.socket.send(whole[place : place + 200_000]) if place < len(whole) else 0
            except BlockingIOError:
                continue
        watch.look()
        time.sleep(0.001)
    for peer in peers:
        peer.socket.settimeout(60)
        answered = peer.receive(PRODUCE, 9, 7).responses[0].partition_responses
        assert [row.error_code for row in answered] == [ErrorCode.none] * 8
        peer.close()
    assert watch.growth < GROWTH_MIB
