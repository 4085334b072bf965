"""The metrics page: plain numbers of the broker, read when they are asked for, as Prometheus families.

Rules:
- `families` runs on the loop, the owner of the numbers; `encode` may run in a worker.
- Names follow Prometheus: seconds and bytes, `_total` for counters. Labels are topics, partitions, groups, APIs; never
  something a client makes up.
- A partition that a group has committed to but that is gone has no lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from headrace.core.counters import Counters, Histogram
from headrace.core.errors import ErrorCode
from headrace.gateways.http.observed import Observed

_PARTITION: Final = ["topic", "partition"]


def families(service: Observed, version: str) -> list[Metric]:
    """Everything about this broker."""
    return [
        GaugeMetricFamily("headrace_ready", "1 while the broker serves without a fault.", value=float(_ready(service))),
        _version(version),
        *_requests(service.counters),
        *_topics(service.counters),
        *_connections(service.counters),
        *_disk(service.counters),
        *_partitions_and_groups(service),
    ]


def _ready(service: Observed) -> bool:
    return service.ready and not service.faults


def _version(version: str) -> Metric:
    family = GaugeMetricFamily("headrace_build", "The version that runs.", labels=["version"])
    family.add_metric([version], 1)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    seen = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
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
    yield _histogram("headrace_loop_delay_seconds", "How late timers fire.", counters.loop_delay_seconds)


def _disk(counters: Counters) -> Iterator[Metric]:
    yield _histogram("headrace_sync_seconds", "Time of one group commit (fdatasync).", counters.sync_seconds)
    yield _histogram("headrace_sync_logs", "Logs that one group commit covered.", counters.sync_logs)


def _partitions_and_groups(service: Observed) -> Iterator[Metric]:
    starts = GaugeMetricFamily("headrace_partition_start_offset", "First offset that is kept.", labels=_PARTITION)
    ends = GaugeMetricFamily("headrace_partition_end_offset", "Offset of the next record.", labels=_PARTITION)
    marks = GaugeMetricFamily("headrace_partition_high_watermark", "Consumers see what lies below.", labels=_PARTITION)
    sizes = GaugeMetricFamily("headrace_partition_size_bytes", "Bytes of the partition's log.", labels=_PARTITION)
    reached: dict[tuple[str, int], int] = {}
    for partition in service.partitions:
        log = partition.log
        labels = [partition.topic, str(partition.index)]
        starts.add_metric(labels, log.start_offset)
        ends.add_metric(labels, log.end_offset)
        marks.add_metric(labels, partition.high_watermark)
        sizes.add_metric(labels, log.size_bytes)
        reached[partition.topic, partition.index] = partition.high_watermark
    yield from (starts, ends, marks, sizes)
    lag = GaugeMetricFamily(
        "headrace_group_lag", "Records that a group has not committed yet.", labels=["group", *_PARTITION]
    )
    for group, topic, index, committed in service.groups.group_offsets():
        mark = reached.get((topic, index))
        if mark is not None and committed >= 0:
            lag.add_metric([group, topic, str(index)], max(0, mark - committed))
    yield lag
    states = GaugeMetricFamily("headrace_groups", "Consumer groups by state.", labels=["state"])
    for state, count in service.groups.states().items():
        states.add_metric([str(state)], count)
    yield states


class Page:
    """Encodes families together with those of the process, in the format that the scraper asks for."""

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def encode(self, broker: Iterable[Metric], accept: str) -> tuple[bytes, str]:
        """Body and content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(_Collected([*broker, *self._process.collect()])), content_type


class _Collected:
    """What an encoder takes for a registry."""

    def __init__(self, collected: list[Metric]) -> None:
        self._collected = collected

    def collect(self) -> list[Metric]:
        return self._collected
