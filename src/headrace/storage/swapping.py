"""How compacted segments take the place of others, so that a crash at any point leaves the one or the other.

Files in a log's directory:
- `<base>.cleaned`: a compacted segment that nobody counts on yet.
- `<base>.swap`: the decision. It names the segments that `<base>.cleaned` replaces. From the moment that it is durable
  the swap is finished, if not by us then by the next start; before it, nothing has happened.
- `<base>.<number>.deleted`: a segment that was replaced. Readers may still have it open; it goes after a while.
- `cleaner`: up to where the log was compacted, and below which offset records may be missing.

Rules:
- The decision is made when bytes and name of the compacted segment are durable, never before.
- Segments are swapped in the order of their offsets, one decision at a time.
- A swap is run by a sync, never beside one: what else is removed or stored in the directory waits its turn.
- Indexes of what is replaced go before the new segment has its name, so that none is taken for the new one's.
- Every step may be done twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from crc32c import crc32c

from headrace.core.errors import CorruptionError
from headrace.storage.segment import Segment, segment_name

if TYPE_CHECKING:
    from headrace.core.ports import Files
    from headrace.storage.log import Log

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"
CLEANER: Final = "cleaner"
ABORTED: Final = "aborted-transactions"  # see `snapshots`
_NUMBERS: Final = count(1)
_LEFT_OVER: Final = re.compile(r"\d{20}\.(cleaned|\d+\.deleted)\Z")
_DECISION: Final = re.compile(r"(\d{20})\.swap\Z")


class Mark(NamedTuple):
    """How far compaction has come in a log."""

    first_dirty_offset: int = 0  # everything below was compacted once
    gaps_below: int = 0  # offsets from here on are complete

    def encode(self) -> bytes:
        body = b"%d %d\n" % self
        return body + b"%08x\n" % crc32c(body)

    @classmethod
    def decode(cls, content: bytes | None) -> Mark | None:
        """None if there is no content, or if it is damaged."""
        body, newline, check = (content or b"").partition(b"\n")
        if check != b"%08x\n" % crc32c(body + newline):
            return None
        first_dirty_offset, gaps_below = body.split()
        return cls(int(first_dirty_offset), int(gaps_below))


class _Decision(msgspec.Struct, array_like=True):
    version: int
    replaced: list[int]
    size_bytes: int
    mark: tuple[int, int]

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, content: bytes) -> _Decision:
        if len(content) < 4 or int.from_bytes(content[:4], "big") != crc32c(content[4:]):
            raise CorruptionError("the decision of a compaction is damaged")
        return msgspec.msgpack.decode(content[4:], type=cls)


class Swap:
    """One compacted segment and those that it replaces, in order."""

    def __init__(self, files: Files, folder: str, segment: Segment, replaced: Sequence[Segment], mark: Mark) -> None:
        self.segment = segment
        self.replaced = tuple(replaced)
        self.sizes = tuple(old.size for old in replaced)
        self.mark = mark
        self.done = False
        self._files = files
        self._folder = folder
        self._number = next(_NUMBERS)  # the same base may be replaced again while readers still have the old file

    def run(self) -> None:
        """Make it so on the disk. Blocking; part of a sync. The compacted segment must be synced."""
        if self.done:
            return
        files, folder = self._files, self._folder
        bases = [segment.base_offset for segment in self.replaced]
        decision = f"{folder}/{segment_name(bases[0])}{SWAP}"
        if not files.exists(decision) and files.exists(cleaned_path(folder, bases[0])):
            files.store(decision, _Decision(1, bases, self.segment.file.size, (self.mark[0], self.mark[1])).encode())
        _carry_out(files, folder, bases, self.mark, self.set_aside)
        self.done = True

    def discard(self) -> None:
        """It was not installed, and never will be. Blocking."""
        self.segment.file.close()
        self._files.remove(cleaned_path(self._folder, self.segment.base_offset))

    def set_aside(self, path: str) -> str:
        """Where a replaced segment waits for its end; `path` has no extension."""
        return f"{path}.{self._number}{DELETED}"


def cleaned_path(folder: str, base_offset: int) -> str:
    return f"{folder}/{segment_name(base_offset)}{CLEANED}"


def _carry_out(
    files: Files, folder: str, bases: list[int], mark: Mark, set_aside: Callable[[str], str] | None = None
) -> None:
    """The steps after the decision. With `set_aside`, what is replaced only gets another name."""
    paths = [f"{folder}/{segment_name(base)}" for base in bases]
    if files.exists(paths[0] + CLEANED):
        files.store(f"{folder}/{CLEANER}", mark.encode())
        for path in paths:
            files.remove(f"{path}.index")
            files.remove(f"{path}.timeindex")
        files.sync_directory(folder)
        for path in paths:
            if set_aside is not None and files.exists(f"{path}.log"):
                files.rename(f"{path}.log", set_aside(path))
        files.rename(paths[0] + CLEANED, f"{paths[0]}.log")
    for path in paths[1:]:
        files.remove(f"{path}.log")
    files.sync_directory(folder)
    files.remove(paths[0] + SWAP)
    files.sync_directory(folder)  # else the decision could come back and meet another compacted segment


class Attic:
    """Segments that were replaced, until no reader can need them. Belongs to a log's owner."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Swap]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, swap: Swap, until_ms: int) -> None:
        self._kept.append((until_ms, swap))

    def take_due(self, now_ms: int) -> list[str]:
        """Close those whose time has come; returns the files that are to be removed."""
        due: list[str] = []
        while self._kept and self._kept[0][0] <= now_ms and self._kept[0][1].done:
            _, swap = self._kept.popleft()
            for segment in swap.replaced:
                segment.file.close()
                due.append(swap.set_aside(segment.path))
        return due

    def close(self) -> None:
        for _, swap in self._kept:
            for segment in swap.replaced:
                segment.file.close()


def pending(files: Files, folder: str) -> list[str]:
    """What a compaction that was cut short has left behind: names of files."""
    return [name for name in files.names(folder) if _LEFT_OVER.match(name) or _DECISION.match(name)]


def settle(files: Files, folder: str) -> None:
    """Finish what was decided, undo what was not. Blocking. Raises CorruptionError if a decision is damaged."""
    names = pending(files, folder)
    if not names:
        return
    for name in names:
        if (match := _DECISION.match(name)) is None:
            continue
        decision = _Decision.decode(files.load(f"{folder}/{name}") or b"")
        base = int(match[1])
        cleaned = cleaned_path(folder, base)
        if decision.version != 1 or decision.replaced[0] != base:
            raise CorruptionError(f"{folder}/{name}: a decision that does not fit")
        compacted = cleaned if files.exists(cleaned) else f"{folder}/{segment_name(base)}.log"
        file = files.open(compacted)
        size_bytes = file.size
        file.close()
        if size_bytes != decision.size_bytes:
            raise CorruptionError(f"{compacted} has {size_bytes} bytes, but {decision.size_bytes} were durable")
        _carry_out(files, folder, decision.replaced, Mark(*decision.mark))
    for name in names:
        if _LEFT_OVER.match(name):
            files.remove(f"{folder}/{name}")
    files.sync_directory(folder)


def load_mark(files: Files, folder: str) -> Mark | None:
    """None if the log was never compacted, or nobody can tell."""
    return Mark.decode(files.load(f"{folder}/{CLEANER}"))


# ---------------------------------------------------------------------- for a log's owner


def install(log: Log, swap: Swap, now_ms: int) -> bool:
    """Readers get the compacted segment from now on; the next sync makes it so on the disk.

    False if what it replaces is not in the log any more, or has changed: then nothing has happened.
    """
    if log.failed is not None:
        raise log.failed
    shelf, backlog = log._shelf, log._backlog
    if tuple(old.size for old in swap.replaced) != swap.sizes or not shelf.replace(swap.replaced, swap.segment):
        return False
    log.size_bytes += swap.segment.size - sum(swap.sizes)
    log.mark = swap.mark
    backlog.chores.swaps.append(swap)
    backlog.chores.indexes.append(swap.segment)
    shelf.attic.keep(swap, now_ms + log.config.file_delete_delay_ms)
    return True


def finish(log: Log, first_dirty_offset: int, gone: set[int]) -> None:
    """A pass is over. The transactions that were ended by the markers at `gone` have left nothing behind."""
    log.mark = log.mark._replace(first_dirty_offset=first_dirty_offset)
    stores = log._backlog.chores.stores
    stores[f"{log.path}/{CLEANER}"] = log.mark.encode()
    aborted = log.producers.transactions.aborted
    if gone and aborted:
        aborted.forget(gone)
        log._backlog.chores.snapshots[f"{log.path}/{ABORTED}"] = aborted.encode(log.end_offset)


def reap(log: Log, now_ms: int) -> bool:
    """Let replaced segments go whose time has come. True if the next sync has something to remove."""
    due = log._shelf.attic.take_due(now_ms)
    log._backlog.chores.removals += due
    return bool(due)
