"""Where the time of one small Produce goes: each step on its own, in microseconds (`python -m bench.parts`).

The best of many short runs, so that a busy machine disturbs least. Everything runs in one process, without sockets.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from collections.abc import Callable

from headrace.apis import TABLE, produce
from headrace.apis.api import Context
from headrace.app import Node
from headrace.broker.topics import NewTopic
from headrace.gateways.kafka.connection import Connection
from headrace.gateways.kafka.server import KafkaServer
from headrace.runtime import loop
from headrace.runtime.network import SocketNetwork
from headrace.settings import load
from headrace.wire import batch, messages
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import parse_request_header
from headrace.wire.hot import ProducedPartition, produce_answer
from headrace.wire.produce_request import read_produce_request

CALLS, ROUNDS, FRAMES = 500, 60, 32


def best(work: Callable[[], object]) -> float:
    shortest = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(CALLS):
            work()
        shortest = min(shortest, time.perf_counter() - begun)
    return shortest / CALLS * 1e6


def request(records: bytes) -> bytes:
    topic = {"name": "parts", "partition_data": [{"index": 0, "records": records}]}
    body = messages.encode_request(0, 9, {"acks": -1, "timeout": 30_000, "topic_data": [topic]})
    head = struct.pack(">hhih", 0, 9, 1, 1) + b"c" + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


class Nowhere(asyncio.Transport):
    """A peer that takes everything."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1)

    def write(self, data: object) -> None: ...

    def writelines(self, parts: object) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...


async def measure(directory: str) -> dict[str, float]:
    settings = load(
        {"storage.data_dir": directory, "storage.flush": "os", "kafka.port": "0", "http.enabled": "false"}
    ).settings
    node = Node(settings)
    await node.start()
    try:
        service = node.service
        await service.topics.create([NewTopic("parts", 1, 1)])
        server = KafkaServer(settings.kafka, service, SocketNetwork())
        connection, other = (Connection(server, service, 1 << 27) for _ in range(2))
        connection.connection_made(Nowhere())
        records = batch.build([(None, bytes(100))], timestamp_ms=int(time.time() * 1000))
        whole = request(records)
        frame, chunk, splitter = whole[4:], whole * FRAMES, FrameSplitter(1 << 27)
        head = parse_request_header(frame)
        asked = read_produce_request(9, frame, head.body_offset)
        headers = batch.check(records, max_batch_bytes=1 << 20)
        partition = service.partitions.get("parts", 0)
        context = Context(service, 9, "c", "")
        rows = [("parts", None, [ProducedPartition(0, 0, 1, -1, 0)])]
        answer = produce.Encoded(produce_answer(9, rows))
        return {
            "split a frame off": best(lambda: splitter.feed(chunk)) / FRAMES,
            "read the request header": best(lambda: parse_request_header(frame)),
            "read the request": best(lambda: read_produce_request(9, frame, head.body_offset)),
            "check the batch": best(lambda: batch.check(records, max_batch_bytes=1 << 20)),
            "append to the partition": best(lambda: partition.append(bytearray(records), headers)),
            "encode the answer": best(lambda: produce_answer(9, rows)),
            "frame the answer": best(lambda: other._encode(TABLE[0], head, answer)),
            "note the latency": best(lambda: other._measure(TABLE[0], 0.0)),
            "handle, as a whole": best(lambda: produce.handle(context, asked)),
            "all, from bytes to bytes": best(lambda: connection.data_received(chunk)) / FRAMES,
        }
    finally:
        await node.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name, microseconds in loop.run(measure(directory)).items():
            print(f"{name:<28}{microseconds:6.2f} us")


if __name__ == "__main__":
    main()
