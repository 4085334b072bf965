"""What looking at records costs: `headrace.record.validation` at each level, with each codec, in turns, one run.

    python -m bench.validation [--seconds 1] [--rounds 3] [--raw | --client]

`header` is a broker that looks at headers and checksums only: the others are measured against it. The broker
acknowledges from the page cache (level: cached). Values are 100 bytes of words from a small vocabulary, so that codecs
have something to do.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from headrace.testing.load import cases, raw
from headrace.testing.load.results import rates
from headrace.wire import batch

LEVELS = ("header", "ends", "full")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SHAPES = {"1 record": 1, "145 records": 145, "9,360 records": 9360}
CONNECTIONS, IN_FLIGHT = 2, 4
VALUE_BYTES = 100


def values(count: int) -> list[bytes]:
    dice = random.Random(1)
    words = [b"%x" % dice.getrandbits(32) for _ in range(2000)]
    return [b" ".join(dice.choices(words, k=VALUE_BYTES // 8 + 1))[:VALUE_BYTES] for _ in range(count)]


def raw_cases(target: cases.Target, seconds: float, rounds: int) -> Iterator[tuple[str, ...]]:
    """CPU microseconds of the broker for a request: the median of some rounds."""
    for shape, count in SHAPES.items():
        items: list[tuple[None, bytes]] = [(None, value) for value in values(count)]
        for codec_name, codec in CODECS.items():
            records = batch.build(items, timestamp_ms=raw.TIMESTAMP_MS, codec=codec)
            found: dict[str, list[float]] = {level: [] for level in LEVELS}
            for number in range(rounds):
                for level in LEVELS:
                    topic = f"raw-{count}-{codec_name}-{level}-{number}"
                    configs = {"headrace_record_validation": level, "retention_bytes": "67108864"}
                    raw.create_topic(target.bootstrap_servers, topic, **configs)
                    request = raw.produce_request(topic, records)
                    answers = raw.ProduceAnswers.learn(target.bootstrap_servers, topic, request)
                    options = {
                        "host": target.host,
                        "port": target.port,
                        "request": request,
                        "take": answers.take,
                        "in_flight": IN_FLIGHT if count > 1 else 32,
                        "connections": CONNECTIONS,
                        "seconds": seconds,
                    }
                    tallies, cpu_s = target.load(raw.pump, options)
                    found[level].append(rates(tallies, cpu_s=cpu_s)["cpu_us_per_request"])
            yield ("raw, " + shape, codec_name, *_ratios({level: statistics.median(found[level]) for level in LEVELS}))


def client_cases(target: cases.Target, seconds: float, rounds: int) -> Iterator[tuple[str, ...]]:
    """Messages per second of one confluent-kafka producer, which shares the processors with the broker."""
    items = values(1000)
    for codec_name in CODECS:
        found: dict[str, list[float]] = {level: [] for level in LEVELS}
        for number in range(rounds):
            for level in LEVELS:
                topic = f"client-{codec_name}-{level}-{number}"
                configs = {"headrace_record_validation": level, "retention_bytes": "67108864"}
                raw.create_topic(target.bootstrap_servers, topic, **configs)
                found[level].append(_produce(target, topic, codec_name, items, seconds))
        yield ("client, messages/s", codec_name, *_ratios({level: max(found[level]) for level in LEVELS}))


def _produce(target: cases.Target, topic: str, codec: str, items: list[bytes], seconds: float) -> float:
    client = Producer(
        {
            "bootstrap.servers": target.bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100_000,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    sent, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for value in items:
            try:
                client.produce(topic, value, partition=0)
                sent += 1
            except BufferError:
                client.poll(0.001)
        client.poll(0)
    if client.flush(60):
        raise SystemExit("records were not acknowledged")
    return sent / (time.perf_counter() - begun)


def _ratios(found: dict[str, float]) -> tuple[str, ...]:
    base = found["header"]
    return tuple(f"{found[level]:,.1f} ({found[level] / base - 1:+.0%})" for level in LEVELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--client", action="store_true")
    given = parser.parse_args()
    both = given.raw == given.client
    print("| case | codec | header | ends | full |\n| --- | --- | --: | --: | --: |")
    with cases.broker(cases.Plan(), "os") as target:
        if both or given.raw:
            for row in raw_cases(target, given.seconds, given.rounds):
                print("| " + " | ".join(row) + " |", flush=True)
        if both or given.client:
            for row in client_cases(target, given.seconds, given.rounds):
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
