"""Fill logs and read them back in tests; an oracle that knows what was acknowledged.

Rules:
- It uses a log as the broker does: `append`, `begin_sync`, `run`, `end_sync`, `locate`, `read_now`, `read`.
- Values carry their own number, so that a misplaced record is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.errors import CorruptionError
from headrace.storage.compaction import Compaction, survey
from headrace.storage.swapping import complete, finish, install
from headrace.wire import batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.storage.log import Appended, Log

MAX_BATCH_BYTES = 64 * 1024 * 1024


def make_batch(
    values: Sequence[bytes | None], *, timestamp_ms: int = 1, producer_id: int = -1, sequence: int = -1
) -> bytes:
    """One batch as a producer sends it."""
    epoch = -1 if producer_id < 0 else 0
    return batch.build(
        [(None, value) for value in values],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def append(log: Log, *batches: bytes, leader_epoch: int = 0, now_ms: int = 1) -> Appended:
    """Check and append in one step, as Produce does."""
    data = bytearray(b"".join(batches))
    headers = batch.check(bytes(data), max_batch_bytes=MAX_BATCH_BYTES)
    return log.append(data, headers, leader_epoch=leader_epoch, now_ms=now_ms)


def sync(log: Log) -> None:
    """Make everything durable, in this thread."""
    pending = log.begin_sync()
    if pending is not None:
        pending.run()
        log.end_sync(pending)


def compact(log: Log, *, now_ms: int, stable_offset: int | None = None, map_bytes: int = 1 << 20) -> Compaction | None:
    """One pass of compaction in this thread, if there is enough to do. None if there is not."""
    log.checkpoint()
    dirt = survey(log, now_ms, log.end_offset if stable_offset is None else stable_offset)
    if not dirt.is_due(log.config.min_cleanable_dirty_ratio):
        return None
    work = Compaction(log, dirt, now_ms=now_ms, map_bytes=map_bytes)
    while not work.finished:
        swap = work.step(lambda: True)
        if swap is not None:
            assert install(log, swap, now_ms), "the log has changed under the pass"
            sync(log)
            swap.run()
            complete(log, swap)
            sync(log)
    finish(log, work.first_dirty_offset, work.gone)
    sync(log)
    return work


def read_bytes(log: Log, *, cold: bool = False, max_bytes: int = 4096) -> bytes:
    """Every batch from the start to the end of the log, as a consumer would get them."""
    found = bytearray()
    offset = log.start_offset
    while offset < log.end_offset:
        span = log.locate(offset, max_bytes, log.end_offset)
        assert span is not None, f"nothing at {offset}, although the log ends at {log.end_offset}"
        data = None if cold else span.read_now()
        if data is None:
            data = span.read()
        assert span.next_offset > offset, "a span that leads nowhere"
        found += data
        offset = span.next_offset
    return bytes(found)


def records_in(data: bytes) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in some batches. Raises CorruptionError if a batch is damaged or partial."""
    found: list[tuple[int, bytes | None]] = []
    end = 0
    for header in batch.headers(data):
        if not batch.crc_matches(data, header):
            raise CorruptionError("a damaged batch was served")
        found += [(record.offset, record.value) for record in batch.records(data, header)]
        end = header.position + header.size
    if end != len(data):
        raise CorruptionError("bytes that are no batch were served")
    return found


def read_records(log: Log, *, cold: bool = False) -> list[tuple[int, bytes | None]]:
    return records_in(read_bytes(log, cold=cold))


@dataclass(slots=True)
class Oracle:
    """What a log was told, and what it has acknowledged."""

    values: dict[int, bytes] = field(default_factory=dict)  # offset -> value; later appends replace lost ones
    acknowledged: int = 0  # everything below is durable, says the log

    def appended(self, where: Appended, values: Sequence[bytes]) -> None:
        assert where.last_offset - where.base_offset + 1 == len(values)
        for delta, value in enumerate(values):
            self.values[where.base_offset + delta] = value

    def flushed(self, log: Log) -> None:
        assert log.flushed_offset >= self.acknowledged, "the flushed offset went back"
        assert log.flushed_offset <= log.end_offset
        self.acknowledged = log.flushed_offset

    def check(self, log: Log) -> None:
        """Nothing acknowledged is lost; what is there is a prefix of what was appended, each record in its place."""
        assert log.end_offset >= self.acknowledged, (
            f"the log ends at {log.end_offset}, but everything below {self.acknowledged} was acknowledged"
        )
        for cold in (False, True):
            records = read_records(log, cold=cold)
            offsets = [offset for offset, _ in records if offset >= log.start_offset]
            assert offsets == list(range(log.start_offset, log.end_offset)), "offsets are missing or doubled"
            for offset, value in records:
                assert value == self.values[offset], f"offset {offset} holds another record"

    def forget_from(self, end_offset: int) -> None:
        """What lies above was lost in a crash: its offsets will be given to others."""
        self.values = {offset: value for offset, value in self.values.items() if offset < end_offset}
