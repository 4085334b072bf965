"""The HTTP door, over real loopback sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headrace.broker.image import Image
from headrace.broker.turns import Turns
from headrace.core.counters import Counters, Histogram, Traffic
from headrace.core.errors import ConfigError, ErrorCode
from headrace.gateways.http import server as http_server
from headrace.gateways.http.server import HttpServer
from headrace.raft.records import Membership
from headrace.runtime import loop

pytestmark = pytest.mark.timeout(120)


@dataclass
class Log:
    start_offset: int = 0
    end_offset: int = 0
    size_bytes: int = 0


@dataclass
class Record:
    replicas: tuple[int, ...]
    leader: int = 1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass
class Partition:
    topic: str
    index: int
    high_watermark: int
    log: Log
    leads: bool = True
    in_sync: int = 1
    record: Record | None = None
    replicas: None = None


class Groups:
    def group_offsets(self):
        return [("billing", "orders", 0, 70), ("billing", "gone", 0, 5), ("billing", "orders", 1, -1)]

    def states(self):
        return {"Stable": 1, "Empty": 2}


@dataclass
class Service:
    counters: Counters = field(default_factory=Counters)
    partitions: list[Partition] = field(
        default_factory=lambda: [
            Partition("orders", 0, 90, Log(10, 100, 4096), in_sync=2, record=Record((1, 2, 3))),
            Partition("orders", 1, 5, Log(0, 5, 99), record=Record((1,))),
            Partition("copied", 0, 5, Log(0, 5, 99), leads=False, record=Record((2, 1))),
        ]
    )
    groups: Groups = field(default_factory=Groups)
    controller: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            image=Image(),
            applied_index=7,
            quorum=SimpleNamespace(
                node_id=1, leader=1, leads=True, term=3, commit_index=7, membership=Membership(voters=(1,))
            ),
        )
    )
    council: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(skew_of=lambda node: None))
    turns: Turns = field(default_factory=lambda: Turns(time.monotonic))
    ready: bool = True
    faults: list[str] = field(default_factory=list)


@dataclass
class Settings:
    host: str = "127.0.0.1"
    port: int = 0


@asynccontextmanager
async def serving(service: Service | None = None, *, request_seconds: float = 60.0, loaded: bool = False):
    server = HttpServer(
        Settings(),
        service or Service(),
        version="1.2.3",
        addresses=lambda: {"kafka": "127.0.0.1:9092"},
        request_seconds=request_seconds,
    )
    port = await server.start()
    if loaded:
        await server.loaded()
    try:
        yield port
    finally:
        await server.stop()


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def get(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer = await exchange(port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    named = dict(line.split(": ", 1) for line in rest)
    return int(first.split()[1]), named, body.decode()


def test_the_pages_answer():
    async def main():
        async with serving() as port:
            assert (await get(port, "/healthz"))[::2] == (200, "ok\n")
            assert json.loads((await get(port, "/readyz"))[2]) == {"ready": True, "reasons": []}
            about = json.loads((await get(port, "/"))[2])
            assert (about["name"], about["version"]) == ("headrace", "1.2.3")
            assert about["addresses"] == {"kafka": "127.0.0.1:9092"}
            assert (await get(port, "/nothing"))[0] == 404

    loop.run(main())


def test_a_broker_with_an_offline_directory_is_not_ready_and_says_why():
    async def main():
        service = Service(faults=["log directory /data is offline: I/O error"])
        async with serving(service) as port:
            status, _, body = await get(port, "/readyz")
            assert status == 503
            assert json.loads(body) == {"ready": False, "reasons": service.faults}
            service.faults, service.ready = [], False
            assert (await get(port, "/readyz"))[0] == 503
            assert (await get(port, "/healthz"))[0] == 200

    loop.run(main())


def filled() -> Service:
    service = Service()
    counters = service.counters
    counters.requests["Produce"] = Histogram((0.001, 0.01))
    for seconds in (0.0005, 0.005, 0.005, 3.0):
        counters.requests["Produce"].observe(seconds)
    counters.errors["Produce", ErrorCode.kafka_storage_error.value] = 3
    counters.errors["Produce", 31999] = 1
    counters.topics["orders"] = Traffic(
        records_in=7, bytes_in=700, bytes_out=1400, produce_requests=2, fetch_requests=4
    )
    counters.connections, counters.connections_total, counters.connections_refused = 3, 10, 1
    counters.protocol_errors = 2
    counters.sync_seconds.observe(0.002)
    counters.sync_logs.observe(4)
    return service


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), ("application/openmetrics-text; version=1.0.0", parse_openmetrics)]
)
def test_the_metrics_are_what_the_broker_counted(accept, parse):
    async def main():
        async with serving(filled()) as port:
            status, headers, body = await get(port, "/metrics", Accept=accept)
            assert status == 200
            assert headers["content-type"].startswith(accept.split(";")[0] or "text/plain")
            return body

    samples = {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in parse(loop.run(main()))
        for sample in family.samples
    }
    assert samples["headrace_ready",] == 1
    assert samples["headrace_build", "1.2.3"] == 1
    assert samples["headrace_request_seconds_bucket", "Produce", "0.001"] == 1
    assert samples["headrace_request_seconds_bucket", "Produce", "0.01"] == 3
    assert samples["headrace_request_seconds_bucket", "Produce", "+Inf"] == 4
    assert samples["headrace_request_seconds_count", "Produce"] == 4
    assert samples["headrace_request_seconds_sum", "Produce"] == pytest.approx(3.0105)
    assert samples["headrace_errors_total", "Produce", "KAFKA_STORAGE_ERROR"] == 3
    assert samples["headrace_errors_total", "Produce", "31999"] == 1
    assert samples["headrace_topic_records_in_total", "orders"] == 7
    assert samples["headrace_topic_bytes_in_total", "orders"] == 700
    assert samples["headrace_topic_bytes_out_total", "orders"] == 1400
    assert samples["headrace_topic_produce_requests_total", "orders"] == 2
    assert samples["headrace_topic_fetch_requests_total", "orders"] == 4
    assert samples["headrace_connections",] == 3
    assert samples["headrace_connections_opened_total",] == 10
    assert samples["headrace_connections_refused_total",] == 1
    assert samples["headrace_protocol_errors_total",] == 2
    assert samples["headrace_sync_seconds_count",] == 1
    assert samples["headrace_sync_logs_sum",] == 4
    assert samples["headrace_loop_delay_seconds_count",] == 0
    assert samples["headrace_partition_start_offset", "0", "orders"] == 10
    assert samples["headrace_partition_end_offset", "0", "orders"] == 100
    assert samples["headrace_partition_high_watermark", "0", "orders"] == 90
    assert samples["headrace_partition_replicas", "0", "orders"] == 3
    assert samples["headrace_partition_in_sync_replicas", "0", "orders"] == 2
    assert ("headrace_partition_replicas", "0", "copied") not in samples
    assert samples["headrace_under_replicated_partitions",] == 1
    assert samples["headrace_quorum_term",] == 3
    assert samples["headrace_partition_size_bytes", "0", "orders"] == 4096
    assert samples["headrace_group_lag", "billing", "0", "orders"] == 20
    assert ("headrace_group_lag", "billing", "0", "gone") not in samples
    assert ("headrace_group_lag", "billing", "1", "orders") not in samples
    assert samples["headrace_groups", "Empty"] == 2
    assert ("process_resident_memory_bytes",) in samples


def test_start_does_not_wait_for_the_libraries_and_early_requests_are_answered():
    async def main():
        async with serving() as port:  # start has returned, the load has just begun
            answers = await asyncio.gather(*(get(port, "/healthz") for _ in range(5)))
            assert [status for status, _, _ in answers] == [200] * 5

    loop.run(main())


def test_a_taken_port_is_a_config_error_that_names_it():
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            server = HttpServer(Settings(port=port), Service(), version="1", addresses=dict)
            with pytest.raises(ConfigError, match=rf"http\.port: cannot listen on 127\.0\.0\.1:{port}"):
                await server.start()
            await server.stop()

    loop.run(main())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x10\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\x00\x00\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_400_and_a_closed_connection(request_bytes):
    async def main():
        async with serving() as port:
            try:
                assert (await exchange(port, request_bytes)).startswith(b"HTTP/1.1 400")
            except ConnectionError:
                pass  # closed while we were still sending
            assert (await get(port, "/healthz"))[0] == 200

    loop.run(main())


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HT",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n",
    ],
)
def test_a_peer_that_stalls_is_closed(sent):
    async def main():
        async with serving(request_seconds=0.3, loaded=True) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            try:
                async with asyncio.timeout(60):
                    await reader.read()
            except ConnectionError:
                pass
            writer.close()

    loop.run(main())


def test_connections_beyond_the_limit_are_refused_and_room_comes_back(monkeypatch):
    monkeypatch.setattr(http_server, "CONNECTIONS", 3)

    async def main():
        async with serving(loaded=True) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            with pytest.raises((ConnectionError, AssertionError)):
                assert await exchange(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(60):
                while True:
                    try:
                        assert (await get(port, "/healthz"))[0] == 200
                        return
                    except (ConnectionError, LookupError):  # reset, or closed without a word
                        await asyncio.sleep(0.01)

    loop.run(main())


def test_stop_closes_idle_connections_and_the_port():
    async def main():
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)

    loop.run(main())
