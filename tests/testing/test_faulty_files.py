"""The model of a failing disk is itself right: mean where POSIX allows it, kind where a sync was paid for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DiskFailedError, DiskFullError, StorageError
from headrace.testing.files import FaultyFiles, PowerCutError


def outcomes(build, path: str, tries: int = 300) -> set[bytes | None]:
    return {build().power_cut(Random(seed)).load(path) for seed in range(tries)}


def half_synced() -> FaultyFiles:
    files = FaultyFiles()
    file = files.open("a/f", create=True)
    file.append([b"firm"])
    file.sync()
    files.sync_directory("a")
    file.append([b"soft"])
    return files


def test_synced_bytes_survive_and_unsynced_ones_do_anything() -> None:
    found = outcomes(half_synced, "a/f")
    assert all(content is not None and content.startswith(b"firm") for content in found)
    assert {b"firm", b"firmsoft", b"firms", b"firm\0\0\0\0"} <= found
    assert b"firms\0\0\0" not in found  # a sector is written or it is not
    assert any(content is not None and len(content) == 8 and content[4:].strip(b"soft\0") for content in found)


def test_a_name_that_was_not_synced_may_vanish_although_its_bytes_were() -> None:
    def build() -> FaultyFiles:
        files = FaultyFiles()
        file = files.open("a/f", create=True)
        file.append([b"x"])
        file.sync()
        return files

    assert outcomes(build, "a/f") == {None, b"x"}


def test_a_removed_file_may_come_back() -> None:
    def build() -> FaultyFiles:
        files = FaultyFiles()
        files.store("f", b"x")
        files.remove("f")
        return files

    assert outcomes(build, "f") == {None, b"x"}


def test_stored_and_renamed_files_survive() -> None:
    def build() -> FaultyFiles:
        files = FaultyFiles()
        files.store("a/f", b"old")
        files.store("a/f", b"new")
        files.rename("a", "deep/b")
        return files

    assert outcomes(build, "deep/b/f") == {b"new"}
    assert outcomes(build, "a/f") == {None}


def test_a_store_that_is_cut_leaves_the_old_or_the_new() -> None:
    def build() -> FaultyFiles:
        files = FaultyFiles()
        files.store("f", b"old")
        files.cut_power_at(files.operations)
        with pytest.raises(PowerCutError):
            files.store("f", b"new")
        return files

    assert outcomes(build, "f") == {b"old", b"new"}


def test_an_unsynced_cut_may_be_undone() -> None:
    def build() -> FaultyFiles:
        files = FaultyFiles()
        files.store("f", b"0123456789")
        file = files.open("f")
        file.truncate(6)
        file.truncate(4)
        return files

    assert outcomes(build, "f") == {b"0123456789", b"0123"}


def test_no_later_sync_saves_what_a_failed_one_lost() -> None:
    def build() -> FaultyFiles:
        files = FaultyFiles()
        files.store("f", b"firm")
        file = files.open("f")
        file.append([b"lost"])
        files.fail("sync")
        with pytest.raises(DiskFailedError):
            file.sync()
        file.append([b"late"])
        file.sync()
        assert file.read(0, 99) == b"firmlostlate"
        return files

    assert outcomes(build, "f") == {b"firm\0\0\0\0late"}


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    files = half_synced()
    old = files.open("a/f")
    assert files.killed().load("a/f") == b"firmsoft"
    with pytest.raises(DiskFailedError, match="power"):
        old.append([b"x"])


def test_a_full_disk_takes_part_of_the_bytes_and_the_next_append_begins_anew() -> None:
    files = FaultyFiles()
    file = files.open("f", create=True)
    files.space_left = 6
    file.append([b"0123"])
    with pytest.raises(DiskFullError):
        file.append([b"4567"])
    assert (file.size, files.peek("f")) == (4, b"012345")
    file.append([b"ab"])
    assert files.peek("f") == b"0123ab"
    file.truncate(1)
    assert files.free_bytes() == 5


def test_the_nth_operation_fails_once_or_for_ever() -> None:
    files = FaultyFiles()
    file = files.open("f", create=True)
    files.fail("write", nth=2)
    file.append([b"a"])
    with pytest.raises(DiskFailedError, match="errno 5"):
        file.append([b"b"])
    file.append([b"c"])
    assert file.read(0, 9) == b"ac"
    files.fail("read", repeat=True, path="f")
    for _ in range(3):
        with pytest.raises(DiskFailedError):
            file.read(0, 1)
    files.heal()
    assert file.read(0, 1) == b"a"


def test_a_cold_disk_makes_readers_wait_and_tells_who_waited() -> None:
    files = half_synced()
    waits: list[tuple[str, str]] = []
    files.on_block = lambda operation, path: waits.append((operation, path))
    file = files.open("a/f")
    files.cold = True
    assert file.read_now(0, 4) is None
    assert file.read(0, 4) == b"firm"
    file.sync()
    assert waits == [("read", "a/f"), ("sync", "a/f")]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["append", "sync", "cut"]), max_size=30))
def test_after_any_history_the_synced_prefix_survives(seed: int, history: list[str]) -> None:
    rng = Random(seed)
    files = FaultyFiles()
    file = files.open("f", create=True)
    files.sync_directory("")
    firm = b""
    for step in history:
        if step == "append":
            file.append([rng.randbytes(rng.randrange(1, 1500))])
        elif step == "sync":
            file.sync()
            firm = file.read(0, 1 << 20)
        else:
            file.truncate(max(0, file.size - rng.randrange(600)))
            firm = firm[: file.size]
    after = files.power_cut(rng).load("f")
    assert after is not None
    assert after.startswith(firm)


def firm_file() -> FaultyFiles:
    files = half_synced()
    files.open("a/f").sync()
    return files


def test_a_lie_is_shown_to_readers_until_the_disk_is_healed() -> None:
    files = firm_file()
    files.lie("a/f", 8)
    file = files.open("a/f")
    assert file.read(0, 8) == b"fhrmsoft"
    assert file.read_now(1, 1) == b"h"
    assert files.load("a/f") == b"fhrmsoft"
    assert files.peek("a/f") == b"firmsoft"
    files.heal()
    assert file.read(0, 8) == b"firmsoft"


def test_what_was_evicted_is_waited_for_once() -> None:
    files = firm_file()
    files.evict("a/f")
    file = files.open("a/f")
    assert file.read_now(0, 4) is None
    assert file.read(0, 4) == b"firm"
    assert file.read_now(0, 4) == b"firm"


def test_reads_fail_below_a_folder_and_nowhere_else() -> None:
    files = firm_file()
    files.store("b", b"other")
    file = files.open("a/f")
    files.fail_reads("a")
    for read in (lambda: file.read(0, 4), lambda: file.read_now(0, 4), lambda: files.load("a/f")):
        with pytest.raises(DiskFailedError):
            read()
    assert files.load("b") == b"other"
    files.store("a/g", b"new")
    assert files.load("a/g") == b"new"
    files.heal()
    assert file.read(0, 4) == b"firm"


def test_without_files_to_spare_nothing_opens_and_what_is_open_goes_on() -> None:
    files = firm_file()
    file = files.open("a/f")
    files.files_ran_out = True
    for attempt in (lambda: files.open("a/f"), lambda: files.store("b", b""), lambda: files.load("a/f")):
        with pytest.raises(StorageError, match="Too many open files") as caught:
            attempt()
        assert not isinstance(caught.value, DiskFailedError)
    file.append([b"more"])
    file.sync()
    files.heal()
    assert files.load("a/f") == b"firmsoftmore"


def test_what_is_erased_or_put_back_is_so_after_a_power_cut() -> None:
    files = firm_file()
    files.store("b/g", b"new")
    copy = files.copy()
    files.erase("a")
    files.put_back("b", copy, "a")
    after = files.power_cut(Random(1))
    assert after.paths() == ["b/f"]
    assert after.load("b/f") == b"firmsoft"
    assert copy.paths() == ["a/f", "b/g"]
