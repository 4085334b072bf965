"""Compaction: of each key only the newest record stays.

Rules (Kafka's):
- Offsets never change, nor does a batch's range of offsets; a log only gets gaps. The last batch of every compacted
  segment stays, if only as an empty one, so that a segment still ends where the next one begins.
- Only sealed and durable segments below the last stable offset are touched, and only those whose newest record is older
  than `min.compaction.lag.ms`.
- A pass first reads the dirty part of the log and notes the newest offset of each key, as far as memory allows; then it
  copies the log from its start, without records that are older than noted. What memory had no room for stays dirty.
- A record without a value deletes its key. Its batch gets a delete horizon when it is first compacted; after that
  moment, which is `delete.retention.ms` later, the next pass drops it (KIP-534).
- The last batch of every producer that the log knows stays, if only as an empty one: it tells the sequence to come.
- Aborted records go; markers go as `fates` says. Records without a key have no place here and go.
- A batch that cannot be opened stays as it is. One that is damaged ends the pass: nothing bad gets a good checksum.

A pass is made by the log's owner and stepped by worker threads, one at a time. It reads segments that never change and
writes files that nobody knows. What it has made, `swapping` puts in place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from headrace.core.errors import ApiError, CorruptionError, StorageError
from headrace.storage.fates import Fates
from headrace.storage.keymap import SHORT_BYTES, KeyMap
from headrace.storage.segment import Segment, walk
from headrace.storage.swapping import Swap, cleaned_path
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.core.ports import File
    from headrace.storage.log import Log
    from headrace.wire.batch import BatchHeader, Glimpse

WRITE_BYTES: Final = 1024 * 1024  # gathered before they are written
SYNC_BYTES: Final = 1 * 1024 * 1024  # written before they are synced: no large sync gets in the way of small ones
OPENED_BYTES: Final = 32 * 1024 * 1024  # a batch that opens to more, or has more records, stays as it is
OPENED_RECORDS: Final = 200_000
SEGMENTS_MAX: Final = 256  # that become one: the space that they take is free only then
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Dirt:
    """How much there is to do in a log."""

    first_dirty_offset: int
    limit_offset: int  # nothing from here on is touched
    clean_bytes: int
    dirty_bytes: int  # that may be compacted now
    overdue: bool  # a record has waited for longer than `max.compaction.lag.ms`

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > min_ratio)


def survey(log: Log, now_ms: int, stable_offset: int) -> Dirt:
    """Look at a log's segments; reads nothing. For its owner."""
    config = log.config
    first_dirty = max(log.mark.first_dirty_offset, log.start_offset)
    if first_dirty > log.end_offset:
        first_dirty = log.start_offset
    limit_offset = log.start_offset
    clean_bytes = dirty_bytes = 0
    overdue = False
    for segment in log._shelf.segments:
        if not segment.sealed or segment.end_offset > min(stable_offset, log.recovery_point):
            break
        if segment.end_offset > first_dirty:
            if config.min_compaction_lag_ms and segment.max_timestamp > now_ms - config.min_compaction_lag_ms:
                break
            dirty_bytes += segment.size
            overdue |= 0 <= segment.first_timestamp < now_ms - config.max_compaction_lag_ms
        else:
            clean_bytes += segment.size
        limit_offset = segment.end_offset
    return Dirt(first_dirty, limit_offset, clean_bytes, dirty_bytes, overdue)


def lags_behind(log: Log) -> bool:
    """Whether sealed segments must be made durable before they can be compacted: by a sync with a checkpoint."""
    return log.recovery_point < log._shelf.active.base_offset


class Compaction:
    """One pass over one log."""

    def __init__(self, log: Log, dirt: Dirt, *, now_ms: int, map_bytes: int) -> None:
        """For the log's owner. `dirt` is fresh."""
        self.bytes_read = 0
        self.bytes_written = 0
        self.first_dirty_offset = dirt.first_dirty_offset  # when the pass is over: where the next one begins
        self.gone: set[int] = set()  # offsets of markers that have lost their transaction
        self.finished = False
        self._log_path = log.path
        self._segments = [
            segment for segment in log._shelf.segments if segment.sealed and segment.end_offset <= dirt.limit_offset
        ]
        self._sizes = {segment: segment.size for segment in self._segments}
        self._files = log._files
        self._config = log.config
        self._epochs = log.epochs
        self._mark = log.mark._replace(gaps_below=max(log.mark.gaps_below, dirt.limit_offset))
        self._dirt = dirt
        self._now_ms = now_ms
        self._aborted = log.producers.transactions.aborted.entries()
        self._aborted_markers = {marker for _, marker, _ in self._aborted}
        self._last_sent = {
            producer_id: (known.batches[-1].last_offset if known.batches else -1, known.epoch)
            for producer_id, known in log.producers.items()
        }
        self._keys = KeyMap(map_bytes)
        self._latest = dirt.first_dirty_offset - 1  # the map knows all keys up to this offset
        self._full = False
        self._fates = Fates(self._aborted)
        self._output: _Output | None = None
        self._steps: Generator[Swap | None, None, None] = self._run()

    def step(self, go_on: Callable[[], bool]) -> Swap | None:
        """Work until `go_on` says no, a segment is ready, or all is done (see `finished`). Blocking.

        Raises StorageError; then the pass is to be abandoned.
        """
        for swap in self._steps:
            if swap is not None or not go_on():
                return swap
        self.finished = True
        return None

    @property
    def overtaken(self) -> bool:
        """Whether segments were removed or cut since the pass began."""
        return any(segment.removed or segment.size != size for segment, size in self._sizes.items())

    def abandon(self) -> None:
        """Remove what was not handed out. Blocking."""
        self._steps.close()
        if self._output is not None:
            self._output.discard()

    def _run(self) -> Generator[Swap | None, None, None]:
        yield from self._note_keys()
        end_offset = self._latest + 1
        segments = [segment for segment in self._segments if segment.base_offset < end_offset]
        for number, segment in enumerate(segments):
            if self._output is None:
                self._output = _Output(self, segment)
            else:
                yield from self._output.join(segment)
            following = segments[number + 1] if number + 1 < len(segments) else None
            if (yield from self._filter(segment, self._output, following)):
                continue
            swap = self._output.close()
            self._output = None
            if swap is not None:
                yield swap
        self.first_dirty_offset = end_offset

    # ------------------------------------------------------------------ the newest offset of each key

    def _note_keys(self) -> Iterator[None]:
        first_dirty = self._dirt.first_dirty_offset
        fates = Fates(self._aborted)
        for segment in self._segments:
            if segment.end_offset <= first_dirty:
                continue
            for _, header, data in self.checked_batches(segment, self._sizes[segment]):
                last_offset = header.base_offset + header.last_offset_delta
                if last_offset < first_dirty:
                    continue
                if batch.is_control(header):
                    fates.ends_nothing(header)
                elif not fates.is_aborted(header) and header.count <= OPENED_RECORDS:
                    yield from self._note_batch(data, header, first_dirty)
                    if self._full:
                        return
                self._latest = last_offset
                yield
            self._latest = segment.end_offset - 1

    def _note_batch(self, data: bytes, header: BatchHeader, first_dirty: int) -> Iterator[None]:
        put = self._keys.put
        try:
            for glimpses in batch.skim(batch.payload_of(data, header, max_bytes=OPENED_BYTES), header):
                for _, _, _, _, offset, key, _ in glimpses:
                    if key is not None and offset >= first_dirty:
                        if not put(key, offset):
                            self._full = True
                            return
                        self._latest = offset
                yield
        except ApiError:
            return  # it stays as it is

    # ------------------------------------------------------------------ what stays

    def _filter(self, segment: Segment, output: _Output, following: Segment | None) -> Generator[None, None, bool]:
        """Copy what stays of a segment. True if `following` may go into the same output."""
        joins = False
        for position, header, data in self.checked_batches(segment, self._sizes[segment]):
            is_last = position + header.size == segment.size
            if is_last and following is not None:
                joins = output.has_room_for(header.size, following)
            if batch.is_control(header):
                made = self._marker(data, header)
            elif self._fates.is_aborted(header):
                made = b""
            elif header.base_offset > self._latest or header.count > OPENED_RECORDS:
                made = None
            else:
                made = yield from self._records(data, header)
            if made == b"" and ((is_last and not joins) or self._is_last_sent(header)):
                made = batch.repack(header, b"", ()) if header.count else None
            if made is None:
                output.keep(header, data)
            else:
                yield from output.replace(position, made)
            yield from output.flush_if_large()
            yield
        return joins

    def _is_last_sent(self, header: BatchHeader) -> bool:
        """Whether what is known of a producer would be lost with this batch."""
        if header.producer_id < 0:
            return False
        last_offset, producer_epoch = self._last_sent.get(header.producer_id, (-1, -1))
        if last_offset >= 0:
            return header.base_offset + header.last_offset_delta == last_offset
        return batch.is_control(header) and header.producer_epoch == producer_epoch

    def _marker(self, data: bytes, header: BatchHeader) -> bytes | None:
        """What becomes of a marker: None if it stays as it is, nothing, or another batch."""
        if not self._fates.ends_nothing(header):
            return None
        is_listed = header.base_offset in self._aborted_markers
        if is_listed:  # as long as readers are told of the transaction, they must find its end
            self.gone.add(header.base_offset)
        horizon_ms = batch.horizon_of(header)
        if not header.count:
            return b""
        if horizon_ms is not None:
            return b"" if horizon_ms <= self._now_ms and not is_listed else None
        payload = batch.payload_of(data, header)
        kept = [glimpse for glimpses in batch.skim(payload, header) for glimpse in glimpses]
        return batch.repack(header, payload, kept, horizon_ms=self._now_ms + self._config.delete_retention_ms)

    def _records(self, data: bytes, header: BatchHeader) -> Generator[None, None, bytes | None]:
        """The same for a batch of records."""
        horizon_ms = batch.horizon_of(header)
        forgets = horizon_ms is not None and horizon_ms <= self._now_ms
        kept: list[Glimpse] = []
        tombstones = False
        try:
            payload = batch.payload_of(data, header, max_bytes=OPENED_BYTES)
            for glimpses in batch.skim(payload, header):
                tombstones |= self._choose(glimpses, kept, forgets)
                yield
        except ApiError:
            return None
        new_horizon_ms = None
        if tombstones and horizon_ms is None:
            new_horizon_ms = self._now_ms + self._config.delete_retention_ms
        elif len(kept) == header.count and kept:
            return None
        return batch.repack(header, payload, kept, horizon_ms=new_horizon_ms) if kept else b""

    def _choose(self, glimpses: list[Glimpse], kept: list[Glimpse], forgets: bool) -> bool:
        """Add what stays to `kept`; True if there is a tombstone among it."""
        latest, newest = self._latest, self._keys.newest.get
        tombstones = False
        for glimpse in glimpses:
            _, _, _, _, offset, key, has_value = glimpse
            if offset <= latest:
                if key is None:
                    continue
                noted = newest(key, -1) if len(key) <= SHORT_BYTES else self._keys.get(key)
                if offset < noted or (forgets and not has_value):
                    continue
            if not has_value:
                tombstones = True
            kept.append(glimpse)
        return tombstones

    # ------------------------------------------------------------------ reading

    def checked_batches(self, segment: Segment, size: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """The batches in the first `size` bytes of a segment, checked as a reader would."""
        position, expected = 0, segment.base_offset
        for position, header, data in walk(segment.file, 0, size):
            epoch = self._epochs.epoch_at(header.base_offset)
            if (
                not batch.crc_matches(data, header)
                or header.base_offset < expected
                or (header.base_offset > expected and not segment.gapped)
                or (header.leader_epoch != epoch and epoch >= 0)
            ):
                raise CorruptionError(f"{segment.path}.log: damaged batch at position {position}")
            expected = header.base_offset + header.last_offset_delta + 1
            self.bytes_read += header.size
            yield position, header, data
            position += header.size
        if position != size:
            raise CorruptionError(f"{segment.path}.log: bytes at position {position} are no batch")


class _Output:
    """One compacted segment in the making. As long as nothing is left out of a single segment, no file is written."""

    def __init__(self, compaction: Compaction, first: Segment) -> None:
        self.replaced = [first]
        self._compaction = compaction
        folder = compaction._log_path
        self._path = cleaned_path(folder, first.base_offset)
        interval_bytes = compaction._config.index_interval_bytes
        self._segment = Segment(compaction._files, folder, first.base_offset, first.file, interval_bytes=interval_bytes)
        self._file: File | None = None
        self._parts: list[bytes | memoryview] = []
        self._run: tuple[bytes, int, int] | None = None  # a buffer, and from where to where it is kept
        self._waiting_bytes = 0
        self._unsynced_bytes = 0
        self._checksum = 0  # of all that was written

    def has_room_for(self, batch_bytes: int, following: Segment) -> bool:
        """Whether a segment may join, after one more batch, though nothing of it is left out."""
        return (
            self._segment.size + batch_bytes + following.size <= self._compaction._config.segment_bytes
            and following.end_offset - self._segment.base_offset <= _RELATIVE_OFFSET_MAX
            and len(self.replaced) < SEGMENTS_MAX
        )

    def join(self, segment: Segment) -> Iterator[None]:
        """What follows comes from another segment."""
        yield from self._begin(self._segment.size)
        self.replaced.append(segment)

    def _begin(self, position: int) -> Iterator[None]:
        """Write from now on; first what was kept before `position`."""
        if self._file is not None:
            return
        compaction = self._compaction
        if compaction.overtaken:
            raise StorageError(f"{compaction._log_path} has changed")
        self._file = compaction._files.open(self._path, create=True)
        if self._file.size:
            self._file.truncate(0)
        for start, header, data in compaction.checked_batches(self.replaced[0], position):  # it is read again
            self.copy(header, data)
            if start + header.size == position or self._waiting_bytes >= WRITE_BYTES:
                self._flush()
                yield

    def keep(self, header: BatchHeader, data: bytes) -> None:
        """A batch stays as it is."""
        self._segment.note_header(header)
        if self._file is not None:
            self.copy(header, data)

    def copy(self, header: BatchHeader, data: bytes) -> None:
        """Write a batch that was noted."""
        start, end = header.position, header.position + header.size
        if self._run is not None and self._run[0] is data and self._run[2] == start:
            self._run = (data, self._run[1], end)
        else:
            self._end_run()
            self._run = (data, start, end)
        self._waiting_bytes += header.size

    def replace(self, position: int, made: bytes) -> Iterator[None]:
        """`made`, which may be nothing, comes in the place of a batch that begins at `position`."""
        yield from self._begin(position)
        self._end_run()
        for header in batch.headers(made):
            self._segment.note_header(header)
            self._parts.append(made)
            self._waiting_bytes += len(made)

    def flush_if_large(self) -> Iterator[None]:
        if self._waiting_bytes >= WRITE_BYTES:
            self._flush()
            yield

    def close(self) -> Swap | None:
        """None if nothing has changed."""
        if self._file is None:
            return None
        compaction, segment = self._compaction, self._segment
        self._flush()
        self._file.sync()
        assert segment.size == self._file.size
        segment.file = self._file
        if segment.end_offset != self.replaced[-1].end_offset:  # there was a gap before
            segment.gapped = True
            segment.end_offset = self.replaced[-1].end_offset
        return Swap(compaction._files, compaction._log_path, segment, self._checksum, self.replaced, compaction._mark)

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._compaction._files.remove(self._path)

    def _end_run(self) -> None:
        if self._run is not None:
            data, start, end = self._run
            self._parts.append(memoryview(data)[start:end])
            self._run = None

    def _flush(self) -> None:
        self._end_run()
        self._append(self._parts)
        self._parts = []
        self._waiting_bytes = 0

    def _append(self, parts: list[bytes | memoryview]) -> None:
        assert self._file is not None
        size_bytes = sum(map(len, parts))
        self._file.append(parts)
        for part in parts:
            self._checksum = crc32c(part, self._checksum)
        self._compaction.bytes_written += size_bytes
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= SYNC_BYTES:
            self._file.sync()
            self._unsynced_bytes = 0
