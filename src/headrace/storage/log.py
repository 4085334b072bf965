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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, ErrorCode, StorageError
from headrace.storage import cutting, identity, recovery
from headrace.storage.lookup import Found, LatestTimeLookup, TimeLookup
from headrace.storage.producers import Producers
from headrace.storage.retention import expired_segments
from headrace.storage.segment import Segment, SegmentSummary
from headrace.storage.shelf import Shelf
from headrace.storage.snapshots import Snapshots
from headrace.storage.span import Span
from headrace.storage.stamping import Appended, follow, repeat, stamp_batches
from headrace.storage.swapping import settle
from headrace.storage.sync import Backlog, Sync, encode_offset
from headrace.wire.batch import horizon_of

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.epochs import Epochs
    from headrace.storage.manifest import Known
    from headrace.storage.topic_config import TopicConfig
    from headrace.wire.batch import BatchHeader

__all__ = ["Appended", "Found", "LatestTimeLookup", "Log", "SegmentSummary", "Span", "Sync", "TimeLookup", "verify"]

PRODUCER_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class Log:
    """See the module."""

    __slots__ = (
        "_backlog",
        "_files",
        "_shelf",
        "_snapshots",
        "config",
        "cutting",
        "end_offset",
        "epochs",
        "failed",
        "flushed_offset",
        "mark",
        "path",
        "producer_expiry_ms",
        "producers",
        "recovered",
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
        self.size_bytes = sum(segment.size for segment in found.segments)
        self.epochs: Epochs = found.epochs
        self.producers: Producers = found.producers
        self.producer_expiry_ms = producer_expiry_ms
        self.failed: StorageError | None = None
        self.cutting = False  # a worker has the log: see `cutting`
        self.recovered = tuple(found.cuts)  # what was cut when the log was opened
        self.mark = found.mark  # how far compaction has come
        self._files = files
        self._shelf = Shelf(files, path, found.segments, found.epochs)
        self._snapshots = Snapshots(files, path, found.snapshots)
        self._backlog = Backlog(files, path, found.recovery_point)
        if not found.segments:
            self._shelf.add(found.end_offset, config.index_interval_bytes)
            self._backlog.new_names = True

    @classmethod
    def open(
        cls,
        files: Files,
        path: str,
        config: TopicConfig,
        *,
        now_ms: int,
        producer_expiry_ms: int = PRODUCER_EXPIRY_MS,
        known: Known | None = None,
    ) -> Log:
        """Create, or recover what is there. Blocking. Raises CorruptionError if durable bytes are damaged, or missing.

        `known`: what the manifest knows of the log.
        """
        settle(files, path)
        found = recovery.examine(files, path, config, now_ms=now_ms, known=known)
        is_untouched = known is not None and known.is_exact and known.end_offset == found.end_offset == 0
        is_new = is_untouched or not found.segments
        log = cls(files, path, config, found, producer_expiry_ms=producer_expiry_ms)
        log._settle(found, now_ms, is_new=is_new)
        return log

    def _settle(self, found: recovery.Findings, now_ms: int, *, is_new: bool) -> None:
        """Carry out what the examination found, and make it durable."""
        backlog = self._backlog
        for segment in self._shelf.segments:
            if segment.file.size > segment.size:
                segment.file.truncate(segment.size)
                backlog.recut.append(segment)
        active = self._shelf.active
        if not is_new and active.stored_size != active.size and active not in backlog.recut:
            backlog.recut.append(active)  # not closed cleanly: a killed process may have cut it and not synced that
        if found.surplus:
            # At once, and for good: a segment of the same name may be begun next. The old file must not come back in
            # its place, and no late removal may take the new one.
            for name in found.surplus:
                self._files.remove(name)
            self._files.sync_directory(self.path)
        if found.epochs_changed:
            self._store_epochs()
        for segment in self._shelf.segments[:-1]:
            if segment.stored_size != segment.size:
                backlog.chores.indexes.append(segment)
        self.producers.expire(now_ms, self.producer_expiry_ms)
        if self.end_offset > self.recovery_point:
            backlog.new_names = True  # after kill -9 there are segments whose names were never synced
        if backlog.chores or backlog.recut or self.end_offset > self.recovery_point:
            self.checkpoint()
        self._shelf.mark_flushed(self.end_offset, (self._shelf.active, self._shelf.active.size))
        for segment in self._shelf.segments[:-1]:
            self._shelf.keep_warm(segment)

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
        base_offset = self.end_offset
        if stamp:
            if headers[0].producer_id >= 0 or len(headers) > 1:
                repeated = self.producers.check_all(headers)
                if repeated is not None:
                    return repeat(*repeated, config)
            next_offset, newest, append_time_ms = stamp_batches(
                data, headers, config, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms
            )
        else:
            next_offset, newest = follow(headers, base_offset)
            base_offset = headers[0].base_offset
            append_time_ms = -1

        segment = self._shelf.active
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

        self._note(segment, data, headers, leader_epoch if stamp else None, append_time_ms, now_ms)
        self.end_offset = next_offset
        self.size_bytes += size
        self._backlog.appended_bytes += size
        return Appended(base_offset, next_offset - 1, append_time_ms)

    def _note(
        self,
        segment: Segment,
        data: bytearray,
        headers: Sequence[BatchHeader],
        leader_epoch: int | None,
        append_time_ms: int,
        now_ms: int,
    ) -> None:
        """Batches were written: bring index, epochs and producers up to date.

        Without `leader_epoch`, offsets and epochs are those that a leader has stamped.
        """
        offset = self.end_offset
        epochs = self.epochs
        for header in headers:
            if leader_epoch is None:
                offset = header.base_offset
            epoch = header.leader_epoch if leader_epoch is None else leader_epoch
            if epoch > epochs.latest and epochs.assign(epoch, offset):
                self._store_epochs()
            following = offset + header.last_offset_delta + 1
            if append_time_ms < 0:
                first_time, last_time = header.base_timestamp, header.max_timestamp
                if leader_epoch is None and horizon_of(header) is not None:
                    first_time = last_time  # a compacted batch: the first timestamp is something else
            else:
                first_time = last_time = append_time_ms
            segment.note(offset, following, header.size, first_time, last_time)
            if header.producer_id >= 0:
                self.producers.add(header, offset, last_time, now_ms, data)
            offset = following

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
        return self._shelf.locate(offset, max_bytes, limit_offset)

    def doubt(self) -> None:
        """Check again what is read next, although it was found whole before. To be called every few seconds."""
        for segment in self._shelf.segments:
            segment.checked.clear()

    def find_time(self, timestamp: int) -> TimeLookup:
        """The search for the first record at or after `timestamp`. The log's end bounds it."""
        return self._shelf.find_time(timestamp, self.start_offset)

    def find_latest_time(self) -> LatestTimeLookup:
        """The search for the first record that has the largest timestamp."""
        return self._shelf.find_latest_time(self.start_offset)

    def offset_for_timestamp(self, timestamp: int) -> Found | None:
        """Blocking; see `find_time`."""
        return self.find_time(timestamp).run()

    def max_timestamp(self) -> Found | None:
        """Blocking; see `find_latest_time`."""
        return self.find_latest_time().run()

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch has it; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(leader_epoch, self.end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Everything below is committed, or known to be aborted."""
        return max(self.producers.transactions.first_unstable(high_watermark), self.start_offset)

    def aborted_between(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of what a reader of committed records leaves out between two offsets."""
        return self.producers.transactions.aborted.between(start_offset, end_offset)

    def segments(self) -> list[SegmentSummary]:
        return [segment.summary() for segment in self._shelf.segments]

    # ------------------------------------------------------------------ durability

    def begin_sync(self, *, checkpoint: bool = False) -> Sync | None:
        """None if nothing is dirty. With `checkpoint`, the recovery point moves, too."""
        if self.failed is not None:
            raise self.failed
        return None if self.cutting else self._begin_sync(checkpoint=checkpoint)

    def _begin_sync(self, *, checkpoint: bool) -> Sync | None:
        return self._backlog.begin(self._shelf, self.end_offset, self.flushed_offset, checkpoint=checkpoint)

    def end_sync(self, sync: Sync) -> None:
        """The sync succeeded: move `flushed_offset`."""
        self._backlog.end(sync, self._shelf)
        if sync.chores_done:  # not sooner: without the start offset, aborted records would come back as good ones
            self.producers.transactions.aborted.forget_before(sync.stored_start_offset)
        if sync.end_offset >= self.flushed_offset:
            self.flushed_offset = sync.end_offset
            self._shelf.mark_flushed(sync.end_offset, sync.place)

    @property
    def recovery_point(self) -> int:
        """Recovery believes everything below."""
        return self._backlog.recovery_point

    def checkpoint(self) -> None:
        """Sync, and move the recovery point to the end. Blocking; `begin_sync(checkpoint=True)` is not."""
        if self.failed is not None:
            raise self.failed
        sync = self._begin_sync(checkpoint=True)
        if sync is None:
            return
        try:
            sync.run()
        except StorageError as error:
            self.fail(error)
            raise
        self.end_sync(sync)

    # ------------------------------------------------------------------ segments

    def _roll(self) -> Segment:
        """Seal the open segment and begin a new one."""
        old = self._shelf.active
        segment = self._shelf.add(self.end_offset, self.config.index_interval_bytes)
        self._backlog.new_names = True
        self._backlog.chores.indexes.append(old)
        self._take_snapshot()
        self._backlog.checkpoint_due = True
        return segment

    def _take_snapshot(self) -> None:
        """Remember the producers as of the end; forget snapshots that no recovery will need."""
        self._snapshots.take(self.end_offset, self.producers, self._backlog.chores)
        bases = {segment.base_offset for segment in self._shelf.segments}
        self._snapshots.keep(bases | {self.end_offset}, self._backlog.chores)

    def _store_start_offset(self) -> None:
        path = f"{self.path}/{recovery.START_OFFSET}"
        self._backlog.chores.stores[path] = encode_offset(self.start_offset)

    def _store_epochs(self) -> None:
        self._backlog.chores.stores[f"{self.path}/{recovery.LEADER_EPOCHS}"] = self.epochs.encode()

    def roll_if_due(self, now_ms: int) -> bool:
        """Seal the open segment if it is older than it may become."""
        first_timestamp = self._shelf.active.first_timestamp
        if self.failed is not None or self.cutting or not self._shelf.active.size or first_timestamp < 0:
            return False
        if now_ms - first_timestamp <= self.config.longest_segment_ms:
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
        if count == len(self._shelf.segments):
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
        while self._shelf.segments[count].sealed and self._shelf.segments[count].end_offset <= offset:
            count += 1
        self._drop_oldest(count)

    def _drop_oldest(self, count: int) -> list[int]:
        dropped = self._shelf.drop_oldest(count)
        for segment in dropped:
            self._discard(segment)
        first_offset = self._shelf.segments[0].base_offset
        if dropped and not any(offset >= first_offset for offset in self._snapshots.offsets):
            self._take_snapshot()  # what the producers sent before can be replayed no more
        self.start_offset = max(self.start_offset, first_offset)
        # Stored before the files go: should some of them come back, recovery knows that they are nothing to it.
        self._store_start_offset()
        if first_offset in self._snapshots.offsets:
            self._snapshots.keep(
                {offset for offset in self._snapshots.offsets if offset >= first_offset}, self._backlog.chores
            )
        if self.epochs.truncate_start(self.start_offset):
            self._store_epochs()
        return [segment.base_offset for segment in dropped]

    def _discard(self, segment: Segment) -> None:
        """A segment is off the shelf: its files go with the next sync."""
        self.size_bytes -= segment.size
        if segment in self._backlog.chores.indexes:
            self._backlog.chores.indexes.remove(segment)
        self._backlog.chores.removals += segment.discard()

    # ------------------------------------------------------------------ the rare and blocking

    def truncate(self, offset: int, *, now_ms: int) -> None:
        """Remove everything from `offset` on (or from the batch that holds it). Blocking.

        An `offset` below the start empties the log, which then starts there.
        """
        cutting.truncate(self, offset, now_ms=now_ms)

    @property
    def busy(self) -> bool:
        """Whether a sync or a swap is under way, or a cut."""
        return self.cutting or self._backlog.handed is not None or self._shelf.swap is not None

    def close(self, *, clean: bool = True) -> None:
        """Blocking. A clean close leaves nothing for recovery to do."""
        try:
            if clean and self.failed is None and not self._is_untouched:
                active = self._shelf.active
                if active.stored_size != active.size or self.end_offset not in self._snapshots.offsets:
                    self._backlog.chores.indexes.append(active)
                    self._take_snapshot()
                self.checkpoint()
        finally:
            self._end(StorageError(f"{self.path} is closed"))

    @property
    def _is_untouched(self) -> bool:
        """Nothing was ever written, so that there is nothing to describe: whose it is, the manifest knows."""
        chores = self._backlog.chores
        described = self._snapshots.offsets or chores.indexes or chores.removals or self.epochs.latest >= 0
        return not (self.end_offset or self.recovery_point or described)

    def delete(self) -> None:
        """Remove the log and all its files. Blocking."""
        self._end(StorageError(f"{self.path} was deleted"))
        identity.remove(self._files, self.path)

    def _end(self, reason: StorageError) -> None:
        self.failed = self.failed or reason
        self._shelf.close()


def verify(log: Log, *, sealed_only: bool = False) -> list[recovery.Fault]:
    """Read a log and check every batch. Blocking. Without `sealed_only` nobody may append meanwhile."""
    segments = [segment for segment in log._shelf.segments if segment.sealed or not sealed_only]
    return recovery.faults_of(segments, log.epochs)
