"""`python -m bench.compaction`: how fast logs are compacted, and what a producer notices of it.

Two measurements:
- *speed*: one log on disk, compacted by one thread without a rate limit; MB of log read per second.
- *latency*: one connection produces small batches one by one (acks=all) to a plain topic, while nothing else happens
  and while another topic is compacted, in turns, against a broker process with its default settings. The figure is the
  ratio of the 99th percentiles.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import typer

from headrace.runtime.disk import DiskFiles
from headrace.storage.compaction import Compaction, survey
from headrace.storage.log import Log
from headrace.storage.swapping import complete, finish, install
from headrace.storage.topic_config import TopicConfig
from headrace.testing.load import raw
from headrace.testing.peer import Peer
from headrace.testing.process import BrokerProcess
from headrace.wire import batch

INCREMENTAL_ALTER_CONFIGS = 44
TOPIC, SET = 2, 0
BATCH_BYTES = 64 * 1024
MB = 1e6
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CASES = ((100, 0, 20_000), (1000, 0, 20_000), (1000, 0, 10), (100, 4, 20_000), (1000, 4, 20_000))


def batches(total_bytes: int, value_bytes: int, keys: int, codec: int, timestamp_ms: int):
    """Batches of about 64 KiB until there are `total_bytes`; keys in a scattered order."""
    count = max(1, BATCH_BYTES // (value_bytes + 20))
    number = made_bytes = 0
    while made_bytes < total_bytes:
        items = [
            (b"key-%08d" % ((number + n) * 7919 % keys), b"%08d" % (number + n) * (value_bytes // 8))
            for n in range(count)
        ]
        made = batch.build(items, timestamp_ms=timestamp_ms, codec=codec)
        number += count
        made_bytes += len(made) if codec == 0 else count * (value_bytes + 20)
        yield made


def speed(directory: Path, total_bytes: int, value_bytes: int, keys: int, codec: int) -> tuple[float, float, float]:
    """(MB of log per second, records per second, share that is left)."""
    config = replace(TopicConfig(), cleanup_policy=("compact",), segment_bytes=64 << 20, min_cleanable_dirty_ratio=0.0)
    log = Log.open(DiskFiles(str(directory)), "topics/t-0", config, now_ms=1)
    for made in batches(total_bytes, value_bytes, keys, codec, 1):
        data = bytearray(made)
        log.append(data, list(batch.headers(data)), leader_epoch=0, now_ms=1)
    log.roll_if_due(config.segment_ms + 2)
    log.checkpoint()
    before, records = log.size_bytes, log.end_offset
    begun = time.perf_counter()
    work = Compaction(log, survey(log, 2, log.end_offset), now_ms=2, map_bytes=256 << 20)
    while not work.finished:
        swap = work.step(lambda: True)
        if swap is not None:
            install(log, swap, 2)
            swap.run()
            complete(log, swap)
    finish(log, work.first_dirty_offset, work.gone)
    log.checkpoint()
    seconds = time.perf_counter() - begun
    left = log.size_bytes / before
    log.close()
    return before / seconds / MB, records / seconds, left


def alter(bootstrap_servers: str, topic: str, **configs: str) -> None:
    wanted = [
        {"name": key.replace("_", "."), "config_operation": SET, "value": value} for key, value in configs.items()
    ]
    resources = [{"resource_type": TOPIC, "resource_name": topic, "configs": wanted}]
    with Peer(bootstrap_servers) as peer:
        answer = peer.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
    assert answer.responses[0].error_code == 0, answer


def latencies(peer: Peer, request: bytes, until) -> list[float]:
    """Seconds of each request, one by one, until `until` says so."""
    found = []
    while not until(len(found)):
        begun = time.perf_counter()
        peer.send_bytes(request)
        peer.receive_frame()
        found.append(time.perf_counter() - begun)
    return found


def is_compacted(broker: BrokerProcess, topic: str) -> bool:
    try:
        return (broker.data_dir / "topics" / f"{topic}-0" / "cleaner").read_bytes()[:2] != b"0 "
    except FileNotFoundError:
        return False


def latency(flush: str, dirty_bytes: int, rounds: int) -> tuple[list[float], list[float], float]:
    """(latencies without, latencies with, MB of log compacted per second meanwhile)."""
    quiet: list[float] = []
    busy: list[float] = []
    seconds = 0.0
    request = raw.produce_request("plain", batch.build([(None, b"x" * 100)] * 10, timestamp_ms=raw.TIMESTAMP_MS))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        flags = ("--storage-flush", flush, "--storage-cleaner-interval-ms", "50", "--log-level", "warning")
        with BrokerProcess(Path(directory) / "data", *flags) as broker, Peer(broker.bootstrap_servers) as peer:
            raw.create_topic(broker.bootstrap_servers, "plain")
            latencies(peer, request, lambda count: count >= 500)
            for number in range(rounds):
                topic = f"dirty-{number}"
                raw.create_topic(
                    broker.bootstrap_servers,
                    topic,
                    cleanup_policy="compact",
                    segment_bytes=str(16 << 20),
                    segment_ms="500",
                    min_cleanable_dirty_ratio="1",
                )
                for made in batches(dirty_bytes, 200, 20_000, 0, int(time.time() * 1000)):
                    peer.send_bytes(raw.produce_request(topic, made))
                    peer.receive_frame()
                time.sleep(1.0)
                end = time.perf_counter() + 3.0
                quiet += latencies(peer, request, lambda _, end=end: time.perf_counter() > end)
                alter(broker.bootstrap_servers, topic, min_cleanable_dirty_ratio="0")
                begun = time.perf_counter()
                busy += latencies(
                    peer, request, lambda count, topic=topic: count % 20 == 0 and is_compacted(broker, topic)
                )
                seconds += time.perf_counter() - begun
            broker.stop()
    return quiet, busy, rounds * dirty_bytes / seconds / MB


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main(megabytes: int = 64, rounds: int = 3, flush: str = "ack,os") -> None:
    """Measure, and print two tables."""
    _row("value", "codec", "keys", "MB/s", "records/s", "left")
    _row(*["---"] * 6)
    for value_bytes, codec, keys in CASES:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            rate, records, left = speed(Path(directory), megabytes << 20, value_bytes, keys, codec)
        _row(f"{value_bytes} B", CODECS[codec], keys, f"{rate:.0f}", f"{records:,.0f}", f"{left:.1%}")
    print()
    _row("flush", "p50 without", "p50 with", "p99 without", "p99 with", "ratio of p99", "compacted MB/s")
    _row(*["---"] * 7)
    for level in flush.split(","):
        quiet, busy, rate = latency(level, megabytes << 20, rounds)
        p50, p99 = ([percentile(found, share) * 1000 for found in (quiet, busy)] for share in (0.5, 0.99))
        times = [f"{milliseconds:.2f} ms" for milliseconds in (*p50, *p99)]
        _row(level, *times, f"{p99[1] / p99[0]:.2f}", f"{rate:.0f}")


def _row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
