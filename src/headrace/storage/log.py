"""A partition's append-only log.

Rules:
- One thread owns a log. Only `Span.read`, `Sync.run` and lookups' `run` may run in a worker thread; at most one sync
  of a log is under way at a time.
- `append` leaves either the whole of its batches in the log, or nothing.
- `flushed_offset` moves only after a sync that covers it has succeeded. It never moves back except by `truncate`.
- Nothing below `flushed_offset` is ever cut by recovery.
- No method that is marked otherwise waits for a disk. What must be stored or removed (indexes, epochs, the start
  offset, old segments) waits for the next sync: call `begin_sync` after `retain`, `delete_before` and `roll_if_due`.
- A log whose disk failed stays failed: `failed` is raised by every later call. A full disk passes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, ErrorCode, StorageError
from headrace.storage import recovery
from headrace.storage.lookup import Found, LatestTimeLookup, TimeLookup
from headrace.storage.producers import Producers
from headrace.storage.retention import expired_segments
from headrace.storage.segment import Segment, SegmentSummary, segment_name
from headrace.storage.span import Span
from headrace.storage.sync import Chores, Sync
from headrace.wire.batch import stamp as stamp_batch
from headrace.wire.batch import stamp_append_time

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.epochs import Epochs
    from headrace.storage.index import Index
    from headrace.storage.producers import Sent
    from headrace.storage.topic_config import TopicConfig
    from headrace.wire.batch import BatchHeader

__all__ = ["Appended", "Found", "LatestTimeLookup", "Log", "SegmentSummary", "Span", "Sync", "TimeLookup", "verify"]

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024  # appended bytes after which a sync moves the recovery point, too
PRODUCER_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_MEMO_ENTRIES: Final = 64
_WARM_SEGMENTS: Final = 4


@dataclass(slots=True)
class Appended:
    """Where an append landed."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic stamps LogAppendTime
    duplicate: bool = False  # the producer had sent this batch before; the offsets are those of the first time


class Log:
    """See the module."""

    __slots__ = (
        "_active",
        "_appended_bytes",
        "_bases",
        "_checkpoint_due",
        "_chores",
        "_files",
        "_flushed_place",
        "_handed",
        "_memo",
        "_new_names",
        "_recut",
        "_segments",
        "_snapshots",
        "_warm",
        "config",
        "end_offset",
        "epochs",
        "failed",
        "flushed_offset",
        "path",
        "producer_expiry_ms",
        "producers",
        "recovered",
        "recovery_point",
        "size_bytes",
        "start_offset",
    )

    def __init__(
        self, files: Files, path: str, config: TopicConfig, found: recovery.Findings, *, producer_expiry_ms: int
    ) -> None:
        """Use `open`."""
        self.path = path
        self.config = config
        self.start_offset = found.start_offset
        self.end_offset = found.end_offset
        self.flushed_offset = found.recovery_point
        self.recovery_point = found.recovery_point
        self.size_bytes = sum(segment.size for segment in found.segments)
        self.epochs: Epochs = found.epochs
        self.producers: Producers = found.producers
        self.producer_expiry_ms = producer_expiry_ms
        self.failed: StorageError | None = None
        self.recovered = tuple(found.cuts)  # what was cut when the log was opened
        self._files = files
        self._segments = found.segments
        self._bases = [segment.base_offset for segment in found.segments]
        self._snapshots = found.snapshots
        self._memo: dict[int, tuple[Segment, int]] = {}  # batch boundaries that readers will ask for next
        self._flushed_place: tuple[Segment, int] | None = None
        self._warm: list[Segment] = []
        self._chores = Chores()
        self._handed: Sync | None = None
        self._new_names = False
        self._recut = False  # the open segment was cut, and that is not synced
        self._checkpoint_due = False
        self._appended_bytes = 0  # since the last checkpoint
        if not found.segments:
            self._add_segment(found.end_offset)
        self._active = self._segments[-1]

    @classmethod
    def open(
        cls,
        files: Files,
        path: str,
        config: TopicConfig,
        *,
        now_ms: int,
        producer_expiry_ms: int = PRODUCER_EXPIRY_MS,
    ) -> Log:
        """Create, or recover what is there. Blocking. Raises CorruptionError if durable bytes are damaged."""
        found = recovery.examine(files, path, config, now_ms=now_ms)
        log = cls(files, path, config, found, producer_expiry_ms=producer_expiry_ms)
        log._settle(found, now_ms)
        return log

    def _settle(self, found: recovery.Findings, now_ms: int) -> None:
        """Carry out what the examination found, and make it durable."""
        for segment in self._segments:
            if segment.file.size > segment.size:
                segment.file.truncate(segment.size)
                self._recut = True
        self._chores.removals += found.surplus
        if found.epochs_changed:
            self._store_epochs()
        for segment in self._segments[:-1]:
            segment.sealed = True
            if segment.stored_size != segment.size:
                self._chores.indexes.append(segment)
        self.producers.expire(now_ms, self.producer_expiry_ms)
        if self._chores or self._recut or self.end_offset > self.recovery_point:
            self._sync_now(every_segment=self._recut)
        self._flushed_place = (self._active, self._active.size)
        for segment in self._segments[:-1]:
            self._keep_warm(segment)

    # ------------------------------------------------------------------ append

    def append(
        self, data: bytearray, headers: Sequence[BatchHeader], *, leader_epoch: int, now_ms: int, stamp: bool = True
    ) -> Appended:
        """Append checked batches (`wire.batch.check`), stamped with offsets and epoch unless `stamp` is false.

        Raises ApiError (sequence and epoch errors of idempotent producers, invalid_timestamp) or StorageError;
        in both cases nothing was appended.
        """
        if self.failed is not None:
            raise self.failed
        config = self.config
        base_offset = next_offset = self.end_offset
        append_time_ms = -1
        newest = -1
        if stamp:
            for header in headers:
                if header.producer_id >= 0:
                    repeated = self.producers.check_all(headers)
                    if repeated is not None:
                        return self._repeat(*repeated)
                    break
            if config.timestamp_type == "CreateTime":
                earliest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
                for header in headers:
                    newest = max(newest, header.max_timestamp)
                    if newest > latest or -1 < header.base_timestamp < earliest:
                        raise _invalid_timestamp(header, now_ms)
            else:
                append_time_ms = newest = now_ms
                for header in headers:
                    stamp_append_time(data, header, timestamp_ms=now_ms)
            for header in headers:
                stamp_batch(data, header, base_offset=next_offset, leader_epoch=leader_epoch)
                next_offset += header.last_offset_delta + 1
        else:
            base_offset = headers[0].base_offset
            for header in headers:
                if header.base_offset < next_offset:
                    raise ApiError(ErrorCode.offset_out_of_range, f"offset {next_offset} should come next")
                next_offset = header.base_offset + header.last_offset_delta + 1
                newest = max(newest, header.max_timestamp)

        segment = self._active
        size = len(data)
        if segment.size and (
            segment.size + size > config.segment_bytes
            or (newest - segment.first_timestamp > config.segment_ms and segment.first_timestamp >= 0)
            or next_offset - segment.base_offset > _RELATIVE_OFFSET_MAX
        ):
            segment = self._roll()
        if segment.file.size != segment.size:
            segment.file.truncate(segment.size)  # an append was broken off and could not be cut
        try:
            segment.file.append((data,))
        except StorageError as error:
            self._append_failed(segment, error)
            raise

        offset = self.end_offset
        epochs = self.epochs
        for header in headers:
            if not stamp:
                offset, leader_epoch = header.base_offset, header.leader_epoch
            if leader_epoch > epochs.latest and epochs.assign(leader_epoch, offset):
                self._store_epochs()
            following = offset + header.last_offset_delta + 1
            if append_time_ms < 0:
                segment.note(offset, following, header.size, header.base_timestamp, header.max_timestamp)
            else:
                segment.note(offset, following, header.size, append_time_ms, append_time_ms)
            if header.producer_id >= 0:
                timestamp = header.max_timestamp if append_time_ms < 0 else append_time_ms
                self.producers.add(header, offset, timestamp, now_ms)
            offset = following
        self.end_offset = offset
        self.size_bytes += size
        self._appended_bytes += size
        return Appended(base_offset, offset - 1, append_time_ms)

    def _repeat(self, first: Sent, last: Sent) -> Appended:
        append_time_ms = last.timestamp if self.config.timestamp_type == "LogAppendTime" else -1
        return Appended(first.base_offset, last.last_offset, append_time_ms, duplicate=True)

    def _append_failed(self, segment: Segment, error: StorageError) -> None:
        if isinstance(error, DiskFailedError | CorruptionError):
            self.fail(error)
            return
        try:
            segment.file.truncate(segment.size)
        except StorageError:
            pass  # the next append starts at the same place, or fails

    def fail(self, error: StorageError) -> None:
        """The disk under this log is not to be trusted any more. Final."""
        if self.failed is None:
            self.failed = error

    # ------------------------------------------------------------------ read

    def locate(self, offset: int, max_bytes: int, limit_offset: int) -> Span | None:
        """The batches from the one that holds `offset`, below `limit_offset`, of about `max_bytes`, at least one.

        None when there is nothing between `offset` and `limit_offset`. Raises ApiError(offset_out_of_range).
        """
        if self.failed is not None:
            raise self.failed
        if offset >= limit_offset or offset < self.start_offset or offset >= self.end_offset:
            if self.start_offset <= offset <= self.end_offset:
                return None
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not between {self.start_offset} and {self.end_offset}",
            )
        memo = self._memo
        place = memo.get(offset)
        if place is not None and place[1] < place[0].size:
            segment, start = place
            wanted = -1
        else:
            segment, start, wanted = self._start_of(offset)

        if limit_offset >= segment.end_offset:
            end = segment.size
            next_offset = segment.end_offset
        else:
            flushed = self._flushed_place
            if flushed is not None and limit_offset == self.flushed_offset and flushed[0] is segment:
                end = flushed[1]
                next_offset = limit_offset
            else:
                end, next_offset = self._limit_in(segment, limit_offset)
                if offset >= next_offset or end <= start:
                    return None
        if end - start > max_bytes:
            index = segment.index or self._keep_warm(segment)
            positions = index.positions
            entry = bisect_right(positions, start + max_bytes) - 1
            if positions[entry] <= start:
                entry += 1
            if entry < len(positions) and positions[entry] < end:
                end = positions[entry]
                next_offset = index.offsets[entry]
        if next_offset not in memo:
            if len(memo) >= _MEMO_ENTRIES:
                del memo[next(iter(memo))]
            memo[next_offset] = (segment, end)
        return Span(segment, start, end - start, wanted, next_offset)

    def _start_of(self, offset: int) -> tuple[Segment, int, int]:
        """(segment, position, offset before which batches are to be skipped, or -1)."""
        number = bisect_right(self._bases, offset) - 1
        segment = self._segments[number]
        while offset >= segment.end_offset:  # between two segments, where offsets are missing
            number += 1
            segment = self._segments[number]
        index = segment.index or self._keep_warm(segment)
        if segment.gapped:
            # The block may end before `offset`: what is wanted may begin in the next one.
            return segment, segment.position_of(offset)[0], -1
        block = index.block_of_offset(offset)
        return segment, index.positions[block], -1 if index.offsets[block] == offset else offset

    def _limit_in(self, segment: Segment, limit_offset: int) -> tuple[int, int]:
        """(position, offset) of the boundary at or below `limit_offset`."""
        place = self._memo.get(limit_offset)
        if place is not None and place[0] is segment:
            return place[1], limit_offset
        self._keep_warm(segment)
        position, boundary = segment.position_of(limit_offset)
        if boundary == limit_offset:
            self._memo[limit_offset] = (segment, position)
        return position, min(boundary, limit_offset)

    def _keep_warm(self, segment: Segment) -> Index:
        """A segment's index. The indexes of only a few sealed segments stay in memory."""
        index = segment.warm()
        warm = self._warm
        if segment.sealed and segment not in warm:
            warm.append(segment)
            for old in warm[:-_WARM_SEGMENTS]:
                old.cool()
                if old.index is None:
                    warm.remove(old)
        return index

    def find_time(self, timestamp: int) -> TimeLookup:
        """The search for the first record at or after `timestamp`. The log's end bounds it."""
        places: list[tuple[Segment, int, int]] = []
        for segment in self._segments:
            if not segment.size or segment.end_offset <= self.start_offset:
                continue
            if places:
                places.append((segment, 0, segment.size))
            elif segment.max_timestamp >= timestamp:
                index = self._keep_warm(segment)
                places.append((segment, index.positions[index.block_of_time(timestamp)], segment.size))
        return TimeLookup(timestamp, self.start_offset, places)

    def find_latest_time(self) -> LatestTimeLookup:
        """The search for the first record that has the largest timestamp."""
        latest = max(segment.max_timestamp for segment in self._segments)
        guess = self.find_time(latest) if latest >= 0 else TimeLookup(0, 0, [])
        segments = [(segment, segment.size) for segment in self._segments if segment.size]
        return LatestTimeLookup(self.start_offset, segments, guess)

    def offset_for_timestamp(self, timestamp: int) -> Found | None:
        """Blocking; see `find_time`."""
        return self.find_time(timestamp).run()

    def max_timestamp(self) -> Found | None:
        """Blocking; see `find_latest_time`."""
        return self.find_latest_time().run()

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch has it; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(leader_epoch, self.end_offset)

    def segments(self) -> list[SegmentSummary]:
        return [segment.summary() for segment in self._segments]

    # ------------------------------------------------------------------ durability

    def begin_sync(self, *, checkpoint: bool = False) -> Sync | None:
        """None if nothing is dirty. With `checkpoint`, the recovery point moves, too."""
        return self._begin_sync(checkpoint=checkpoint)

    def _begin_sync(self, *, checkpoint: bool = False, every_segment: bool = False) -> Sync | None:
        if self.failed is not None:
            raise self.failed
        if self._handed is not None:  # it was given up, or is still running: its chores are not known to be done
            self._chores.put_back(self._handed.chores)
            self._checkpoint_due |= self._handed.checkpoint is not None
            self._handed = None
        end_offset = self.end_offset
        moves = end_offset != self.recovery_point
        checkpoint = moves and (checkpoint or self._checkpoint_due or self._appended_bytes >= CHECKPOINT_BYTES)
        if end_offset == self.flushed_offset and not (self._chores or self._recut or checkpoint):
            return None
        segments: list[Segment] = []
        for segment in reversed(self._segments):
            if segment.end_offset <= self.flushed_offset and not every_segment:
                break
            segments.insert(0, segment)
        if self._recut and self._active not in segments:
            segments.append(self._active)
        self._handed = Sync(
            self._files,
            self.path,
            end_offset=end_offset,
            place=(self._active, self._active.size),
            segments=segments,
            new_names=self._new_names,
            chores=self._chores,
            checkpoint=(f"{self.path}/{recovery.RECOVERY_POINT}", recovery.encode_offset(end_offset))
            if checkpoint
            else None,
        )
        self._chores = Chores()
        if checkpoint:
            self._checkpoint_due = False
            self._appended_bytes = 0
        return self._handed

    def end_sync(self, sync: Sync) -> None:
        """The sync succeeded: move `flushed_offset`."""
        if sync is self._handed:
            self._handed = None
            if sync.chores_done:
                if sync.checkpoint is not None:
                    self.recovery_point = sync.end_offset
            else:
                self._chores.put_back(sync.chores)
                self._checkpoint_due |= sync.checkpoint is not None
            self._recut = False
            self._new_names = self._active is not sync.place[0]
        if sync.end_offset >= self.flushed_offset:
            self.flushed_offset = sync.end_offset
            self._flushed_place = sync.place

    def checkpoint(self) -> None:
        """Sync, and move the recovery point to the end. Blocking; `begin_sync(checkpoint=True)` is not."""
        self._sync_now()

    def _sync_now(self, *, every_segment: bool = False) -> None:
        sync = self._begin_sync(checkpoint=True, every_segment=every_segment)
        if sync is None:
            return
        try:
            sync.run()
        except StorageError as error:
            self.fail(error)
            raise
        self.end_sync(sync)

    # ------------------------------------------------------------------ segments

    def _add_segment(self, base_offset: int) -> Segment:
        file = self._files.open(f"{self.path}/{segment_name(base_offset)}.log", create=True)
        if file.size:
            file.truncate(0)
        interval_bytes = self.config.index_interval_bytes
        segment = Segment(self._files, self.path, base_offset, file, interval_bytes=interval_bytes)
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._active = segment
        self._new_names = True
        return segment

    def _roll(self) -> Segment:
        """Seal the open segment and begin a new one."""
        old = self._active
        segment = self._add_segment(self.end_offset)
        old.sealed = True
        self._keep_warm(old)
        self._chores.indexes.append(old)
        self._take_snapshot()
        self._checkpoint_due = True
        return segment

    def _take_snapshot(self) -> None:
        """Remember the producers as of the end; forget snapshots that no recovery will need."""
        self._snapshots.add(self.end_offset)
        self._chores.snapshots[self._snapshot_path(self.end_offset)] = self.producers.encode()
        self._forget_snapshots({self.end_offset, *self._bases})

    def _forget_snapshots(self, needed: set[int]) -> None:
        for offset in sorted(self._snapshots - needed):
            self._snapshots.discard(offset)
            self._chores.snapshots.pop(self._snapshot_path(offset), None)
            self._chores.removals.append(self._snapshot_path(offset))

    def _snapshot_path(self, offset: int) -> str:
        return f"{self.path}/{segment_name(offset)}{recovery.PRODUCERS}"

    def _store_epochs(self) -> None:
        self._chores.stores[f"{self.path}/{recovery.LEADER_EPOCHS}"] = self.epochs.encode()

    def roll_if_due(self, now_ms: int) -> bool:
        """Seal the open segment if it is older than `segment_ms`."""
        first_timestamp = self._active.first_timestamp
        if self.failed is not None or not self._active.size or first_timestamp < 0:
            return False
        if now_ms - first_timestamp <= self.config.segment_ms:
            return False
        self._roll()
        return True

    def retain(self, now_ms: int, *, limit_offset: int | None = None) -> list[int]:
        """Drop segments by age and size; returns their base offsets. Nothing at or above `limit_offset` goes.

        Their files go with the next sync.
        """
        if self.failed is not None:
            raise self.failed
        self.producers.expire(now_ms, self.producer_expiry_ms)
        limit_offset = self.end_offset if limit_offset is None else limit_offset
        count = expired_segments(self.segments(), self.config, now_ms, limit_offset)
        if not count:
            return []
        if count == len(self._segments):
            self._roll()
        return self._drop_oldest(count)

    def delete_before(self, offset: int) -> None:
        """Forget records below `offset` (DeleteRecords). Durable with the next sync, which removes segments, too."""
        if self.failed is not None:
            raise self.failed
        if offset > self.end_offset or offset < 0:
            raise ApiError(ErrorCode.offset_out_of_range, f"the log ends at {self.end_offset}")
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        count = 0
        while self._segments[count].sealed and self._segments[count].end_offset <= offset:
            count += 1
        self._drop_oldest(count)

    def _drop_oldest(self, count: int) -> list[int]:
        dropped = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        self.start_offset = max(self.start_offset, self._bases[0])
        for segment in dropped:
            self.size_bytes -= segment.size
            self._forget(segment)
        # Stored before the files go: should some of them come back, recovery knows that they are nothing to it.
        path = f"{self.path}/{recovery.START_OFFSET}"
        self._chores.stores[path] = recovery.encode_offset(self.start_offset)
        if self._bases[0] in self._snapshots:
            self._forget_snapshots({offset for offset in self._snapshots if offset >= self._bases[0]})
        if self.epochs.truncate_start(self.start_offset):
            self._store_epochs()
        return [segment.base_offset for segment in dropped]

    def _forget(self, segment: Segment) -> None:
        self._memo.clear()
        if segment in self._warm:
            self._warm.remove(segment)
        if segment in self._chores.indexes:
            self._chores.indexes.remove(segment)
        self._chores.removals += segment.discard()

    # ------------------------------------------------------------------ the rare and blocking

    def truncate(self, offset: int, *, now_ms: int) -> None:
        """Remove everything from `offset` on (or from the batch that holds it). Blocking.

        An `offset` below the start empties the log, which then starts there.
        """
        if self.failed is not None:
            raise self.failed
        assert self._handed is None, "no sync may be under way"
        if offset >= self.end_offset:
            return
        files, path = self._files, self.path
        # First the recovery point: from then on it is no damage that bytes above `offset` are missing.
        if self.recovery_point > offset:
            self.recovery_point = min(offset, self._boundary(offset))
            files.store(f"{path}/{recovery.RECOVERY_POINT}", recovery.encode_offset(self.recovery_point))
        self._memo.clear()
        self._flushed_place = None
        while len(self._segments) > 1 and self._bases[-1] >= offset:
            self.size_bytes -= self._segments[-1].size
            self._forget(self._segments.pop())
            self._bases.pop()
        if offset < self._bases[0]:
            self._restart_at(offset)
        else:
            self._cut_last(offset)
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        self.start_offset = min(self.start_offset, self.end_offset)
        self._chores.stores[f"{path}/{recovery.START_OFFSET}"] = recovery.encode_offset(self.start_offset)
        self._recut = True
        self._forget_snapshots({at for at in self._snapshots if at <= self.end_offset})
        self._remove_now()
        files.sync_directory(path)
        self._restore_producers(now_ms)
        if self.epochs.truncate_end(self.end_offset):
            self._store_epochs()

    def _boundary(self, offset: int) -> int:
        number = max(0, bisect_right(self._bases, offset) - 1)
        return self._segments[number].position_of(offset)[1]

    def _remove_now(self) -> None:
        """Files must be gone before others of the same name are written."""
        for name in self._chores.removals:
            self._files.remove(name)
        self._chores.removals.clear()

    def _cut_last(self, offset: int) -> None:
        segment = self._active = self._segments[-1]
        position, boundary = segment.position_of(offset)
        if segment in self._warm:
            self._warm.remove(segment)
        if segment in self._chores.indexes:
            self._chores.indexes.remove(segment)
        self._chores.removals += [f"{segment.path}.index", f"{segment.path}.timeindex"]
        self.size_bytes -= segment.size - position
        segment.file.truncate(position)
        segment.reopen(position)
        self.end_offset = segment.end_offset = min(offset, boundary)

    def _restart_at(self, offset: int) -> None:
        self._forget(self._segments.pop())
        self._bases.pop()
        self._remove_now()
        self._add_segment(offset)
        self.start_offset = self.end_offset = offset
        self.size_bytes = 0

    def _restore_producers(self, now_ms: int) -> None:
        self.producers = Producers()
        start = -1
        for offset in sorted(self._snapshots, reverse=True):
            path = self._snapshot_path(offset)
            producers = Producers.decode(self._chores.snapshots.get(path) or self._files.load(path))
            if producers is not None:
                self.producers, start = producers, offset
                break
        recovery.replay(self.producers, recovery.headers_from(self._segments, start), start, now_ms)

    def close(self, *, clean: bool = True) -> None:
        """Blocking. A clean close leaves nothing for recovery to do."""
        try:
            if clean and self.failed is None:
                active = self._active
                if active.stored_size != active.size or self.end_offset not in self._snapshots:
                    self._chores.indexes.append(active)
                    self._take_snapshot()
                self._sync_now()
        finally:
            self._end(StorageError(f"{self.path} is closed"))

    def delete(self) -> None:
        """Remove the log and all its files. Blocking."""
        self._end(StorageError(f"{self.path} was deleted"))
        if not self._files.exists(self.path):
            return
        doomed = f"{self.path}.deleted"  # no topic's log has such a name
        self._files.remove(doomed)
        self._files.rename(self.path, doomed)
        self._files.remove(doomed)

    def _end(self, reason: StorageError) -> None:
        self.failed = self.failed or reason
        for segment in self._segments:
            segment.removed = True
            segment.file.close()


def verify(log: Log) -> list[recovery.Fault]:
    """Read the whole log and check every batch. Blocking; for tools and tests."""
    return recovery.faults_of(log._segments)


def _invalid_timestamp(header: BatchHeader, now_ms: int) -> ApiError:
    return ApiError(
        ErrorCode.invalid_timestamp,
        f"timestamps from {header.base_timestamp} to {header.max_timestamp} are too far from the broker's {now_ms}",
    )
