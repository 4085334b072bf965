"""What Raft keeps, in files: one journal of hard states, entries and at most one snapshot; or in memory, kept nowhere.

Rules:
- A save is one append and one sync. What it replaces stays in the journal: the last hard state counts, and an entry
  replaces every entry from its index on.
- A journal begins whole: it is stored aside and renamed into place. `compact`, and a snapshot from a leader, begin the
  next one; the one before is removed afterwards. The highest number counts.
- Behind every save that is synced, a mark is written; the next sync carries it to the disk. What stands before a mark
  was durable: if it cannot be read, it is damaged, and nothing is cut. Only bytes behind the last mark may be torn.
- The checksum of a record covers its position: bytes that belong elsewhere do not pass for records.
- `write` and `rewrite` are blocking and called one at a time, from any thread; all else belongs to the loop.
- A journal that lacks an entry that was applied here, as the data directory's manifest tells, is refused.
- A full disk leaves the journal as it was: the same `write` may be tried again. Any other failure is final.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from crc32c import crc32c

from headrace.core.errors import CorruptionError, DiskFullError, PassingError, StorageError
from headrace.core.units import MIB
from headrace.raft.encoding import decode_saved, encode_saved
from headrace.raft.log import Storage
from headrace.raft.memory import MemoryStorage
from headrace.raft.ready import Save
from headrace.raft.records import Entry, HardState, Snapshot

if TYPE_CHECKING:
    from headrace.core.ports import File, Files

DIRECTORY: Final = "metadata"
SUFFIX: Final = ".raft"
READ_BYTES: Final = 8 * MIB
RESERVE_BYTES: Final = MIB  # a proposal is taken only while so much is free: then its save fits, too

_BEGINNING: Final = b"headrace raft 1\n"
_HEAD: Final = struct.Struct(">IIB")  # length of the body, checksum, kind
_POSITION: Final = struct.Struct(">Q")
_HARD_STATE, _SNAPSHOT, _ENTRY, _MARK = range(1, 5)
_MARK_BODY: Final = b"\xf5synced\x0a"


class DurableStorage(Storage, Protocol):
    """What the driver needs: raft's `Storage`, and how to write it."""

    def room_for(self, size_bytes: int) -> None:
        """Raises DiskFullError if a proposal of so many bytes may not fit."""

    def write(self, saves: Sequence[Save]) -> None:
        """Make saves durable, in order. Blocking. Raises StorageError."""

    def save(self, save: Save) -> None:
        """Show what was written. On the loop, for each save in order."""

    def rewrite(self, snapshot: Snapshot) -> None:
        """Make a journal durable that begins with a snapshot of what was applied. Blocking. Raises StorageError."""

    def compact(self, snapshot: Snapshot) -> None:
        """Show what was rewritten. On the loop."""

    def close(self) -> None:
        """Blocking."""


class UnsavedStorage(MemoryStorage):
    """A `DurableStorage` that lives as long as its process: for tests."""

    def room_for(self, size_bytes: int) -> None:
        return None

    def write(self, saves: Sequence[Save]) -> None:
        return None

    def rewrite(self, snapshot: Snapshot) -> None:
        return None

    def close(self) -> None:
        return None


class RaftStorage(MemoryStorage):
    """A `DurableStorage` in files. The journal is held in memory, too: snapshots keep it short."""

    def __init__(self, files: Files, number: int, file: File, found: MemoryStorage) -> None:
        """Use `open`."""
        super().__init__(found.hard_state(), found.snapshot())
        self._files = files
        self._number = number
        self._file = file
        if found.last_index() >= found.first_index():
            super().save(Save(entries=tuple(found.entries(found.first_index(), found.last_index() + 1, 2**62))))
        self._written = found  # what the journal holds; `self` is what the loop has been told

    @classmethod
    def open(cls, files: Files, *, applied: tuple[int, int] = (0, 0)) -> RaftStorage:
        """Create, or recover what is there. Blocking. Raises StorageError with a message for the operator.

        `applied`: index and term of an entry that was applied and durable here.
        """
        numbers = _numbers(files)
        if not numbers:
            if applied[0]:
                raise _older(applied, 0)
            if files.exists("topics") or any(name.endswith(".log") for name in files.names(DIRECTORY)):
                raise StorageError(
                    f"the data directory holds topics, but no journal of the metadata ({DIRECTORY}/*{SUFFIX}):"
                    " it was partly emptied, or an older Headrace wrote it. Restore it from a backup"
                )
            numbers = [0]
            files.store(_path(0), _journal(MemoryStorage()))
        number = numbers[-1]
        found, size = read(files, number)
        reached = found.term(applied[0])
        if found.last_index() < applied[0] or (reached is not None and applied[0] and reached != applied[1]):
            raise _older(applied, found.last_index())
        file = files.open(_path(number))
        if file.size > size:
            file.truncate(size)
        file.append((_record(_MARK, _MARK_BODY, size),))
        file.sync()  # what was read is durable from here on, whoever wrote it
        for old in numbers[:-1]:
            files.remove(_path(old))
        return cls(files, number, file, found)

    def room_for(self, size_bytes: int) -> None:
        if self._files.free_bytes() < size_bytes + RESERVE_BYTES:
            raise DiskFullError("the disk is full")

    def write(self, saves: Sequence[Save]) -> None:
        snapshots = [place for place, save in enumerate(saves) if save.snapshot is not None]
        if snapshots:  # a leader's snapshot takes the place of everything
            fresh = MemoryStorage(self._written.hard_state())
            for save in saves[: snapshots[-1]]:
                fresh.save(Save(save.hard_state))
            for save in saves[snapshots[-1] :]:
                fresh.save(save)
            self._begin_next(fresh)
            return
        position = self._file.size
        parts: list[bytes] = []
        for save in saves:
            for kind, body in _bodies(save):
                parts.append(_record(kind, body, position))
                position += len(parts[-1])
        if not parts:
            return
        self._file.append(parts)
        self._file.sync()
        for save in saves:
            self._written.save(save)
        self._mark()

    def rewrite(self, snapshot: Snapshot) -> None:
        before = self._written
        fresh = MemoryStorage(before.hard_state(), snapshot)
        if snapshot.index < before.last_index():
            fresh.save(Save(entries=tuple(before.entries(snapshot.index + 1, before.last_index() + 1, 2**62))))
        self._begin_next(fresh)

    def compact(self, snapshot: Snapshot, keep: int = 0) -> None:
        super().compact(snapshot, 0)

    def close(self) -> None:
        try:
            self._file.sync()  # the last mark, too; all that was acknowledged is synced already
        except StorageError:
            pass
        self._file.close()

    def _mark(self) -> None:
        try:
            self._file.append((_record(_MARK, _MARK_BODY, self._file.size),))
        except PassingError:
            pass  # the next one does as well

    def _begin_next(self, fresh: MemoryStorage) -> None:
        """A journal of `fresh`. A full disk changes nothing."""
        number = self._number + 1
        self._files.store(_path(number), _journal(fresh))
        file = self._files.open(_path(number))
        self._written = fresh
        old, self._file, self._number = self._file, file, number
        old.close()
        self._files.remove(_path(number - 1))


def read(files: Files, number: int | None = None) -> tuple[MemoryStorage, int]:
    """What a journal holds, and where its last whole record ends. Changes nothing. Blocking. Raises CorruptionError."""
    if number is None:
        numbers = _numbers(files)
        if not numbers:
            return MemoryStorage(), 0
        number = numbers[-1]
    file = files.open(_path(number))
    raw = b"".join(_chunks(file))
    if not raw.startswith(_BEGINNING):
        raise _damaged(number, 0)
    found = MemoryStorage()
    position = len(_BEGINNING)
    while (record := _parse(raw, position)) is not None:
        try:
            _replay(found, record)
        except (AssertionError, CorruptionError):
            raise _damaged(number, position) from None
        position = record.end
    if _marked_behind(raw, position):
        raise _damaged(number, position)
    return found, position


class _Record(NamedTuple):
    kind: int
    body: bytes
    end: int


def _replay(found: MemoryStorage, record: _Record) -> None:
    if record.kind == _HARD_STATE:
        found.save(Save(hard_state=decode_saved(record.body, HardState)))
    elif record.kind == _SNAPSHOT:
        found.save(Save(snapshot=decode_saved(record.body, Snapshot)))
    elif record.kind == _ENTRY:
        found.save(Save(entries=(decode_saved(record.body, Entry),)))


def _bodies(save: Save) -> Iterator[tuple[int, bytes]]:
    if save.hard_state is not None:
        yield _HARD_STATE, encode_saved(save.hard_state)
    if save.snapshot is not None:
        yield _SNAPSHOT, encode_saved(save.snapshot)
    for entry in save.entries:
        yield _ENTRY, encode_saved(entry)


def _journal(state: MemoryStorage) -> bytes:
    """A whole journal: what is kept now, and a mark."""
    entries = state.entries(state.first_index(), state.last_index() + 1, 2**62)
    snapshot = state.snapshot()
    raw = bytearray(_BEGINNING)
    for kind, body in _bodies(Save(state.hard_state(), snapshot if snapshot.index else None, tuple(entries))):
        raw += _record(kind, body, len(raw))
    raw += _record(_MARK, _MARK_BODY, len(raw))
    return bytes(raw)


def _record(kind: int, body: bytes, position: int) -> bytes:
    return _HEAD.pack(len(body), _checksum(kind, body, position), kind) + body


def _checksum(kind: int, body: bytes, position: int) -> int:
    return crc32c(body, crc32c(_POSITION.pack(position) + bytes((kind,))))


def _parse(raw: bytes, position: int) -> _Record | None:
    """The record at a position, or None if there is no whole one."""
    start = position + _HEAD.size
    if start > len(raw):
        return None
    length, checksum, kind = _HEAD.unpack_from(raw, position)
    body = raw[start : start + length]
    if len(body) != length or _checksum(kind, body, position) != checksum:
        return None
    return _Record(kind, body, start + length)


def _marked_behind(raw: bytes, position: int) -> bool:
    """Whether a mark says that what cannot be read at a position was durable once."""
    found = raw.find(_MARK_BODY, position)
    while found >= 0:
        if found - _HEAD.size >= position and _parse(raw, found - _HEAD.size) is not None:
            return True
        found = raw.find(_MARK_BODY, found + 1)
    return False


def _chunks(file: File) -> Iterator[bytes]:
    position = 0
    while chunk := file.read(position, READ_BYTES):
        yield chunk
        position += len(chunk)


def _numbers(files: Files) -> list[int]:
    return sorted(
        int(name.removesuffix(SUFFIX))
        for name in files.names(DIRECTORY)
        if name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdigit()
    )


def _path(number: int) -> str:
    return f"{DIRECTORY}/{number:020d}{SUFFIX}"


def _older(applied: tuple[int, int], last_index: int) -> StorageError:
    return StorageError(
        f"the metadata journal ends at entry {last_index}, but entry {applied[0]} of term {applied[1]} was durable"
        " here: it was cut, or put back from an older copy; nothing was changed: put the newest data directory back; a"
        " node of a cluster can also be removed and join again with an empty directory; or start once with"
        " --accept-restored, and lose what was decided since"
    )


def _damaged(number: int, position: int) -> CorruptionError:
    return CorruptionError(
        f"the metadata journal {_path(number)} is damaged at byte {position}, below what was synced; nothing was"
        " changed: restore the data directory from a backup, or begin anew and join the cluster again"
    )
