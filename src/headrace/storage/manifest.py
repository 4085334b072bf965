"""What a data directory holds, told apart from what lies in it: the file `manifest`.

It names every log that was opened here, and what is known of it: topic id, synced end, leader epoch there, high
watermark, fingerprint of its directory. It outlives the logs' own directories, so one that is missing, swapped or older
than it was is noticed. It also remembers how far the metadata had been applied, and the number of the last start.

Rules:
- A log's directory has a durable name before the log is noted, and the log is noted durably before it takes records: so
  a log that is noted and not there was lost.
- What is known of a log is never more than what is durable in it. It is lowered, durably, before a log is cut.
- The file is lines: a checksum, and JSON. Changes are appended and synced in groups; it is written anew, atomically, at
  each start and when it has grown to twice its size.
- Every line is true by itself, whatever becomes of those before it. Behind a group that is synced, the line `synced`
  says so; the next sync carries it to the disk. A line before one of these that cannot be read was damaged: then no log
  without an entry is taken for a new one (`is_damaged`). Behind the last of them it is a torn write.
- What is known of a log is exact when it was closed cleanly, until it is opened again.
- A manifest belongs to the last start that is counted in the directory. If that number is higher, an older release was
  at work, which knows no manifest: all is made again from what is there (`adopts`), once.
- One thread notes; `Write.run` is blocking, for any thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from headrace.core.errors import DiskFullError, StorageError
from headrace.storage.checked_lines import parse, render

if TYPE_CHECKING:
    from headrace.core.ports import File, Files

PATH: Final = "manifest"
FORMAT: Final = 1
SPARE_LINES: Final = 1000  # appended beyond twice the entries before the file is written anew
_BEGINNING, _LOG, _GONE, _METADATA, _ROOTS, _SYNCED = "manifest", "log", "gone", "metadata", "roots", "synced"

Place = tuple[str, int]  # topic and partition


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one log. New fields go to the end and have defaults."""

    topic_id: UUID
    end_offset: int = 0  # everything below was durable
    leader_epoch: int = -1  # of the last record below `end_offset`
    high_watermark: int = 0
    fingerprint: int = 0  # of the log's directory; 0: not known
    is_exact: bool = False  # it was closed, and ends at `end_offset`
    unsure: bool = False  # the operator has accepted that it may be older than it was: others are to be told


class Manifest:
    """The entries, and what of them is not written yet."""

    def __init__(self, files: Files, *, start: int = 0) -> None:
        self._files = files
        self._file: File | None = None
        self._lines = 0
        self._pending: list[tuple[Any, ...]] = []
        self.entries: dict[Place, Known] = {}
        self.start = start  # the number of the start that wrote this
        self.applied: tuple[int, int] = (0, 0)  # index and term that the metadata journal had reached for sure
        self.roots: dict[str, int] = {}  # fingerprints of what lives as long as the directory
        self.is_damaged = False
        self.adopts = False

    # ------------------------------------------------------------------ reading

    @classmethod
    def read(cls, files: Files) -> Manifest | None:
        """What the file says; None if there is none. Changes nothing. Blocking. Raises StorageError."""
        raw = files.load(PATH)
        if raw is None:
            return None
        found = cls(files)
        durable, position = 0, 0
        lines: list[tuple[int, list[Any] | None]] = []
        for line in raw.split(b"\n")[: -1 if raw.endswith(b"\n") else None]:
            document = parse(line)
            if document is not None and document[0] == _SYNCED:
                durable = max(durable, int(document[1]))
            if line:
                lines.append((position, document))
            position += len(line) + 1
        for position, document in lines:
            if document is not None:
                found._replay(document)
            else:
                found.is_damaged |= position < durable
        return found

    def _replay(self, document: list[Any]) -> None:
        kind = document[0]
        if kind == _BEGINNING:
            if document[1] > FORMAT:
                raise StorageError(
                    f"{PATH} of the data directory was written by a newer Headrace: start the newer version"
                )
            self.start = document[2]
        elif kind == _LOG:
            self.entries[document[1], document[2]] = msgspec.convert(document[3], Known)
        elif kind == _GONE:
            self.entries.pop((document[1], document[2]), None)
        elif kind == _METADATA:
            self.applied = (document[1], document[2])
        elif kind == _ROOTS:
            self.roots = document[1]

    # ------------------------------------------------------------------ noting

    def __getitem__(self, place: Place) -> Known | None:
        return self.entries.get(place)

    def note(self, place: Place, known: Known) -> None:
        if self.entries.get(place) != known:
            self.entries[place] = known
            self._pending.append((_LOG, *place, known))

    def forget(self, place: Place) -> None:
        if self.entries.pop(place, None) is not None:
            self._pending.append((_GONE, *place))

    def note_applied(self, index: int, term: int) -> None:
        if (index, term) != self.applied:
            self.applied = (index, term)
            self._pending.append((_METADATA, index, term))

    def note_roots(self, roots: dict[str, int]) -> None:
        if roots != self.roots:
            self.roots = roots
            self._pending.append((_ROOTS, roots))

    # ------------------------------------------------------------------ writing

    def begin_write(self, *, anew: bool = False) -> Write | None:
        """What was noted since the last one; None if nothing was. `anew`: the whole file."""
        anew = anew or self._file is None or self._lines + len(self._pending) > 2 * len(self.entries) + SPARE_LINES
        if not (self._pending or anew):
            return None
        lines = self._whole() if anew else self._pending
        write = Write(self._files, None if anew else self._file, lines, self._pending)
        self._pending = []
        return write

    def end_write(self, write: Write) -> None:
        """It succeeded."""
        if write.file is not self._file:
            self._lines = 0
            if self._file is not None:
                self._file.close()
        self._file = write.file
        self._lines += len(write.lines)

    def put_back(self, write: Write) -> None:
        """It failed: what it should have written is still to be written. What is newer comes behind it."""
        self._pending = [*write.noted, *self._pending]

    def save(self, *, anew: bool = False) -> None:
        """Make all that was noted durable. Blocking. Raises StorageError."""
        write = self.begin_write(anew=anew)
        if write is None:
            return
        try:
            write.run()
        except StorageError:
            self.put_back(write)
            raise
        self.end_write(write)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _whole(self) -> list[tuple[Any, ...]]:
        return [
            (_BEGINNING, FORMAT, self.start),
            (_METADATA, *self.applied),
            (_ROOTS, self.roots),
            *((_LOG, *place, known) for place, known in self.entries.items()),
        ]


class Write:
    """One group of lines on its way to the disk."""

    def __init__(
        self, files: Files, file: File | None, lines: list[tuple[Any, ...]], noted: list[tuple[Any, ...]]
    ) -> None:
        self.lines = lines
        self.noted = noted
        self.file = file  # to append to; None: the file is written anew
        self._files = files

    def run(self) -> None:
        """Blocking. Raises StorageError."""
        content = b"".join(map(render, self.lines))
        if self.file is None:
            self._files.store(PATH, content + _mark(len(content)))
            self.file = self._files.open(PATH)
        else:
            self.file.append((content,))
            self.file.sync()
            with suppress(DiskFullError):
                self.file.append((_mark(self.file.size),))  # the next sync carries it to the disk


def _mark(size: int) -> bytes:
    """Between lines of its own: whatever is damaged before it, this can be read."""
    return b"\n" + render((_SYNCED, size))


def opened(manifest: Manifest | None, start: int, files: Files, *, adopts: bool) -> Manifest:
    """The manifest of this start, written. `adopts`: the directory has had none. Blocking. Raises StorageError."""
    if manifest is None:
        manifest = Manifest(files)
        manifest.adopts = adopts
    elif start > manifest.start + 1 and not manifest.is_damaged:
        fresh = Manifest(files)
        fresh.adopts, fresh.roots = True, manifest.roots
        manifest = fresh
    manifest.start = start
    manifest.save(anew=True)
    return manifest


def accept(manifest: Manifest, places: Iterable[Place]) -> None:
    """Take logs as they are, or are not: nothing is expected of them, and others are told that they may be older."""
    for place in places:
        if (known := manifest[place]) is not None:
            manifest.note(place, Known(known.topic_id, unsure=True))
