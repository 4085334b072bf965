"""Ready-made requests over raw sockets, so that the broker and not a client is measured.

A `pump` keeps a fixed number of identical requests in flight on each of a few connections. It spends no Python work per
request: requests are slices of one block of bytes, and answers are counted and checked by slicing too.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ErrorCode
from headrace.testing.load.crew import LoadError, Start, Tally, now
from headrace.testing.peer import Peer, frame, payload
from headrace.wire import batch

PRODUCE, FETCH, LIST_OFFSETS, CREATE_TOPICS = 0, 1, 2, 19
PRODUCE_VERSION, FETCH_VERSION = 9, 12
READ_BYTES = 1 << 18
TIMESTAMP_MS = int(time.time() * 1000)  # of now: retention would remove older records under the readers


def values(count: int, value_bytes: int) -> list[tuple[None, bytes]]:
    return [(None, b"x" * value_bytes)] * count


def produce_request(topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> bytes:
    """One whole Produce frame."""
    topics = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    request = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": topics}
    return frame(payload(PRODUCE, PRODUCE_VERSION, request))


def fetch_request(topic: str, offset: int, max_bytes: int, *, partition: int = 0, max_wait_ms: int = 500) -> bytes:
    """One whole Fetch frame."""
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    request = {
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    return frame(payload(FETCH, FETCH_VERSION, request))


def create_topic(bootstrap_servers: str, topic: str, partitions: int = 1, **configs: str) -> None:
    """A topic with these configs (`_` for `.`)."""
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    with Peer(bootstrap_servers) as peer:
        answer = peer.call(CREATE_TOPICS, 5, {"topics": [wanted], "timeout": 10_000})
    (result,) = answer.topics
    if result.error_code is not ErrorCode.none:
        raise LoadError(f"topic {topic} could not be made: {result.error_code.name} {result.error_message or ''}")


def end_offset(bootstrap_servers: str, topic: str, partition: int = 0) -> int:
    """How many records a partition has taken."""
    wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": topic, "partitions": [wanted]}]
    with Peer(bootstrap_servers) as peer:
        answer = peer.call(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    return int(answer.topics[0].partitions[0].offset)


# -- counting answers


@dataclass(frozen=True, slots=True)
class ProduceAnswers:
    """Answers to Produce are alike in size: count and check them by slicing."""

    size: int
    error_at: int

    @classmethod
    def learn(cls, bootstrap_servers: str, topic: str, request: bytes) -> ProduceAnswers:
        """Send one request and see what its answer looks like."""
        with Peer(bootstrap_servers) as peer:
            peer.send_bytes(request)
            answer = peer.receive(PRODUCE, PRODUCE_VERSION, 1)
            code = answer.responses[0].partition_responses[0].error_code
            if code is not ErrorCode.none:
                raise LoadError(f"Produce is answered with {code.name}")
            peer.send_bytes(request)
            size = 4 + len(peer.receive_frame())
        # length, correlation id, tags, topic count, name, partition count, index
        return cls(size, error_at=4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4)

    def take(self, received: bytearray) -> int:
        """Remove the whole answers at the front of `received` and return how many they were."""
        count = len(received) // self.size
        end = count * self.size
        lengths = received[3 : end : self.size]
        codes = received[self.error_at : end : self.size] + received[self.error_at + 1 : end : self.size]
        if lengths.count((self.size - 4) & 0xFF) != count or any(codes):
            code = struct.unpack_from(">h", received, self.error_at)[0]
            raise LoadError(f"a Produce was answered differently, perhaps with error {code}")
        del received[:end]
        return count


Take = Callable[[bytearray], int]


class _Lane:
    """One connection of a pump."""

    def __init__(self, address: tuple[str, int], block: memoryview, request_bytes: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.received = bytearray()
        self._block = block
        self._request_bytes = request_bytes
        self._out: list[memoryview] = []

    def ask(self, count: int) -> None:
        self._out.append(self._block[: count * self._request_bytes])

    def send(self) -> bool:
        """Send what the kernel takes; True if something is left."""
        while self._out:
            piece = self._out[0]
            try:
                sent = self.socket.send(piece)
            except BlockingIOError:
                return True
            if sent < len(piece):
                self._out[0] = piece[sent:]
                return True
            del self._out[0]
        return False


def pump(
    start: Start,
    *,
    host: str,
    port: int,
    request: bytes,
    take: Take,
    in_flight: int,
    connections: int,
    seconds: float,
    hello: bytes = b"",
) -> Tally:
    """Keep `in_flight` requests under way on each connection for `seconds`; count the answers."""
    block = memoryview(request * in_flight)
    lanes = [_Lane((host, port), block, len(request)) for _ in range(connections)]
    if hello:
        for lane in lanes:
            lane.socket.sendall(hello)
    selector = selectors.DefaultSelector()
    for lane in lanes:
        selector.register(lane.socket, selectors.EVENT_READ, lane)
    start()
    begun = now()
    deadline = begun + seconds
    done = 0
    blocked: set[_Lane] = set()
    for lane in lanes:
        lane.ask(in_flight)
        _flush(selector, lane, blocked)
    while now() < deadline:
        for key, events in selector.select(1.0):
            lane = key.data
            if events & selectors.EVENT_READ:
                data = lane.socket.recv(READ_BYTES)
                if not data:
                    raise LoadError("the broker closed the connection")
                lane.received += data
                count = take(lane.received)
                done += count
                if count:
                    lane.ask(count)
            _flush(selector, lane, blocked)
    elapsed = now() - begun
    for lane in lanes:
        lane.socket.close()
    return Tally(done, done * len(request), elapsed)


def _flush(selector: selectors.BaseSelector, lane: _Lane, blocked: set[_Lane]) -> None:
    if lane.send() != (lane in blocked):
        blocked ^= {lane}
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if lane in blocked else 0)
        selector.modify(lane.socket, wanted, lane)


# -- fetching


def fetch(start: Start, *, host: str, port: int, requests: list[bytes], seconds: float, discard: bool = False) -> Tally:
    """Ask for cached data again and again, two requests in flight; read the frames without opening them.

    With `discard` the kernel throws the bytes away (Linux, MSG_TRUNC): the cost of the broker alone.
    """
    flags = getattr(socket, "MSG_TRUNC", 0) if discard else 0
    view = memoryview(bytearray(1 << 20))
    with socket.create_connection((host, port)) as link:
        link.settimeout(30.0)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start()
        begun = now()
        deadline = begun + seconds
        done = received = 0
        link.sendall(requests[0] + requests[1 % len(requests)])
        while now() < deadline:
            head = link.recv(4, socket.MSG_WAITALL)
            if len(head) < 4:
                raise LoadError("the broker closed the connection")
            left = size = int.from_bytes(head, "big")
            while left:
                count = link.recv_into(view, min(left, len(view)), flags)
                if not count:
                    raise LoadError("the broker closed the connection")
                left -= count
            done += 1
            received += size + 4
            link.sendall(requests[(done + 1) % len(requests)])
        return Tally(done, received, now() - begun)


def fill(bootstrap_servers: str, topic: str, total_bytes: int, value_bytes: int, batch_bytes: int = 1 << 16) -> int:
    """Put about `total_bytes` of records into partition 0; returns the number of records of one batch."""
    count = max(1, batch_bytes // (value_bytes + 8))
    records = batch.build(values(count, value_bytes), timestamp_ms=TIMESTAMP_MS)
    request = produce_request(topic, records, acks=1)
    batches = max(1, total_bytes // len(records))
    with Peer(bootstrap_servers, timeout_s=30.0) as peer:
        for begin in range(0, batches, 16):
            chunk = min(16, batches - begin)
            for _ in range(chunk):
                peer.send_bytes(request)
            for _ in range(chunk):
                answer: Any = peer.receive(PRODUCE, PRODUCE_VERSION, 1)
                code = answer.responses[0].partition_responses[0].error_code
                if code is not ErrorCode.none:
                    raise LoadError(f"Produce is answered with {code.name}")
    return count


# -- one at a time


def produce_latency(start: Start, *, host: str, port: int, request: bytes, take: Take, seconds: float) -> Tally:
    """One acknowledged Produce after the other."""
    latencies = []
    with socket.create_connection((host, port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = bytearray()
        for _ in range(50):  # let the broker compile and cache what it wants
            _round_trip(link, request, received, take)
        start()
        begun = now()
        deadline = begun + seconds
        last = begun
        while last < deadline:
            _round_trip(link, request, received, take)
            after = now()
            latencies.append(after - last)
            last = after
        return Tally(len(latencies), len(latencies) * len(request), now() - begun, tuple(latencies))


def _round_trip(link: socket.socket, request: bytes, received: bytearray, take: Take) -> None:
    link.sendall(request)
    while not take(received):
        data = link.recv(READ_BYTES)
        if not data:
            raise LoadError("the broker closed the connection")
        received += data
