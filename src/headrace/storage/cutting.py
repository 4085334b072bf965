"""The rare things that are done to a log as a whole: cut its end off, begin it elsewhere.

Rules:
- Everything here is blocking. While a cut runs in a worker `Log.cutting` is set: nobody else touches the
  log then, and no sync or swap may be under way (`Log.busy`).
- The recovery point is lowered first: from then on it is no damage that bytes above it are missing. At every point at
  which the power may go, recovery finds the log as it was, or a shorter one that ends at or above the cut.
- What was known of producers, transactions and epochs at the cut is what is known after it. Compaction will look again
  at everything from there on.
- What the manifest knows of the log was lowered before (`broker.known_logs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import DiskFullError
from headrace.storage import recovery
from headrace.storage.swapping import CLEANER, Mark
from headrace.storage.sync import encode_offset

if TYPE_CHECKING:
    from headrace.storage.log import Log


def truncate(log: Log, offset: int, *, now_ms: int) -> None:
    """See `Log.truncate`."""
    if offset >= log.end_offset:
        return
    _prepare(log)
    shelf, backlog = log._shelf, log._backlog
    _, boundary = shelf.segments[shelf.number_of(offset)].position_of(offset)
    cut_offset = min(offset, boundary)
    if log.recovery_point > cut_offset:
        backlog.lower_recovery_point(cut_offset)
    while len(shelf.segments) > 1 and shelf.active.base_offset >= cut_offset:
        log._discard(shelf.drop_newest())
    if cut_offset < shelf.active.base_offset:
        _restart_at(log, cut_offset)
    else:
        _cut_active(log, cut_offset)
    log.end_offset = cut_offset
    log.flushed_offset = min(log.flushed_offset, cut_offset)
    if cut_offset < log.start_offset:
        log.start_offset = cut_offset
        log._store_start_offset()
    _settle(log, cut_offset, now_ms)


def restart(log: Log, offset: int, *, now_ms: int) -> None:
    """Forget everything: the log is empty, and begins at `offset`. Blocking."""
    _prepare(log)
    log._backlog.lower_recovery_point(min(log.recovery_point, log.start_offset))
    while len(log._shelf.segments) > 1:
        log._discard(log._shelf.drop_newest())
    _restart_at(log, offset)
    log.start_offset = log.end_offset = log.flushed_offset = offset
    log._files.store(f"{log.path}/{recovery.START_OFFSET}", encode_offset(offset))
    _settle(log, offset, now_ms, keep_snapshots=False)


def _prepare(log: Log) -> None:
    if log.failed is not None:
        raise log.failed
    assert log._backlog.handed is None and log._shelf.swap is None, "no sync or swap may be under way"
    if log._backlog.chores:
        log.checkpoint()  # else a removal that waits would come before what it waits for
    if log._backlog.chores:
        raise DiskFullError(f"{log.path} cannot be cut: there is no space to store what must be stored before")


def _settle(log: Log, cut_offset: int, now_ms: int, *, keep_snapshots: bool = True) -> None:
    """The segments are as they shall be; so becomes what is known about them."""
    chores, files = log._backlog.chores, log._files
    log._backlog.recut = [log._shelf.active]
    kept = {at for at in log._snapshots.offsets if at <= cut_offset} if keep_snapshots else set()
    log._snapshots.keep(kept, chores)
    _remove_now(log)
    files.sync_directory(log.path)
    log.producers = recovery.restore_producers(log._snapshots, log._shelf.segments, now_ms, chores)
    if log.epochs.truncate_end(cut_offset if keep_snapshots else 0):
        path = f"{log.path}/{recovery.LEADER_EPOCHS}"
        files.store(path, log.epochs.encode())
        chores.stores.pop(path, None)
    mark = Mark(min(log.mark.first_dirty_offset, cut_offset), min(log.mark.gaps_below, cut_offset))
    if mark != log.mark:
        log.mark = mark
        chores.stores[f"{log.path}/{CLEANER}"] = mark.encode()


def _cut_active(log: Log, cut_offset: int) -> None:
    segment, chores = log._shelf.active, log._backlog.chores
    position, _ = segment.position_of(cut_offset)
    if segment in chores.indexes:
        chores.indexes.remove(segment)
    chores.removals += [f"{segment.path}.index", f"{segment.path}.timeindex"]
    log.size_bytes -= segment.size - position
    segment.file.truncate(position)
    segment.file.sync()  # else the old bytes could come back under a segment that was begun since
    segment.shrink(position, cut_offset)
    log._shelf.reopen(segment)


def _restart_at(log: Log, offset: int) -> None:
    """Nothing is left, and the log begins elsewhere."""
    log._discard(log._shelf.drop_newest())
    _remove_now(log)
    log._shelf.add(offset, log.config.index_interval_bytes)
    log._backlog.new_names = True


def _remove_now(log: Log) -> None:
    """Files must be gone before others of the same name are written."""
    for name in log._backlog.chores.removals:
        log._files.remove(name)
    log._backlog.chores.removals.clear()
