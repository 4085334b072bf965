"""The ledger of an archive: which offsets its table covers, and how many records each range held.

Rules:
- Every commit of an archive says in its own metadata which ranges it adds. Files and ranges are one atomic commit, so
  the ledger can neither lack nor invent a range.
- Delta forgets old commits' metadata after a while. `fold` therefore copies it, long before, into small files beside
  the log (`_headrace/ranges`). What is copied is immutable, so folding twice, or by two processes, changes nothing.
- A range without records (only control records or compacted ones) is in the ledger too: it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from headrace.spark.lake.place import Place
from headrace.spark.options import Place as TopicPlace

RANGES: Final = "headrace.ranges"  # the key in a commit's metadata
FOLDER: Final = "_headrace/ranges"
FOLD_AFTER: Final = 50  # commits
_MERGE_AFTER: Final = 16  # files
_MERGED_OFFSETS: Final = 10_000_000
_ALL: Final = "-all"


class ArchivedRange(NamedTuple):
    """Offsets from `start` up to but without `end` of one partition, of which `rows` held a record."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int

    @property
    def place(self) -> TopicPlace:
        return self.topic, self.partition


def metadata_of(ranges: Iterable[ArchivedRange]) -> dict[str, str]:
    """A commit's metadata."""
    return {RANGES: json.dumps([list(each) for each in ranges], separators=(",", ":"))}


def read(place: Place, table: Any) -> list[ArchivedRange]:
    """All ranges that a table (a DeltaTable at some version) covers, by topic, partition and start."""
    known, found = _folded(place, table.version())
    for ranges in _committed(table, known):
        found.update(ranges)
    return sorted(found)


def fold(place: Place, table: Any, *, at_least: int = 1) -> bool:
    """Copy what the log says since the last time, if those are at least so many commits. True if something was."""
    version = table.version()
    known, old = _folded(place, version)
    if version - known < at_least:
        return False
    new = {each for ranges in _committed(table, known) for each in ranges}
    names = place.names(FOLDER)
    if len(names) < _MERGE_AFTER:
        _write(place, f"{version:020d}", new)
        return True
    # A file that knows all stands for every older one from the moment that it is there.
    _write(place, f"{version:020d}{_ALL}", merged(sorted(old | new)))
    for name in names:
        if _version(name) < version:
            place.delete(f"{FOLDER}/{name}")
    return True


def merged(ranges: Iterable[ArchivedRange]) -> Iterator[ArchivedRange]:
    """Neighbours joined. `ranges` are sorted."""
    last: ArchivedRange | None = None
    for each in ranges:
        if (
            last is not None
            and (last.place, last.end) == (each.place, each.start)
            and each.end - last.start <= _MERGED_OFFSETS
        ):
            last = last._replace(end=each.end, rows=last.rows + each.rows)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def ends(ranges: Iterable[ArchivedRange]) -> dict[TopicPlace, int]:
    """Where each partition's archive ends."""
    found: dict[TopicPlace, int] = {}
    for each in ranges:
        found[each.place] = max(each.end, found.get(each.place, 0))
    return found


def _committed(table: Any, after: int) -> Iterator[list[ArchivedRange]]:
    """What commits younger than version `after` added."""
    count = table.version() - after
    if count <= 0:
        return
    for commit in table.history(count):
        if after < int(commit.get("version", -1)) <= table.version():
            yield [ArchivedRange(*each) for each in json.loads(commit.get(RANGES, "[]"))]


def _folded(place: Place, version: int) -> tuple[int, set[ArchivedRange]]:
    """What the files say of the table at `version`: up to which version they know, and the ranges."""
    names = [name for name in place.names(FOLDER) if 0 <= _version(name) <= version]
    base = max((_version(name) for name in names if _is_all(name)), default=-1)
    names = [name for name in names if _version(name) > base or (_is_all(name) and _version(name) == base)]
    found = {ArchivedRange(*each) for name in names for each in json.loads(place.read(f"{FOLDER}/{name}"))}
    return max((_version(name) for name in names), default=-1), found


def _write(place: Place, stem: str, ranges: Iterable[ArchivedRange]) -> None:
    content = json.dumps([list(each) for each in sorted(ranges)], separators=(",", ":"))
    place.write(f"{FOLDER}/{stem}.json", content.encode())


def _is_all(name: str) -> bool:
    return name.endswith(f"{_ALL}.json")


def _version(name: str) -> int:
    stem = name.removesuffix(".json").removesuffix(_ALL)
    return int(stem) if stem.isdigit() else -1
