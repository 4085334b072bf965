"""A Delta table through delta-rs: create, commit, compact, vacuum, describe. No Spark is needed here, and no jar.

Rules:
- Files become rows only by a commit. A commit of a streaming batch carries the application transaction
  (query id, batch id), so that a batch that is run again is not added again.
- What compaction and vacuum leave out of reach for readers of old versions is decided by their retention; nothing
  else ever deletes.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from headrace.core.errors import ConfigError, HeadraceError
from headrace.spark.lake import ledger
from headrace.spark.lake.files import PartFile
from headrace.spark.lake.ledger import ArchivedRange
from headrace.spark.lake.place import Place
from headrace.spark.options import Place as TopicPlace

TARGET_BYTES: Final = 128 << 20
KEEP_HOURS: Final = 168
COMPACTING_TASKS: Final = 2  # each may hold a file of the target's size
CHECKPOINT_EVERY: Final = 50  # commits; then delta-rs also deletes commits older than a month
_FOLD_BEFORE: Final = 5  # commits ahead of that, as somebody else may commit meanwhile
_SETTINGS: Final = {"delta.checkpointInterval": str(CHECKPOINT_EVERY)}


class TableError(HeadraceError):
    """A table that is not there, is not what it should be, or cannot be committed to."""


class OvertakenError(TableError):
    """Somebody else committed first."""


@dataclass(frozen=True, slots=True)
class Compaction:
    files_before: int
    files_after: int
    rewritten: int


@dataclass(frozen=True, slots=True)
class TableView:
    """A table, described."""

    path: str
    version: int
    rows: int
    files: int
    size_bytes: int
    columns: tuple[tuple[str, str], ...]
    partition_by: tuple[str, ...]
    partitions: tuple[tuple[str, int, int], ...]  # partition values, files, rows
    archived: tuple[tuple[str, int, int, int, int], ...]  # topic, partition, start, end, rows


class Table:
    """A table at a path. Every method looks at its newest version."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.place = Place.of(path)

    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self.place.uri))

    def open(self) -> DeltaTable:
        """delta-rs's own handle. Raises TableError."""
        try:
            return DeltaTable(self.place.uri)
        except TableNotFoundError:
            raise TableError(f"there is no table at {self.place.uri}") from None
        except DeltaError as error:
            raise TableError(f"cannot open the table at {self.place.uri}: {_line(error)}") from None

    def ensure(self, schema: pa.Schema, partition_by: Sequence[str] = (), *, name: str = "") -> DeltaTable:
        """The table, made if it is not there. Raises TableError if there is one with other columns."""
        if not self.exists():
            for each in partition_by:
                if each not in schema.names:
                    raise ConfigError(f"cannot partition by {each!r}; there are {', '.join(schema.names)}")
            DeltaTable.create(
                self.place.uri,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                name=name or None,
                configuration=_SETTINGS,
            )
        table = self.open()
        self._same_columns(table, schema, partition_by)
        return table

    def _same_columns(self, table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        there = {each.name: each for each in self.schema(table)}
        for each in schema:
            if each.name not in there:
                raise TableError(f"the table at {self.place.uri} has no column {each.name!r}")
            if there[each.name].type != each.type:
                raise TableError(
                    f"column {each.name!r} of the table at {self.place.uri} is {there[each.name].type}, not {each.type}"
                )
        known = tuple(table.metadata().partition_columns)
        if known != tuple(partition_by):
            raise TableError(
                f"the table at {self.place.uri} is partitioned by {', '.join(known) or 'nothing'}, "
                f"not by {', '.join(partition_by) or 'nothing'}"
            )

    def schema(self, table: DeltaTable | None = None) -> pa.Schema:
        """All columns, with Arrow types as Spark has them."""
        return pa.schema((table or self.open()).schema().to_arrow())

    def commit(
        self,
        files: Iterable[PartFile],
        *,
        transaction: tuple[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
        after: DeltaTable | None = None,
        guard: str = "",
    ) -> bool:
        """Make files part of the table, all or none. False if this transaction was committed before.

        Of two commits under the same `guard` that both follow the version `after`, only one succeeds; the other is
        refused with OvertakenError.
        """
        table = after or self.open()
        if transaction is not None and self.is_committed(transaction, table):
            return False
        actions = [self._action(each) for each in files]
        marks = [Transaction(*transaction)] if transaction is not None else []
        if guard:
            marks.append(Transaction(guard, table.version() + 1))
        properties = CommitProperties(custom_metadata=dict(metadata or {}), app_transactions=marks or None)
        try:
            table.create_write_transaction(
                actions,  # type: ignore[arg-type]
                "overwrite" if overwrite else "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=properties,
            )
        except (CommitFailedError, DeltaError) as error:
            kind = OvertakenError if guard and isinstance(error, CommitFailedError) else TableError
            raise kind(f"cannot commit to the table at {self.place.uri}: {_line(error)}") from None
        return True

    def is_committed(self, transaction: tuple[str, int], table: DeltaTable | None = None) -> bool:
        application, version = transaction
        last = (table or self.open()).transaction_version(application)
        return last is not None and last >= version

    def _action(self, part: PartFile) -> AddAction:
        size = self.place.size(part.path)
        if size != part.size_bytes:
            raise TableError(
                f"a task wrote {part.path} ({part.size_bytes} bytes), but the driver sees "
                f"{'no such file' if size is None else f'{size} bytes'} under {self.place.uri}; "
                "on a cluster the table must lie where all machines see it"
            )
        stats = {"numRecords": part.rows, "minValues": part.least, "maxValues": part.most}
        now_ms = time.time_ns() // 1_000_000
        return AddAction(part.path, part.size_bytes, part.partition, now_ms, True, json.dumps(stats))

    # reading

    def files(self) -> list[str]:
        """The files of the newest version: exactly these hold the rows, whatever else lies in the directory."""
        return sorted(self.open().file_uris())

    def paths(self) -> list[str]:
        """The same, as paths below the table."""
        return [path_of(each) for each in pa.table(self.open().get_add_actions(flatten=True))["path"].to_pylist()]

    def ranges(self, table: DeltaTable | None = None) -> list[ArchivedRange]:
        """What an archive covers; nothing for a table that is no archive."""
        return ledger.read(self.place, table or self.open())

    def ends(self, table: DeltaTable | None = None) -> dict[TopicPlace, int]:
        """Where the archive of each partition ends: the first offset that is not in it."""
        return ledger.ends(self.ranges(table))

    def describe(self) -> TableView:
        table = self.open()
        actions = pa.table(table.get_add_actions(flatten=True))
        partition_by = tuple(table.metadata().partition_columns)
        rows = [each or 0 for each in actions["num_records"].to_pylist()]
        names = [f"partition.{each}" for each in partition_by]
        values = list(zip(*(actions[name].to_pylist() for name in names), strict=True)) if names else [()] * len(rows)
        parts: dict[str, list[int]] = {}
        for value, count in zip(values, rows, strict=True):
            shown = "/".join(f"{name}={item}" for name, item in zip(partition_by, value, strict=True))
            entry = parts.setdefault(shown, [0, 0])
            entry[0] += 1
            entry[1] += count
        return TableView(
            self.place.uri,
            table.version(),
            sum(rows),
            len(rows),
            sum(actions["size_bytes"].to_pylist()),
            tuple((each.name, str(each.type)) for each in self.schema(table)),
            partition_by,
            tuple((name, *counts) for name, counts in sorted(parts.items())),  # type: ignore[misc]
            _summary(self.ranges(table)),
        )

    # upkeep

    def fold(self, *, at_least: int = 1) -> bool:
        """Keep what old commits say of offsets beyond the time that Delta keeps them."""
        return ledger.fold(self.place, self.open(), at_least=at_least)

    def fold_in_time(self, table: DeltaTable) -> None:
        """Before a commit after this version: its checkpoint may delete commits that were not folded yet."""
        if table.version() % CHECKPOINT_EVERY >= CHECKPOINT_EVERY - 1 - _FOLD_BEFORE:
            ledger.fold(self.place, table)

    def compact(
        self, *, target_bytes: int = TARGET_BYTES, only: Sequence[tuple[str, str, str]] | None = None
    ) -> Compaction:
        """Join small files, of all partitions or `only` some. Readers notice nothing; old files stay until `vacuum`."""
        self.fold()
        table = self.open()
        before = len(table.file_uris())
        filters = None if only is None else list(only)
        found = table.optimize.compact(filters, target_size=target_bytes, max_concurrent_tasks=COMPACTING_TASKS)
        table.create_checkpoint()
        return Compaction(before, len(self.files()), int(found["numFilesRemoved"]))

    def tidy(self, *, at_least: int, target_bytes: int = TARGET_BYTES) -> Compaction | None:
        """Compact the one partition with the most small files, if it has that many; None if none has, or if another
        was faster. What this costs is bounded: a file of half the target's size counts as large enough.
        """
        table = self.open()
        columns = list(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True))
        sizes = actions["size_bytes"].to_pylist()
        places = zip(*(actions[f"partition.{each}"].to_pylist() for each in columns), strict=True)
        small = Counter(
            place
            for place, size in zip(places if columns else [()] * len(sizes), sizes, strict=True)
            if size < target_bytes // 2 and None not in place
        )
        place, count = small.most_common(1)[0] if small else ((), 0)
        if count < at_least:
            return None
        only = [(name, "=", str(value)) for name, value in zip(columns, place, strict=True)]
        try:
            return self.compact(target_bytes=target_bytes, only=only or None)
        except (CommitFailedError, DeltaError):
            return None  # it is upkeep: the next look will find the same

    def vacuum(self, *, keep_hours: float = KEEP_HOURS, dry_run: bool = False, force: bool = False) -> list[str]:
        """Delete files that are no part of the table and older than `keep_hours`; those files.

        Files of attempts that failed are found too (`full`). Less than an hour needs `force`: a running archive has
        files that it has not committed yet.
        """
        if keep_hours < 1 and not force:
            raise ConfigError("vacuum keeps an hour at least: a running archive has files that are not committed yet")
        self.fold()
        return list(
            self.open().vacuum(
                retention_hours=int(keep_hours), dry_run=dry_run, enforce_retention_duration=False, full=True
            )
        )


def path_of(entry: str) -> str:
    """A file's path below its table, from what the log calls it: there it is an address, with its own escapes."""
    return unquote(entry)


def _summary(ranges: Iterable[ArchivedRange]) -> tuple[tuple[str, int, int, int, int], ...]:
    found: dict[TopicPlace, list[int]] = {}
    for each in ranges:
        entry = found.setdefault(each.place, [each.start, each.end, 0])
        entry[0], entry[1] = min(entry[0], each.start), max(entry[1], each.end)
        entry[2] += each.rows
    return tuple((*place, *entry) for place, entry in sorted(found.items()))  # type: ignore[misc]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
