"""Transactions in tests: batches of transactional producers, and a reader that leaves out what was aborted.

Rules:
- The reader works as Kafka's clients do: from one answer it knows who aborted a transaction, and where that began;
  it skips that producer's transactional batches from there on until it meets the abort marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.storage.transactions import read_marker
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.storage.log import Log


def make_transactional(
    values: Sequence[bytes], *, producer_id: int, epoch: int = 0, sequence: int = 0, timestamp_ms: int = 1
) -> bytes:
    """One batch as a transactional producer sends it."""
    return batch.build(
        [(None, value) for value in values],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def committed_in(data: bytes, aborted: Iterable[tuple[int, int]], *, offset: int = 0) -> list[tuple[int, bytes | None]]:
    """(offset, value) of the records from `offset` on that a reader of committed records takes from one answer."""
    waiting = sorted((first, producer_id) for producer_id, first in aborted)
    skipped: set[int] = set()
    found: list[tuple[int, bytes | None]] = []
    for header in batch.headers(data):
        last_offset = header.base_offset + header.last_offset_delta
        while waiting and waiting[0][0] <= last_offset:
            skipped.add(waiting.pop(0)[1])
        if batch.is_control(header):
            marker = read_marker(data, header)
            if marker is not None and not marker.commit:
                skipped.discard(header.producer_id)
        elif not (batch.is_transactional(header) and header.producer_id in skipped):
            found += [(record.offset, record.value) for record in batch.records(data, header)]
    return [(at, value) for at, value in found if at >= offset]


def read_committed(
    log: Log, offset: int, *, high_watermark: int, max_bytes: int = 4096
) -> list[tuple[int, bytes | None]]:
    """What such a reader gets from `offset` on, fetch by fetch."""
    found: list[tuple[int, bytes | None]] = []
    stable_offset = log.last_stable_offset(high_watermark)
    while offset < stable_offset:
        span = log.locate(offset, max_bytes, stable_offset)
        assert span is not None, f"nothing at {offset}, although everything below {stable_offset} is stable"
        data = span.read()
        found += committed_in(data, log.aborted_between(offset, span.next_offset), offset=offset)
        offset = span.next_offset
    return found
