"""Peers, measured by the same pump in the same run when their programs are found.

A peer's level is what its acknowledgement means: `synced` only if it has called fsync before. Ratios are meant, not
times: all of them share this machine with the load.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headrace.testing.load import cases, raw
from headrace.testing.load.cases import Plan, Target, in_flight_note
from headrace.testing.load.crew import LoadError
from headrace.testing.load.results import LEVELS, Measured, rates

SINGLE = "produce, 1 record"


class AbsentError(Exception):
    """The peer's program is not on this machine."""


def _program(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise AbsentError(f"{name} is not here ({remedy})")
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, seconds: float = 60.0, **environ: str) -> Iterator[int]:
    """A server process, once its port answers; its id. It is killed in the end."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environ}
    )
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LoadError(f"{Path(command[0]).name} did not start with these options") from None
                time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _pumped(
    plan: Plan, target: Target, value_bytes: int, request: bytes, take: raw.Take, hello: bytes = b""
) -> Measured:
    plan.announce(f"{target.system} {target.level} {value_bytes} B")
    options = {
        "host": target.host,
        "port": target.port,
        "request": request,
        "take": take,
        "in_flight": plan.in_flight,
        "connections": plan.connections,
        "seconds": plan.seconds,
        "hello": hello,
    }
    tallies, cpu_s = target.load(raw.pump, options)
    found = rates(tallies, cpu_s=cpu_s)
    found["messages_per_s"] = found["requests_per_s"]
    note = in_flight_note(plan.connections, plan.in_flight)
    return Measured(target.system, "raw produce", SINGLE, target.level, value_bytes, **found, note=note)


# -- Redis Streams


def take_redis(received: bytearray) -> int:
    """XADD answers with an id: `$15\\r\\n1700000000000-0\\r\\n`."""
    if b"-ERR" in received or b"-MISCONF" in received:
        raise LoadError(f"Redis answered {bytes(received[:80])!r}")
    lines = received.count(b"\r\n")
    count = lines // 2
    if lines % 2 == 0 and received.endswith(b"\r\n"):
        received.clear()
        return count
    end = 0
    for _ in range(count):
        end = received.index(b"\n", received.index(b"\n", end) + 1) + 1
    del received[:end]
    return count


def redis(plan: Plan) -> Iterator[Measured]:
    program = _program("redis-server", "Debian: apt-get install redis-server")
    for flush in plan.flushes if "raw" in plan.modes else ():
        port = _free_port()
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=plan.data_dir) as directory:
            command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", ""]
            command += ["--appendonly", "yes", "--appendfsync", "always" if flush == "ack" else "everysec"]
            with _running(command, port) as pid:
                target = Target("redis streams", LEVELS[flush], "127.0.0.1", port, pid)
                for size in plan.value_bytes:
                    words = [b"XADD", b"bench", b"MAXLEN", b"~", b"200000", b"*", b"v", b"x" * size]
                    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
                    yield _pumped(plan, target, size, request, take_redis)


# -- NATS JetStream


def take_nats(received: bytearray) -> int:
    """A publication is acknowledged by a message on the inbox: two lines, the second of them JSON with `seq`."""
    if b"-ERR" in received or b'"error"' in received:
        raise LoadError(f"NATS answered {bytes(received[-200:])!r}")
    end = received.rfind(b"}\r\n") + 3
    if end < 3:
        return 0
    count = received.count(b'"seq":', 0, end)
    del received[:end]
    return count


def nats(plan: Plan) -> Iterator[Measured]:
    program = _program("nats-server", "from nats.io")
    # One connection: several that share an inbox would all be told of, and would count, every acknowledgement.
    plan = replace(plan, connections=1, in_flight=plan.connections * plan.in_flight)
    for flush in plan.flushes if "raw" in plan.modes else ():
        port = _free_port()
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=plan.data_dir) as directory:
            config = Path(directory) / "nats.conf"
            sync = "sync_interval: always" if flush == "ack" else ""
            config.write_text(f'jetstream {{ store_dir: "{directory}/data"\n {sync} }}\n', encoding="utf-8")
            with _running([program, "-a", "127.0.0.1", "-p", str(port), "-c", str(config)], port) as pid:
                target = Target("nats jetstream", LEVELS[flush], "127.0.0.1", port, pid)
                _nats_stream(port)
                for size in plan.value_bytes:
                    inbox = b"_INBOX." + uuid.uuid4().hex.encode()
                    request = b"PUB bench %s %d\r\n%s\r\n" % (inbox, size, b"x" * size)
                    hello = b'CONNECT {"verbose":false}\r\nSUB %s 1\r\n' % inbox
                    yield _pumped(plan, target, size, request, take_nats, hello)


def _nats_stream(port: int) -> None:
    stream = b'{"name":"bench","subjects":["bench"],"storage":"file","max_msgs":200000}'
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.made 1\r\n')
        link.sendall(b"PUB $JS.API.STREAM.CREATE.bench _INBOX.made %d\r\n%s\r\n" % (len(stream), stream))
        received = b""
        while b"}\r\n" not in received.partition(b"MSG")[2]:
            received += link.recv(4096)
        if b'"error"' in received:
            raise LoadError(f"NATS answered {received!r}")


# -- Apache Kafka


def kafka(plan: Plan) -> Iterator[Measured]:
    home = os.environ.get("KAFKA_HOME", "")
    script = Path(home, "bin", "kafka-server-start.sh")
    if not home or not script.exists() or shutil.which("java") is None:
        raise AbsentError("Apache Kafka is not here (set KAFKA_HOME to its directory; it needs Java)")
    for flush in plan.flushes:
        port, controller = _free_port(), _free_port()
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=plan.data_dir) as directory:
            config = _kafka_config(Path(directory), port, controller, synced=flush == "ack")
            storage = str(Path(home, "bin", "kafka-storage.sh"))
            subprocess.run(
                [storage, "format", "--standalone", "-t", "bench-bench-bench-bench", "-c", str(config)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            with _running([str(script), str(config)], port, LOG_DIR=directory) as pid:
                yield from cases.on_target(plan, Target("apache kafka", LEVELS[flush], "127.0.0.1", port, pid))


def _kafka_config(directory: Path, port: int, controller: int, *, synced: bool) -> Path:
    lines = [
        "process.roles=broker,controller",
        "node.id=1",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        f"log.dirs={directory}/data",
        "offsets.topic.replication.factor=1",
        *(["log.flush.interval.messages=1"] if synced else []),
    ]
    path = directory / "server.properties"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


PEERS = (redis, nats, kafka)
