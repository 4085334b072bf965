"""What is in a log's directory, and what of it can be believed.

Rules:
- The *recovery point* is an offset below which everything was synced. It is stored after the sync, so it is never
  ahead of what is really durable; it may lag. No recovery ever cuts anything below it: whatever is wrong or missing
  there is a CorruptionError, and the partition stays offline.
- Up to the recovery point, bytes that a valid index covers are believed without being read. All other bytes are read:
  whole batches, CRCs, offsets without gaps.
- Above the recovery point the log is cut at the first bytes that are not a valid batch, if a torn write explains
  them; `damage` says how that is decided. If they were damaged after they had been durable, that is a CorruptionError.
- Compaction leaves gaps, below the recovery point and up to its own mark (`swapping`). A swap that was cut short is
  settled before anything is examined.
- Segments that lie wholly below the start offset are left-overs of a removal, and go. Segments behind a cut go, too.
- Leader epochs are outside the CRC. One that does not fit the history is damage, too. What nothing tells is a flipped
  low bit in the epoch of the very last batch above the recovery point: it looks like an election.
- A log begins with the segment that holds its start offset. If that one is missing, nothing behind it counts, as with
  any other gap.
- A missing or bad checkpoint counts as a recovery point of 0: everything is read, and the rules above do the rest.
- A log that ends before what the manifest knows to be durable is a CorruptionError, too: it is older, or was cut.
- `examine` only reads. `Log.open` carries out what it found; a dry run shows it.

The same files serve after a clean close and after a crash: a clean close stores index, producers and a recovery point
at the end of the log, so that nothing is left to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.errors import CorruptionError, StorageError
from headrace.storage.damage import is_damage
from headrace.storage.epochs import Epochs
from headrace.storage.identity import check_end
from headrace.storage.producers import Producers
from headrace.storage.segment import Segment, segment_name, walk
from headrace.storage.snapshots import Snapshots
from headrace.storage.swapping import Mark, load_mark
from headrace.storage.sync import RECOVERY_POINT, decode_offset
from headrace.wire.batch import BatchHeader, crc_matches

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.manifest import Known
    from headrace.storage.sync import Chores
    from headrace.storage.topic_config import TopicConfig

START_OFFSET: Final = "start-offset"
LEADER_EPOCHS: Final = "leader-epochs"
TAIL_BYTES: Final = 64 * 1024 * 1024  # how far behind a bad batch we look for valid ones
_EPOCHS_AHEAD: Final = 16  # a higher epoch that is one bit away from the last known one is a flipped bit
_SEGMENT_FILE: Final = re.compile(r"(\d{20})\.(log|index|timeindex|producers)\Z")


class Cut(NamedTuple):
    """A torn tail."""

    base_offset: int  # of the segment
    position: int
    lost_bytes: int
    reason: str


class Fault(NamedTuple):
    """Bytes that are not what they should be."""

    base_offset: int  # of the segment
    position: int
    offset: int
    reason: str


@dataclass(slots=True)
class Findings:
    """What `examine` found. The last segment is the one to append to; there may be none."""

    segments: list[Segment] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0
    recovery_point: int = 0
    producers: Producers = field(default_factory=Producers)
    epochs: Epochs = field(default_factory=Epochs)
    cuts: list[Cut] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)  # files to remove
    scanned_bytes: int = 0
    snapshots: set[int] = field(default_factory=set)  # offsets of the producers' snapshots that stay
    epochs_changed: bool = False  # the stored history is not what was found
    mark: Mark = Mark()  # how far compaction has come


def examine(files: Files, path: str, config: TopicConfig, *, now_ms: int, known: Known | None = None) -> Findings:
    """Read a log's directory. Changes nothing. Blocking. Raises CorruptionError if durable bytes are damaged or gone.

    `known`: what the manifest knows of the log.
    """
    examination = _Examination(files, path, config)
    try:
        found = examination.run(now_ms)
        if known is not None:
            check_end(path, found.end_offset, known)
        return found
    except StorageError:
        examination.close()
        raise


class _Examination:
    """One reading of one directory."""

    def __init__(self, files: Files, path: str, config: TopicConfig) -> None:
        self._files = files
        self._path = path
        self._config = config
        self._found = Findings()
        self._names: dict[str, list[int]] = {"log": [], "index": [], "timeindex": [], "producers": []}
        self._expected = 0  # the offset that comes next
        self._scanned_from = 0  # everything from this offset on was scanned, and its epochs are in `_scanned_epochs`
        self._scanned_epochs: list[tuple[int, int]] = []
        self._last_producer_offset = -1  # of a scanned batch with a producer id
        self._stored_epochs: Epochs | None = None
        self._start_is_known = True  # no start offset was stored, or it is whole

    def run(self, now_ms: int) -> Findings:
        found = self._found
        for name in self._files.names(self._path):
            if (match := _SEGMENT_FILE.match(name)) is not None:
                self._names[match[2]].append(int(match[1]))
        found.recovery_point = decode_offset(self._load(RECOVERY_POINT)) or 0
        found.mark = load_mark(self._files, self._path) or Mark()
        start = self._load(START_OFFSET)
        found.start_offset = decode_offset(start) or 0
        self._start_is_known = start is None or decode_offset(start) is not None
        self._stored_epochs = Epochs.decode(self._load(LEADER_EPOCHS))
        self._open_segments()
        self._read_segments()
        segments = found.segments
        found.end_offset = segments[-1].end_offset if segments else found.start_offset
        if found.end_offset < found.recovery_point:
            raise CorruptionError(
                f"{self._path}: the log ends at offset {found.end_offset}, but everything below "
                f"{found.recovery_point} was durable"
            )
        if segments:
            found.start_offset = min(max(found.start_offset, segments[0].base_offset), found.end_offset)
        self._restore_epochs()
        self._restore_producers(now_ms)
        self._list_surplus()
        return found

    def close(self) -> None:
        for segment in self._found.segments:
            segment.file.close()

    def _load(self, name: str) -> bytes | None:
        return self._files.load(f"{self._path}/{name}")

    def _open_segments(self) -> None:
        bases = self._names["log"]
        # The next segment's base bounds a segment: what ends at or below the start offset was removed before, or was
        # about to be. It goes unless the producers must be replayed from it: removals wait for their snapshot.
        snapshot_offset, _ = Snapshots(self._files, self._path, self._names["producers"]).newest()
        limit_offset = min(self._found.start_offset, snapshot_offset)
        needed = [base for number, base in enumerate(bases) if base == bases[-1] or bases[number + 1] > limit_offset]
        interval_bytes = self._config.index_interval_bytes
        for base in needed:
            file = self._files.open(f"{self._path}/{segment_name(base)}.log")
            self._found.segments.append(Segment(self._files, self._path, base, file, interval_bytes=interval_bytes))

    def _read_segments(self) -> None:
        found = self._found
        segments = found.segments
        if not segments:
            return
        if self._start_is_known and segments[0].base_offset > found.start_offset:
            if found.start_offset < found.recovery_point:
                raise CorruptionError(
                    f"{self._path}: the log begins at offset {found.start_offset}, but its first segment at "
                    f"{segments[0].base_offset}"
                )
            self._drop_from(0)
            return
        self._expected = self._scanned_from = segments[0].base_offset
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if segment.base_offset != self._expected and not self._may_begin(segment):
                self._drop_from(number)
                return
            self._expected = max(self._expected, segment.base_offset)
            self._read_segment(segment, following)
            if segment.size < segment.file.size and not self._may_be_cut(segment, following):
                self._drop_from(number + 1)
                return

    def _may_begin(self, segment: Segment) -> bool:
        """Whether a segment may follow although offsets are missing, or doubled, before it."""
        if segment.base_offset > self._expected and self._may_jump_to(segment.base_offset):
            return True
        if self._expected < self._found.recovery_point or segment.base_offset < self._expected:
            raise CorruptionError(
                f"{self._path}: offset {self._expected} should follow, but the next segment begins at "
                f"{segment.base_offset}"
            )
        return False

    def _read_segment(self, segment: Segment, following: int | None) -> None:
        """Believe what a valid index covers; scan the rest."""
        found = self._found
        loaded = segment.load_index()
        if loaded is not None and loaded[1].end_offset <= found.recovery_point:
            if loaded[1].size_bytes > segment.file.size:
                raise CorruptionError(f"{segment.path}.log has lost bytes that were durable")
            segment.adopt(*loaded)
            self._expected = self._scanned_from = segment.end_offset
            self._scanned_epochs.clear()
        if self._expected != following:
            self._scan(segment)
        if following is not None and segment.size == segment.file.size and self._may_jump_to(following):
            segment.gapped = segment.gapped or following > self._expected
            segment.end_offset = self._expected = max(self._expected, following)

    def _may_jump_to(self, offset: int) -> bool:
        """Whether the offsets before `offset` may be missing: compaction took them, here or where we copied them from.

        It takes durable ones only. Where they are missing in a copy that is not durable yet, the mark says so.
        """
        found = self._found
        return offset <= found.mark.gaps_below or (offset <= found.recovery_point and self._config.compacts)

    def _scan(self, segment: Segment) -> None:
        begun = segment.size
        for _, header, data in walk(segment.file, segment.size, segment.file.size):
            ahead = header.base_offset - self._expected
            if ahead < 0 or (ahead and not self._may_jump_to(header.base_offset)):
                break
            if header.last_offset_delta < 0 or not crc_matches(data, header) or not self._epoch_fits(header):
                break
            segment.note_header(header)
            self._expected = segment.end_offset
            if header.leader_epoch >= 0 and (
                not self._scanned_epochs or header.leader_epoch > self._scanned_epochs[-1][0]
            ):
                self._scanned_epochs.append((header.leader_epoch, header.base_offset))
            if header.producer_id >= 0:
                self._last_producer_offset = header.base_offset
        self._found.scanned_bytes += segment.size - begun

    def _epoch_fits(self, header: BatchHeader) -> bool:
        """Leader epochs lie outside the CRC: they must rise, and agree with the history as far as that goes."""
        epoch = header.leader_epoch
        before = self._scanned_epochs[-1][0] if self._scanned_epochs else -1
        if epoch < before:
            return False
        stored = self._stored_epochs or Epochs()
        known = stored.epoch_at(header.base_offset)
        if known >= 0 and (epoch <= stored.latest or header.base_offset < self._found.recovery_point):
            return epoch == known
        known = max(known, before)
        return known < 0 or epoch - known < _EPOCHS_AHEAD or (epoch ^ known).bit_count() > 1

    def _may_be_cut(self, segment: Segment, following: int | None) -> bool:
        """A segment's file has bytes that are no valid batch. True if the log goes on behind it all the same."""
        found = self._found
        if self._expected == following:
            reason = "bytes behind the last batch"  # left by an append that failed before the roll
        else:
            if self._expected < found.recovery_point:
                raise self._corruption(segment, "a durable batch is damaged")
            tail = segment.file.read(segment.size, min(TAIL_BYTES, segment.file.size - segment.size))
            if is_damage(tail, self._expected, segment.size):
                raise self._corruption(segment, "a batch was damaged after it had been written")
            reason = "torn write"
        found.cuts.append(Cut(segment.base_offset, segment.size, segment.file.size - segment.size, reason))
        return self._expected == following

    def _corruption(self, segment: Segment, what: str) -> CorruptionError:
        return CorruptionError(f"{segment.path}.log: {what} at position {segment.size} (offset {self._expected})")

    def _drop_from(self, number: int) -> None:
        """Segments from `number` on lie behind a cut."""
        found = self._found
        for segment in found.segments[number:]:
            if segment.file.size:
                found.cuts.append(Cut(segment.base_offset, 0, segment.file.size, "behind a torn write"))
            found.surplus += segment.discard()
        del found.segments[number:]

    def _restore_epochs(self) -> None:
        found = self._found
        stored = self._stored_epochs
        if stored is None and found.segments and self._scanned_from > found.segments[0].base_offset:
            self._scanned_epochs = [
                (header.leader_epoch, header.base_offset) for header in self._headers(found.start_offset)
            ]
        before = stored.entries if stored is not None else ()
        epochs = stored or Epochs()
        # What is stored for offsets that were scanned may be from before a cut: the batches know better.
        # Below the recovery point the history is whole, and compaction may have taken the batches that began an epoch.
        epochs.truncate_end(min(max(self._scanned_from, found.recovery_point), found.end_offset))
        for epoch, offset in self._scanned_epochs:
            epochs.assign(epoch, offset)
        epochs.truncate_start(found.start_offset)
        found.epochs = epochs
        found.epochs_changed = epochs.entries != before

    def _restore_producers(self, now_ms: int) -> None:
        found = self._found
        usable = [offset for offset in self._names["producers"] if offset <= found.end_offset]
        snapshots = Snapshots(self._files, self._path, usable)
        snapshot_offset, found.producers = snapshots.newest()
        found.snapshots = snapshots.offsets
        if not found.segments:
            return
        first_offset = max(snapshot_offset, found.segments[0].base_offset)
        if found.producers.lacks_aborted:
            find_aborted(found.producers, found.segments, snapshot_offset)
        if first_offset >= self._scanned_from and self._last_producer_offset < first_offset:
            return  # the scan has seen all of it, and no producer
        replay(found.producers, batches_from(found.segments, snapshot_offset), snapshot_offset, now_ms)

    def _headers(self, offset: int) -> Iterator[BatchHeader]:
        return (header for header, _ in batches_from(self._found.segments, offset))

    def _list_surplus(self) -> None:
        found = self._found
        kept = {segment.base_offset for segment in found.segments}
        for kind in ("log", "index", "timeindex"):
            found.surplus += [
                f"{self._path}/{segment_name(base)}.{kind}" for base in self._names[kind] if base not in kept
            ]
            # An index that was not believed may be from before a cut, and would be, once the log has grown again. The
            # sealed segments get new ones; the open one gets its own when it is sealed.
            if found.segments and found.segments[-1].stored_size < 0:
                kept.discard(found.segments[-1].base_offset)
        snapshots = Snapshots(self._files, self._path)
        found.surplus += [
            snapshots.path(offset) for offset in self._names["producers"] if offset not in found.snapshots
        ]
        found.surplus = list(dict.fromkeys(found.surplus))


def batches_from(segments: list[Segment], offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches that end at or after `offset`: headers, and the buffers that they lie in. Blocking."""
    for segment in segments:
        if segment.end_offset <= offset or not segment.size:
            continue
        index = segment.warm()
        start = index.positions[index.block_of_offset(offset)]
        for _, header, data in walk(segment.file, start, segment.size):
            if header.base_offset + header.last_offset_delta >= offset:
                yield header, data


def replay(
    producers: Producers, batches: Iterator[tuple[BatchHeader, bytes]], offset: int, now_ms: int, *, until: int = 2**63
) -> None:
    """Tell `producers` of the batches from `offset` on. They count as seen now: nobody knows when they came."""
    for header, data in batches:
        if header.base_offset >= until:
            return
        if header.producer_id >= 0 and header.base_offset >= offset:
            producers.add(header, header.base_offset, header.max_timestamp, now_ms, data)


def find_aborted(producers: Producers, segments: list[Segment], offset: int) -> None:
    """Rebuild the list of what was aborted before `offset`, from all that is left of the log. Blocking."""
    fresh = Producers()
    replay(fresh, batches_from(segments, 0), 0, 0, until=offset)
    producers.transactions.aborted = fresh.transactions.aborted
    producers.lacks_aborted = False


def restore_producers(snapshots: Snapshots, segments: list[Segment], now_ms: int, unstored: Chores) -> Producers:
    """The producers as of the end of the log. Blocking."""
    offset, producers = snapshots.newest(unstored)
    if producers.lacks_aborted:
        find_aborted(producers, segments, offset)
    replay(producers, batches_from(segments, offset), offset, now_ms)
    return producers


def faults_of(segments: list[Segment], epochs: Epochs) -> list[Fault]:
    """Every batch of some segments that is not what it should be; read in full. Blocking."""
    faults = []
    for segment in segments:
        position, expected = 0, segment.base_offset
        for position, header, data in walk(segment.file, 0, segment.size):
            if not crc_matches(data, header):
                faults.append(Fault(segment.base_offset, position, expected, "bad checksum"))
            elif header.base_offset < expected or (header.base_offset > expected and not segment.gapped):
                faults.append(Fault(segment.base_offset, position, expected, f"offset {header.base_offset}"))
            elif header.leader_epoch != epochs.epoch_at(header.base_offset) >= 0:
                faults.append(Fault(segment.base_offset, position, expected, f"leader epoch {header.leader_epoch}"))
            expected = header.base_offset + header.last_offset_delta + 1
            position += header.size
        if position != segment.size:
            faults.append(Fault(segment.base_offset, position, expected, "no batch"))
        elif expected != segment.end_offset and not segment.gapped:
            faults.append(Fault(segment.base_offset, position, expected, f"ends before {segment.end_offset}"))
    return faults
