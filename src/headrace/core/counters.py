"""Plain numbers that the hot path adds to; the metrics page reads them when it is asked.

Rule: adding must cost well under a microsecond. No labels, no locks: one thread owns them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

LATENCY_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Histogram:
    """Counts per bucket; `counts` has one more entry than `bounds`, for what lies beyond the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Traffic:
    """What went in and out of one topic."""

    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0


@dataclass(frozen=True, slots=True)
class Cleanable:
    """What compaction finds in one partition."""

    dirty_ratio: float
    dirty_bytes: int
    first_dirty_offset: int


@dataclass(slots=True)
class Cleaner:
    """What compaction has done."""

    passes: int = 0
    faults: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_seconds: float = 0.0
    cleanable: dict[tuple[str, int], Cleanable] = field(default_factory=dict)  # replaced as a whole


@dataclass(slots=True)
class ClusterCounters:
    """What happened between this node and the others."""

    in_sync_shrinks: int = 0
    in_sync_expands: int = 0
    leaders_gained: int = 0
    fetcher_errors: int = 0
    forwarded: int = 0


@dataclass(slots=True)
class PoolCounters:
    """Memory for requests, or for answers, in flight."""

    limit_bytes: int = 0
    used_bytes: int = 0
    waiting: int = 0  # connections that want more than they may have
    closed: int = 0  # connections that held much and did not move while others waited


@dataclass(slots=True)
class Counters:
    """One broker's numbers."""

    requests: dict[str, Histogram] = field(default_factory=dict)
    errors: dict[tuple[str, int], int] = field(default_factory=dict)
    topics: dict[str, Traffic] = field(default_factory=dict)
    connections: int = 0
    connections_total: int = 0
    connections_refused: int = 0
    protocol_errors: int = 0
    memory: dict[str, PoolCounters] = field(default_factory=dict)  # by kind
    sync_seconds: Histogram = field(default_factory=Histogram)
    sync_logs: Histogram = field(default_factory=lambda: Histogram(BATCH_SIZES))
    loop_delay_seconds: Histogram = field(default_factory=Histogram)
    cleaner: Cleaner = field(default_factory=Cleaner)
    cluster: ClusterCounters = field(default_factory=ClusterCounters)
