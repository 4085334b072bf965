"""How compacted segments take the place of others, so that a crash at any point leaves the one or the other.

Files in a log's directory:
- `<base>.cleaned`: a compacted segment that nobody counts on yet.
- `<base>.swap`: the decision. It names the segments that `<base>.cleaned` replaces, and that file's size and checksum.
  From the moment that both are durable the swap is finished, if not by us then by the next start; before, nothing has
  happened. A decision that came back after it was carried out does no harm.
- `cleaner`: up to where the log was compacted, and below which offset records may be missing. It is there before the
  first record is.

Rules:
- Segments are swapped in the order of their offsets, one decision at a time.
- One swap of a log is under way at a time, and while it is, no segment is dropped. Its files are its own, except that a
  sync that began before it may still store the index of what is replaced: so a sync comes between `install` and `run`.
- A swap does not ride on a sync, since others wait for that. It syncs as little as it can: each sync of the directory
  delays everybody who writes to the same disk.
- What is replaced loses its name at once; readers who have it open may finish, for `file.delete.delay.ms`.
- Every step may be done twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
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
CLEANER: Final = "cleaner"
READ_BYTES: Final = 1024 * 1024
ABORTED: Final = "aborted-transactions"  # see `snapshots`
_LEFT_OVER: Final = re.compile(r"\d{20}\.cleaned\Z")
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
    checksum: int

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def decode(cls, content: bytes) -> _Decision:
        if len(content) < 4 or int.from_bytes(content[:4], "big") != crc32c(content[4:]):
            raise CorruptionError("the decision of a compaction is damaged")
        return msgspec.msgpack.decode(content[4:], type=cls)

    def is_about(self, files: Files, path: str) -> bool:
        """Whether the file at `path` is the compacted segment that was decided on. Reads it."""
        if not files.exists(path):
            return False
        file = files.open(path)
        try:
            if file.size != self.size_bytes:
                return False
            checksum = 0
            for position in range(0, self.size_bytes, READ_BYTES):
                checksum = crc32c(file.read(position, min(READ_BYTES, self.size_bytes - position)), checksum)
            return checksum == self.checksum
        finally:
            file.close()


class Swap:
    """One compacted segment and those that it replaces, in order."""

    def __init__(
        self, files: Files, folder: str, segment: Segment, checksum: int, replaced: Sequence[Segment], mark: Mark
    ) -> None:
        self.segment = segment
        self.replaced = tuple(replaced)
        self.sizes = tuple(old.size for old in replaced)
        self.mark = mark
        self.done = False
        self._files = files
        self._folder = folder
        bases = [old.base_offset for old in replaced]
        self._decision = _Decision(1, bases, segment.size, checksum)

    def run(self) -> None:
        """Make it so on the disk; after a full disk, again. Blocking. The compacted segment must be synced."""
        if self.done or self.segment.removed:
            return  # the log may be gone: its directory must not come into being again
        files, folder = self._files, self._folder
        stored = load_mark(files, folder)
        if stored is None or stored.gaps_below < self.mark.gaps_below:
            files.store(f"{folder}/{CLEANER}", self.mark.encode())
        base = self._decision.replaced[0]
        if files.exists(cleaned_path(folder, base)):
            files.store(f"{folder}/{segment_name(base)}{SWAP}", self._decision.encode())
        _carry_out(files, folder, self._decision)
        self.done = True

    def discard(self) -> None:
        """It was not installed, and never will be. Blocking."""
        self.segment.file.close()
        self._files.remove(cleaned_path(self._folder, self.segment.base_offset))


def cleaned_path(folder: str, base_offset: int) -> str:
    return f"{folder}/{segment_name(base_offset)}{CLEANED}"


def _carry_out(files: Files, folder: str, decision: _Decision) -> None:
    """The steps after the decision."""
    paths = [f"{folder}/{segment_name(base)}" for base in decision.replaced]
    for path in paths:
        files.remove(f"{path}.index")
        files.remove(f"{path}.timeindex")
    if files.exists(paths[0] + CLEANED):
        files.rename(paths[0] + CLEANED, f"{paths[0]}.log")
    for path in paths[1:]:
        files.remove(f"{path}.log")
    files.sync_directory(folder)
    files.remove(paths[0] + SWAP)


class Attic:
    """Segments that were replaced, until no reader can need them. Belongs to a log's owner."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Swap]] = deque()

    def keep(self, swap: Swap, until_ms: int) -> None:
        self._kept.append((until_ms, swap))

    def reap(self, now_ms: int) -> int:
        """Close those whose time has come; returns how many are left."""
        while self._kept and self._kept[0][0] <= now_ms and self._kept[0][1].done:
            _close(self._kept.popleft()[1])
        return len(self._kept)

    def close(self) -> None:
        for _, swap in self._kept:
            _close(swap)


def _close(swap: Swap) -> None:
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
        base = int(match[1])
        decision = _Decision.decode(files.load(f"{folder}/{name}") or b"")
        if decision.version != 1 or decision.replaced[0] != base:
            raise CorruptionError(f"{folder}/{name}: a decision that does not fit")
        cleaned = cleaned_path(folder, base)
        if not decision.is_about(files, cleaned):
            # Either it has its name already, or the decision was never durable together with it, or it came back.
            files.remove(cleaned)
            if not decision.is_about(files, f"{folder}/{segment_name(base)}.log"):
                files.remove(f"{folder}/{name}")
                continue
        _carry_out(files, folder, decision)
    for name in names:
        if _LEFT_OVER.match(name):
            files.remove(f"{folder}/{name}")
    files.sync_directory(folder)


def load_mark(files: Files, folder: str) -> Mark | None:
    """None if the log was never compacted, or nobody can tell."""
    return Mark.decode(files.load(f"{folder}/{CLEANER}"))


# ---------------------------------------------------------------------- for a log's owner


def install(log: Log, swap: Swap, now_ms: int) -> bool:
    """Readers get the compacted segment from now on. What must follow: a sync, `swap.run` in a worker, `complete`.

    False if what it replaces is not in the log any more, or has changed: then nothing has happened.
    """
    if log.failed is not None:
        raise log.failed
    shelf = log._shelf
    assert shelf.swap is None, "one at a time"
    if log.cutting:
        return False
    if tuple(old.size for old in swap.replaced) != swap.sizes or not shelf.replace(swap.replaced, swap.segment):
        return False
    log.size_bytes += swap.segment.size - sum(swap.sizes)
    log.mark = swap.mark
    shelf.swap = swap
    shelf.attic.keep(swap, now_ms + log.config.file_delete_delay_ms)
    return True


def complete(log: Log, swap: Swap) -> None:
    """`swap.run` has succeeded: the compacted segment is like all others. The next sync stores its index."""
    assert log._shelf.swap is swap and swap.done
    log._shelf.swap = None
    log._backlog.chores.indexes.append(swap.segment)
    count = 0
    while log._shelf.segments[count].sealed and log._shelf.segments[count].end_offset <= log.start_offset:
        count += 1
    if count:
        log._drop_oldest(count)  # what was deleted meanwhile


def note_gap(log: Log, offset: int) -> None:
    """Offsets before `offset` will be missing: whoever we copy from has compacted its log. Durable with the sync."""
    if offset > log.mark.gaps_below:
        log.mark = log.mark._replace(gaps_below=offset)
        log._backlog.chores.stores[f"{log.path}/{CLEANER}"] = log.mark.encode()


def finish(log: Log, first_dirty_offset: int, gone: set[int]) -> None:
    """A pass is over. The transactions that were ended by the markers at `gone` have left nothing behind."""
    log.mark = log.mark._replace(first_dirty_offset=first_dirty_offset)
    stores = log._backlog.chores.stores
    stores[f"{log.path}/{CLEANER}"] = log.mark.encode()
    aborted = log.producers.transactions.aborted
    if gone and aborted:
        aborted.forget(gone)
        log._backlog.chores.snapshots[f"{log.path}/{ABORTED}"] = aborted.encode(log.end_offset)


def reap(log: Log, now_ms: int) -> int:
    """Let replaced segments go whose time has come; returns how many swaps are still remembered."""
    return log._shelf.attic.reap(now_ms)
