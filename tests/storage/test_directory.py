"""A broker starts on its own, whole data directory only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import ConfigError, StorageError
from headrace.runtime.disk import DiskFiles
from headrace.storage import directory
from headrace.storage.directory import Directory, random_id
from headrace.storage.memory import MemoryFiles
from headrace.testing.files import FaultyFiles, PowerCutError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_start_makes_an_identity_that_later_starts_find() -> None:
    files = MemoryFiles()
    first = Directory.claim(files, node_id=3)
    first.release()
    again = Directory.claim(files, node_id=3, cluster_id=first.cluster_id, must_exist=True)
    assert (first.is_new, again.is_new) == (True, False)
    assert (again.cluster_id, again.directory_id, again.node_id) == (first.cluster_id, first.directory_id, 3)


def test_a_given_cluster_id_is_taken_over() -> None:
    assert Directory.claim(MemoryFiles(), node_id=1, cluster_id="5L6g3nShT-eMCtK--X86sw").cluster_id.startswith("5L6g")


def test_ids_have_the_form_of_kafka() -> None:
    ids = {random_id() for _ in range(300)}
    assert len(ids) == 300
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", text) for text in ids)


def test_another_node_is_refused_with_both_numbers() -> None:
    files = MemoryFiles()
    Directory.claim(files, node_id=1).release()
    with pytest.raises(ConfigError, match=r"belongs to node 1, and this is node 2.*--data-dir"):
        Directory.claim(files, node_id=2)
    Directory.claim(files, node_id=1)  # the refusal let go of the lock


def test_another_cluster_is_refused() -> None:
    files = MemoryFiles()
    Directory.claim(files, node_id=1, cluster_id="here").release()
    with pytest.raises(ConfigError, match="belongs to cluster here, and this is cluster there"):
        Directory.claim(files, node_id=1, cluster_id="there")


@pytest.mark.parametrize("left", directory.SIGNS_OF_LIFE)
def test_a_half_emptied_directory_is_not_new(left: str) -> None:
    files = MemoryFiles()
    files.store(f"{left}/x", b"")
    with pytest.raises(StorageError, match=rf"holds {left} but no meta\.json.*backup"):
        Directory.claim(files, node_id=1)
    assert files.names("") == [left]


def test_an_empty_directory_can_be_forbidden() -> None:
    with pytest.raises(StorageError, match="mounted"):
        Directory.claim(MemoryFiles(), node_id=1, must_exist=True)


def test_a_newer_format_is_refused() -> None:
    files = MemoryFiles()
    files.store(directory.PATH, directory._render({"format": 2, "something": "else"}))
    with pytest.raises(StorageError, match="newer Headrace.*format 2"):
        Directory.claim(files, node_id=1)


def test_every_bit_flip_in_the_identity_is_noticed_or_harmless() -> None:
    template = FaultyFiles()
    claimed = Directory.claim(template, node_id=1)
    size = len(template.peek(directory.PATH))
    refused = 0
    for bit in range(size * 8):
        files = template.copy()
        files.flip(directory.PATH, bit)
        try:
            found = Directory.claim(files, node_id=1)
        except StorageError:
            refused += 1
        else:  # white space
            assert (found.cluster_id, found.directory_id) == (claimed.cluster_id, claimed.directory_id)
    assert refused > size * 7


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"format": 1}', b'"x"', b"9" * 10_000])
def test_garbage_is_refused(content: bytes) -> None:
    files = MemoryFiles()
    files.store(directory.PATH, content)
    with pytest.raises(StorageError, match="damaged"):
        Directory.claim(files, node_id=1)


def test_fields_of_the_wrong_type_are_refused() -> None:
    files = MemoryFiles()
    files.store(directory.PATH, directory._render({"format": 1, "cluster_id": 7, "node_id": "1", "directory_id": None}))
    with pytest.raises(StorageError, match="damaged"):
        Directory.claim(files, node_id=1)


def test_a_power_cut_at_the_first_start_leaves_a_whole_identity_or_none() -> None:
    outcomes = set()
    for seed in range(40):
        files = FaultyFiles()
        files.cut_power_at(0)
        with pytest.raises(PowerCutError):
            Directory.claim(files, node_id=1)
        again = files.power_cut(Random(seed))
        outcomes.add(Directory.claim(again, node_id=1).is_new)
    assert outcomes == {True, False}


def test_two_brokers_cannot_share_a_directory(tmp_path: Path) -> None:
    held = Directory.claim(DiskFiles(str(tmp_path)), node_id=1)
    with pytest.raises(ConfigError, match="in use by another broker"):
        Directory.claim(DiskFiles(str(tmp_path)), node_id=1)
    script = (
        "import sys; from headrace.runtime.disk import DiskFiles; from headrace.storage.directory import Directory\n"
        "Directory.claim(DiskFiles(sys.argv[1]), node_id=1)"
    )
    run = [sys.executable, "-c", script, str(tmp_path)]
    assert b"in use by another broker" in subprocess.run(run, capture_output=True, timeout=60).stderr
    held.release()
    assert subprocess.run(run, capture_output=True, timeout=60).returncode == 0
    assert json.loads((tmp_path / "meta.json").read_bytes())["cluster_id"] == held.cluster_id
