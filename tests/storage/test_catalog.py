"""The catalog is a cache: quick to note, easy to lose, never in the way."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import TYPE_CHECKING

import pytest

from headrace.runtime.disk import DiskFiles
from headrace.storage.catalog import PATH, Catalog, CatalogEntry

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [
    CatalogEntry("orders", 0, 0, 100, 1000, 2000, 5000, "sealed"),
    CatalogEntry("orders", 0, 100, 150, 2000, 2500, 2500, "active"),
    CatalogEntry("orders", 1, 0, 0, -1, -1, 0, "active"),
    CatalogEntry("paid", 0, 0, 7, 1, 2, 300, "archived"),
]


def open_catalog(root: Path) -> Catalog:
    return Catalog(DiskFiles(str(root)), str(root / PATH))


def test_a_rebuilt_catalog_lists_what_the_logs_said(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    catalog.rebuild(reversed(ENTRIES))
    assert catalog.segments() == ENTRIES
    assert catalog.segments("orders", 0) == ENTRIES[:2]
    assert catalog.segments("orders") == ENTRIES[:3]
    catalog.rebuild(ENTRIES[3:])
    assert catalog.segments() == ENTRIES[3:]
    assert not catalog.stale


def test_noted_changes_are_written_in_one_batch(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    catalog.rebuild(ENTRIES)
    assert catalog.take() is None
    catalog.forget("orders", 0, 0)
    catalog.note(ENTRIES[1]._replace(next_offset=199))
    catalog.note(ENTRIES[1]._replace(next_offset=200, state="sealed"))
    changes = catalog.take()
    assert catalog.segments() == ENTRIES
    assert changes is not None
    changes.run()
    assert catalog.segments("orders", 0) == [ENTRIES[1]._replace(next_offset=200, state="sealed")]
    assert catalog.take() is None


def test_another_process_can_read_it_while_it_is_open(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    catalog.rebuild(ENTRIES)
    reader = sqlite3.connect(f"file:{tmp_path / PATH}?mode=ro", uri=True)
    assert reader.execute("SELECT sum(bytes) FROM segments").fetchone() == (7800,)
    reader.close()


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\0 but not really", bytes(5000), Random(1).randbytes(20_000)]
)
def test_a_damaged_file_is_replaced_in_silence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PATH).write_bytes(content)
    catalog = open_catalog(tmp_path)
    catalog.rebuild(ENTRIES)
    assert catalog.segments() == ENTRIES


@pytest.mark.parametrize("script", ["CREATE TABLE other (x)", "CREATE TABLE segments (x); PRAGMA user_version = 9"])
def test_a_foreign_or_newer_database_is_replaced(tmp_path: Path, script: str) -> None:
    other = sqlite3.connect(tmp_path / PATH)
    other.executescript(script)
    other.close()
    catalog = open_catalog(tmp_path)
    catalog.rebuild(ENTRIES)
    assert catalog.segments() == ENTRIES


def test_a_catalog_that_cannot_be_written_is_stale_and_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / PATH).mkdir()
    (tmp_path / PATH / "in the way").write_bytes(b"")
    catalog = Catalog(DiskFiles(str(tmp_path / "elsewhere")), str(tmp_path / PATH))
    catalog.rebuild(ENTRIES)
    assert catalog.stale
    catalog.note(ENTRIES[0])
    changes = catalog.take()
    assert changes is not None
    changes.run()
    assert catalog.segments() == []
    catalog.close()


def test_a_change_that_fails_makes_it_stale_until_the_next_rebuild(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path)
    catalog.rebuild(ENTRIES)
    blocker = sqlite3.connect(tmp_path / PATH, isolation_level=None)
    blocker.execute("DROP TABLE segments")
    catalog.note(ENTRIES[0])
    changes = catalog.take()
    assert changes is not None
    changes.run()
    assert catalog.stale
    blocker.close()
    catalog.rebuild(ENTRIES)
    assert not catalog.stale
    assert catalog.segments() == ENTRIES
