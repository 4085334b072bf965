"""The metrics page: plain numbers of the broker, read when they are asked for, as Prometheus families.

Rules:
- `read` runs on the loop, the owner of the numbers, and only copies them: a few microseconds per partition, and others
  have their turns meanwhile. `families` and `encode`, ten times dearer, run in a worker.
- Names follow Prometheus: seconds and bytes, `_total` for counters. Labels are topics, partitions, groups, APIs; never
  something a client makes up.
- A partition that a group has committed to but that is gone has no lag.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from headrace.core.counters import Counters, Histogram
from headrace.core.errors import ErrorCode
from headrace.gateways.http import cluster_metrics
from headrace.gateways.http.cluster_metrics import ClusterNumbers
from headrace.gateways.http.observed import Observed

_PARTITION: Final = ["topic", "partition"]
AT_ONCE: Final = 64  # rows that are copied before the clock is looked at
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Numbers:
    """One reading of a broker."""

    ready: bool
    counters: Counters
    partitions: list[tuple[str, int, int, int, int, int]]  # topic, index, start, end, high watermark, bytes
    led: list[tuple[str, int, int, int]]  # of those that this node leads: topic, index, replicas, in sync
    group_offsets: list[tuple[str, str, int, int]]  # group, topic, index, committed offset
    group_states: dict[str, int]
    cluster: ClusterNumbers


async def read(service: Observed) -> Numbers:
    """Copy what other requests might change meanwhile."""
    counters = service.counters
    partitions = list(service.partitions)
    return Numbers(
        ready=service.ready and not service.faults,
        counters=replace(
            counters,
            requests=dict(counters.requests),
            errors=dict(counters.errors),
            topics=dict(counters.topics),
            cleaner=replace(counters.cleaner),
        ),
        partitions=[
            (part.topic, part.index, log.start_offset, log.end_offset, part.high_watermark, log.size_bytes)
            async for part in _in_turns(service, partitions)
            for log in (part.log,)
        ],
        led=[
            (part.topic, part.index, len(part.record.replicas), part.in_sync)
            async for part in _in_turns(service, partitions)
            if part.leads and part.record is not None
        ],
        group_offsets=[row async for row in _in_turns(service, service.groups.group_offsets())],
        group_states={str(state): count for state, count in service.groups.states().items()},
        cluster=cluster_metrics.read(service),
    )


async def _in_turns(service: Observed, items: Iterable[T]) -> AsyncIterator[T]:
    turns = service.turns
    for number, item in enumerate(items, 1):
        yield item
        if number % AT_ONCE == 0 and turns.used_up:
            await turns.rest()


def families(numbers: Numbers, version: str) -> list[Metric]:
    """Everything about this broker."""
    return [
        GaugeMetricFamily("headrace_ready", "1 while the broker serves without a fault.", value=float(numbers.ready)),
        _version(version),
        *_requests(numbers.counters),
        *_topics(numbers.counters),
        *_connections(numbers.counters),
        *_disk(numbers.counters),
        *_cleaner(numbers.counters),
        *_partitions(numbers),
        *_groups(numbers),
        *cluster_metrics.families(numbers.cluster),
    ]


def _version(version: str) -> Metric:
    family = GaugeMetricFamily("headrace_build", "The version that runs.", labels=["version"])
    family.add_metric([version], 1)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    seen = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), tuple(histogram.counts), strict=True):
        seen += count
        buckets.append((bound, seen))
    return buckets


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(histogram), sum_value=histogram.total)


def _requests(counters: Counters) -> Iterator[Metric]:
    seconds = HistogramMetricFamily(
        "headrace_request_seconds", "From a request's last byte to its answer, waiting included.", labels=["api"]
    )
    for api, histogram in counters.requests.items():
        seconds.add_metric([api], _buckets(histogram), histogram.total)
    yield seconds
    errors = CounterMetricFamily("headrace_errors", "Error codes that were answered.", labels=["api", "code"])
    for (api, code), count in counters.errors.items():
        errors.add_metric([api, _code(code)], count)
    yield errors


def _code(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)


def _topics(counters: Counters) -> Iterator[Metric]:
    for field, text in (
        ("records_in", "Records appended."),
        ("bytes_in", "Bytes of record batches appended."),
        ("bytes_out", "Bytes of record batches fetched."),
        ("produce_requests", "Produce requests that named the topic."),
        ("fetch_requests", "Fetch requests that named the topic."),
    ):
        family = CounterMetricFamily(f"headrace_topic_{field}", text, labels=["topic"])
        for topic, traffic in counters.topics.items():
            family.add_metric([topic], getattr(traffic, field))
        yield family


def _connections(counters: Counters) -> Iterator[Metric]:
    yield GaugeMetricFamily("headrace_connections", "Open Kafka connections.", value=counters.connections)
    for name, text, value in (
        ("headrace_connections_opened", "Kafka connections accepted.", counters.connections_total),
        ("headrace_connections_refused", "Kafka connections refused for want of room.", counters.connections_refused),
        (
            "headrace_protocol_errors",
            "Connections closed because the peer broke the protocol.",
            counters.protocol_errors,
        ),
    ):
        yield CounterMetricFamily(name, text, value=value)
    yield from _memory(counters)
    yield _histogram("headrace_loop_delay_seconds", "How late timers fire.", counters.loop_delay_seconds)


def _memory(counters: Counters) -> Iterator[Metric]:
    limit = GaugeMetricFamily("headrace_memory_limit_bytes", "Memory for requests or answers.", labels=["kind"])
    used = GaugeMetricFamily("headrace_memory_used_bytes", "Requests or answers in flight.", labels=["kind"])
    waiting = GaugeMetricFamily("headrace_memory_waiting", "Connections that wait for memory.", labels=["kind"])
    closed = CounterMetricFamily(
        "headrace_memory_closed", "Connections closed that did not move while others waited.", labels=["kind"]
    )
    for kind, pool in counters.memory.items():
        limit.add_metric([kind], pool.limit_bytes)
        used.add_metric([kind], pool.used_bytes)
        waiting.add_metric([kind], pool.waiting)
        closed.add_metric([kind], pool.closed)
    yield from (limit, used, waiting, closed)


def _disk(counters: Counters) -> Iterator[Metric]:
    yield _histogram("headrace_sync_seconds", "Time of one group commit (fdatasync).", counters.sync_seconds)
    yield _histogram("headrace_sync_logs", "Logs that one group commit covered.", counters.sync_logs)


def _cleaner(counters: Counters) -> Iterator[Metric]:
    cleaner = counters.cleaner
    for name, text, value in (
        ("headrace_cleaner_passes", "Compactions of a log that were finished.", cleaner.passes),
        ("headrace_cleaner_faults", "Logs that could not be compacted.", cleaner.faults),
        ("headrace_cleaner_read_bytes", "Bytes that compaction has read.", cleaner.bytes_read),
        ("headrace_cleaner_written_bytes", "Bytes that compaction has written.", cleaner.bytes_written),
    ):
        yield CounterMetricFamily(name, text, value=value)
    yield GaugeMetricFamily("headrace_cleaner_last_seconds", "Time of the last compaction.", value=cleaner.last_seconds)
    ratios = GaugeMetricFamily("headrace_partition_dirty_ratio", "Share that is not compacted yet.", labels=_PARTITION)
    sizes = GaugeMetricFamily("headrace_partition_cleanable_bytes", "Bytes to compact.", labels=_PARTITION)
    for (topic, index), found in cleaner.cleanable.items():
        ratios.add_metric([topic, str(index)], found.dirty_ratio)
        sizes.add_metric([topic, str(index)], found.dirty_bytes)
    yield from (ratios, sizes)


def _partitions(numbers: Numbers) -> Iterator[Metric]:
    starts = GaugeMetricFamily("headrace_partition_start_offset", "First offset that is kept.", labels=_PARTITION)
    ends = GaugeMetricFamily("headrace_partition_end_offset", "Offset of the next record.", labels=_PARTITION)
    marks = GaugeMetricFamily("headrace_partition_high_watermark", "Consumers see what lies below.", labels=_PARTITION)
    sizes = GaugeMetricFamily("headrace_partition_size_bytes", "Bytes of the partition's log.", labels=_PARTITION)
    for topic, index, start, end, mark, size in numbers.partitions:
        labels = [topic, str(index)]
        starts.add_metric(labels, start)
        ends.add_metric(labels, end)
        marks.add_metric(labels, mark)
        sizes.add_metric(labels, size)
    yield from (starts, ends, marks, sizes)
    replicas = GaugeMetricFamily(
        "headrace_partition_replicas", "Replicas of a partition that this node leads.", labels=_PARTITION
    )
    in_sync = GaugeMetricFamily(
        "headrace_partition_in_sync_replicas", "Those of them that have all that is committed.", labels=_PARTITION
    )
    for topic, index, count, synced in numbers.led:
        replicas.add_metric([topic, str(index)], count)
        in_sync.add_metric([topic, str(index)], synced)
    lacking = sum(synced < count for _, _, count, synced in numbers.led)
    text = "Partitions that this node leads and that not all replicas are in sync with."
    yield from (replicas, in_sync, GaugeMetricFamily("headrace_under_replicated_partitions", text, value=lacking))


def _groups(numbers: Numbers) -> Iterator[Metric]:
    marks = {(topic, index): mark for topic, index, _, _, mark, _ in numbers.partitions}
    lag = GaugeMetricFamily(
        "headrace_group_lag", "Records that a group has not committed yet.", labels=["group", *_PARTITION]
    )
    for group, topic, index, committed in numbers.group_offsets:
        mark = marks.get((topic, index))
        if mark is not None and committed >= 0:
            lag.add_metric([group, topic, str(index)], max(0, mark - committed))
    yield lag
    states = GaugeMetricFamily("headrace_groups", "Consumer groups by state.", labels=["state"])
    for state, count in numbers.group_states.items():
        states.add_metric([state], count)
    yield states


class Page:
    """Encodes the broker's families and the process's, in the format that the scraper asks for."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def encode(self, numbers: Numbers, accept: str) -> tuple[bytes, str]:
        """Body and content type."""
        encoder, content_type = choose_encoder(accept)
        collected = [*families(numbers, self._version), *self._process.collect()]
        return encoder(_Collected(collected)), content_type


class _Collected:
    """What an encoder takes for a registry."""

    def __init__(self, collected: list[Metric]) -> None:
        self._collected = collected

    def collect(self) -> list[Metric]:
        return self._collected
