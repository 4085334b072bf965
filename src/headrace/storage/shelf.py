"""The segments of one log, in order, and how to find a place in them.

Rules:
- There is always at least one segment; the last one is open, the others are sealed.
- A span ends at a batch boundary that is known without reading: an index entry, the end of a segment, or the flushed
  offset. It begins at one, too; if it begins early, the span itself skips what was not asked for.
- Readers that go forward cost no search: where a span ended is remembered for the one who comes next.
- The indexes of only a few sealed segments stay in memory. What is asked of the others finds its place in a worker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.errors import StorageError
from headrace.storage.lookup import LatestTimeLookup, TimeLookup
from headrace.storage.segment import Segment, segment_name
from headrace.storage.span import ColdSpan, Span
from headrace.storage.swapping import Attic

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.epochs import Epochs
    from headrace.storage.index import Index
    from headrace.storage.swapping import Swap

_MEMO_ENTRIES: Final = 64
_WARM_SEGMENTS: Final = 4

Place = tuple[Segment, int]  # a segment and a position in it


class Shelf:
    """See the module."""

    __slots__ = (
        "_bases",
        "_epochs",
        "_files",
        "_flushed",
        "_flushed_offset",
        "_memo",
        "_path",
        "_warm",
        "active",
        "attic",
        "closed",
        "segments",
        "swap",
    )

    def __init__(self, files: Files, path: str, segments: list[Segment], epochs: Epochs) -> None:
        """`add` must follow if there is no segment yet."""
        self._files = files
        self._epochs = epochs
        self._path = path
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._memo: dict[int, Place] = {}  # offset -> place of a batch boundary
        self._flushed_offset = -1
        self._flushed: Place | None = None
        self._warm: list[Segment] = []
        self.attic = Attic()
        self.swap: Swap | None = None  # that is under way
        self.closed = False
        if segments:
            self.active = segments[-1]
            for segment in segments[:-1]:
                segment.sealed = True

    # ------------------------------------------------------------------ change

    def add(self, base_offset: int, interval_bytes: int) -> Segment:
        """Seal the open segment and begin a new one. It has no durable name yet."""
        file = self._files.open(f"{self._path}/{segment_name(base_offset)}.log", create=True)
        if file.size:
            file.truncate(0)
        segment = Segment(self._files, self._path, base_offset, file, interval_bytes=interval_bytes)
        if self.segments:
            self.active.sealed = True
            self.keep_warm(self.active)
        self.segments.append(segment)
        self._bases.append(base_offset)
        self.active = segment
        return segment

    def drop_oldest(self, count: int) -> list[Segment]:
        """Take the oldest segments out; never the open one, and none while one of them is being swapped."""
        assert count < len(self.segments), "the open segment stays"
        if self.swap is not None:
            return []
        dropped = self.segments[:count]
        del self.segments[:count], self._bases[:count]
        self._forget(dropped)
        return dropped

    def drop_newest(self) -> Segment:
        """Take the open segment out, so that the one before it is open again, or none is left."""
        dropped = self.segments.pop()
        self._bases.pop()
        if self.segments:
            self.reopen(self.segments[-1])
        self._forget([dropped])
        return dropped

    def reopen(self, segment: Segment) -> None:
        """Append to the last segment, whatever it was."""
        segment.warm()
        segment.sealed = False
        self.active = segment
        self._forget([segment])

    def replace(self, old: Sequence[Segment], new: Segment) -> bool:
        """Put a compacted segment in the place of some sealed ones. False if they are not all there any more."""
        number = self.number_of(new.base_offset)
        if tuple(self.segments[number : number + len(old)]) != tuple(old) or old[-1] is self.active:
            return False
        new.sealed = True
        self.segments[number : number + len(old)] = [new]
        self._bases[number : number + len(old)] = [new.base_offset]
        flushed = self._flushed  # lies in the open segment, or behind
        self._forget(list(old))
        if flushed is not None and flushed[0] not in old:
            self._flushed = flushed
        for segment in old:
            segment.replaced = True
        self._remember(new)
        return True

    def close(self) -> None:
        """Nothing here is readable any more."""
        self.closed = True
        self.attic.close()
        for segment in self.segments:
            segment.removed = True
            segment.file.close()

    def _forget(self, segments: list[Segment]) -> None:
        self._memo.clear()
        self._flushed = None
        self._warm = [segment for segment in self._warm if segment not in segments]

    def mark_flushed(self, offset: int, place: Place) -> None:
        """Everything below `offset`, which is at `place`, is durable: readers will ask for it as a limit."""
        self._flushed_offset = offset
        self._flushed = place
        if len(self._warm) > _WARM_SEGMENTS:
            self._cool_down()  # their indexes could not be dropped before they were stored

    # ------------------------------------------------------------------ find

    def number_of(self, offset: int) -> int:
        """The number of the segment in which `offset` lies, or would lie."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def locate(self, offset: int, max_bytes: int, limit_offset: int) -> Span | None:
        """See `Log.locate`; `offset` is in the log and below the limit."""
        try:
            return self._locate(offset, max_bytes, limit_offset)
        except StorageError:  # where offsets are missing, finding is reading: whoever reads the span is told
            return ColdSpan(self._segment_of(offset), offset, max_bytes, limit_offset, self._epochs)

    def _locate(self, offset: int, max_bytes: int, limit_offset: int) -> Span | None:
        memo = self._memo
        place = memo.get(offset)
        if place is not None and place[1] < place[0].size:
            segment, start = place
        else:
            segment = self._segment_of(offset)
            if segment.index is None and not self._is_warm(segment):
                return ColdSpan(segment, offset, max_bytes, limit_offset, self._epochs)
            start = segment.start_of(offset, self.keep_warm(segment))

        if limit_offset >= segment.end_offset:
            end = segment.size
            next_offset = segment.end_offset
        else:
            flushed = self._flushed
            if flushed is not None and limit_offset == self._flushed_offset and flushed[0] is segment:
                end = flushed[1]
                next_offset = limit_offset
            elif segment.index is None and not self._is_warm(segment):
                return ColdSpan(segment, offset, max_bytes, limit_offset, self._epochs)
            else:
                end, next_offset = self._limit_in(segment, limit_offset)
                if offset >= next_offset or end <= start:
                    return None
        if end - start > max_bytes:
            if segment.index is None and not self._is_warm(segment):
                return ColdSpan(segment, offset, max_bytes, limit_offset, self._epochs)
            end, next_offset = self.keep_warm(segment).last_boundary(start, max_bytes, end, next_offset)
        if next_offset not in memo:
            if len(memo) >= _MEMO_ENTRIES:
                del memo[next(iter(memo))]
            memo[next_offset] = (segment, end)
        return Span(segment, start, end - start, offset, next_offset, self._epochs)

    def _segment_of(self, offset: int) -> Segment:
        number = self.number_of(offset)
        segment = self.segments[number]
        while offset >= segment.end_offset:  # between two segments, where offsets are missing
            number += 1
            segment = self.segments[number]
        return segment

    def _is_warm(self, segment: Segment) -> bool:
        """Whether a segment without index has been offered one. If not, it expects one from the next reader."""
        if segment.accept():
            return True
        segment.awaited = True
        self._remember(segment)
        return False

    def _limit_in(self, segment: Segment, limit_offset: int) -> tuple[int, int]:
        """(position, offset) of the boundary at or below `limit_offset`. Reads a little where it is not known."""
        place = self._memo.get(limit_offset)
        if place is not None and place[0] is segment:
            return place[1], limit_offset
        self.keep_warm(segment)
        position, boundary = segment.position_of(limit_offset)
        if boundary == limit_offset:
            self._memo[limit_offset] = (segment, position)
        return position, min(boundary, limit_offset)

    def keep_warm(self, segment: Segment) -> Index:
        """A segment's index, kept in memory for a while. Blocking unless it is there."""
        index = segment.warm()
        self._remember(segment)
        return index

    def _remember(self, segment: Segment) -> None:
        if segment.sealed and segment not in self._warm:
            self._warm.append(segment)
            self._cool_down()

    def _cool_down(self) -> None:
        for old in self._warm[:-_WARM_SEGMENTS]:
            old.cool()
            if old.index is None:
                self._warm.remove(old)

    def find_time(self, timestamp: int, start_offset: int) -> TimeLookup:
        places: list[tuple[Segment, int, int]] = []
        for segment in self.segments:
            if not segment.size or segment.end_offset <= start_offset:
                continue
            if places:
                places.append((segment, 0, segment.size))
            elif segment.max_timestamp >= timestamp:
                places.append((segment, -1, segment.size))
        return TimeLookup(timestamp, start_offset, places)

    def find_latest_time(self, start_offset: int) -> LatestTimeLookup:
        latest = max(segment.max_timestamp for segment in self.segments)
        guess = self.find_time(latest, start_offset) if latest >= 0 else TimeLookup(0, 0, [])
        segments = [(segment, segment.size) for segment in self.segments if segment.size]
        return LatestTimeLookup(start_offset, segments, guess)
