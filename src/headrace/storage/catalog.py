"""A list of all segments in SQLite, for tools and people to query while the broker runs.

Rules:
- It is a cache. The logs are the truth; `rebuild` makes a new file from them at every start, so that a missing or
  damaged one needs no care. No decision is based on it.
- An error while it is written makes it `stale`, nothing more.
- `note` and `forget` belong to the loop's thread, cost a dictionary entry, and are called when a segment begins, is
  sealed or goes; `take` and `Changes.run` write them down: `run` blocks and is for a worker, one at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from headrace.core.errors import StorageError

if TYPE_CHECKING:
    from headrace.core.ports import Files

PATH: Final = "catalog.sqlite"
FORMAT: Final = 1
State = Literal["active", "sealed", "archived"]
Key = tuple[str, int, int]  # topic, partition, base offset

_SCHEMA: Final = """
CREATE TABLE segments (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    min_time INTEGER NOT NULL,
    max_time INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'sealed', 'archived')),
    PRIMARY KEY (topic, partition, base_offset)
) WITHOUT ROWID
"""
_INSERT: Final = "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class CatalogEntry(NamedTuple):
    """One segment. Times are milliseconds, -1 if no record has one."""

    topic: str
    partition: int
    base_offset: int
    next_offset: int
    min_time: int
    max_time: int
    bytes: int
    state: State

    @property
    def key(self) -> Key:
        return self.topic, self.partition, self.base_offset


class Changes:
    """A batch of changes that has been taken off the loop's hands."""

    def __init__(self, catalog: Catalog, pending: dict[Key, CatalogEntry | None]) -> None:
        self._catalog = catalog
        self._pending = pending

    def run(self) -> None:
        """Blocking; for a worker thread. Never raises for what happens to the catalog."""
        gone = [key for key, entry in self._pending.items() if entry is None]
        entries = [entry for entry in self._pending.values() if entry is not None]
        self._catalog.write(entries, gone)


class Catalog:
    """See the module. `location` is the path of the file for SQLite; `files` is where it lies, under `PATH`."""

    def __init__(self, files: Files, location: str) -> None:
        self._files = files
        self._location = location
        self._pending: dict[Key, CatalogEntry | None] = {}
        self._connection: sqlite3.Connection | None = None
        self.stale = True

    def note(self, entry: CatalogEntry) -> None:
        self._pending[entry.key] = entry

    def forget(self, topic: str, partition: int, base_offset: int) -> None:
        self._pending[topic, partition, base_offset] = None

    def take(self) -> Changes | None:
        """What was noted since the last call; None if nothing was."""
        if not self._pending:
            return None
        pending, self._pending = self._pending, {}
        return Changes(self, pending)

    def rebuild(self, entries: Iterable[CatalogEntry]) -> None:
        """Blocking. Begin a new file with what the logs say; whatever was in its place is not even looked at."""
        self.close()
        try:
            for suffix in ("", "-wal", "-shm", "-journal"):
                self._files.remove(PATH + suffix)
            self._connection = self._create(list(entries))
            self.stale = False
        except (sqlite3.Error, StorageError):
            self.stale = True

    def write(self, entries: list[CatalogEntry], gone: list[Key]) -> None:
        """Blocking. One transaction."""
        if self._connection is None:
            self.stale = True
            return
        try:
            with self._connection as connection:
                connection.executemany(
                    "DELETE FROM segments WHERE topic = ? AND partition = ? AND base_offset = ?", gone
                )
                connection.executemany(_INSERT, entries)
        except sqlite3.Error:
            self.stale = True

    def segments(self, topic: str | None = None, partition: int | None = None) -> list[CatalogEntry]:
        """Blocking. In the order of topic, partition, offset; nothing if the catalog cannot be read."""
        if self._connection is None:
            return []
        try:
            rows = self._connection.execute(
                "SELECT * FROM segments WHERE (?1 IS NULL OR topic = ?1) AND (?2 IS NULL OR partition = ?2)"
                " ORDER BY topic, partition, base_offset",
                (topic, partition),
            ).fetchall()
        except sqlite3.Error:
            self.stale = True
            return []
        return [CatalogEntry(*row) for row in rows]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _create(self, entries: list[CatalogEntry]) -> sqlite3.Connection:
        # Workers take turns, so the connection may move between threads.
        connection = sqlite3.connect(self._location, check_same_thread=False, timeout=1.0)
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # readers from other processes do not disturb
            connection.execute("PRAGMA synchronous = OFF")  # a power cut may spoil it: then it is built again
            with connection:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                connection.executemany(_INSERT, entries)
        except sqlite3.Error:
            connection.close()
            raise
        return connection
