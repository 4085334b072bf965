"""The manifest of a data directory: what was saved is known at every crash, and damage is told from a torn write."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DiskFullError, StorageError
from headrace.storage import manifest as manifests
from headrace.storage.checked_lines import render
from headrace.storage.manifest import PATH, Known, Manifest, accept, opened
from headrace.testing.files import FaultyFiles, PowerCutError

IDS = [UUID(int=n) for n in range(5)]


def read(files: FaultyFiles) -> Manifest:
    found = Manifest.read(files)
    assert found is not None
    return found


def made(files: FaultyFiles, start: int = 1) -> Manifest:
    return opened(Manifest.read(files), start, files, adopts=False)


def test_what_was_saved_is_read_again() -> None:
    files = FaultyFiles()
    manifest = made(files)
    manifest.note(("orders", 0), Known(IDS[1], 10, 3, 9, 77))
    manifest.note(("orders", 1), Known(IDS[1]))
    manifest.note_applied(12, 4)
    manifest.note_roots({"meta.json": 5})
    manifest.save()
    manifest.forget(("orders", 1))
    manifest.save()
    found = read(files.power_cut(Random(1)))
    assert found.entries == {("orders", 0): Known(IDS[1], 10, 3, 9, 77)}
    assert (found.applied, found.roots, found.start) == ((12, 4), {"meta.json": 5}, 1)
    assert not found.is_damaged


Change = tuple[str, int, int]
CHANGES = st.lists(
    st.tuples(st.sampled_from(("note", "forget", "save", "anew")), st.integers(0, 4), st.integers(0, 99))
)


@given(CHANGES, st.integers(0, 60), st.integers(0, 10**6))
def test_after_a_power_cut_anywhere_the_manifest_is_what_was_saved_or_newer(
    changes: list[Change], cut_at: int, seed: int
) -> None:
    files = FaultyFiles()
    manifest = made(files)
    states = [dict(manifest.entries)]
    saved = 0  # the states from this one on may be found
    files.cut_power_at(files.operations + cut_at)
    try:
        for kind, number, end_offset in changes:
            place = ("orders", number)
            if kind == "note":
                manifest.note(place, Known(IDS[number], end_offset))
            elif kind == "forget":
                manifest.forget(place)
            else:
                manifest.save(anew=kind == "anew")
                saved = len(states) - 1
            states.append(dict(manifest.entries))
    except PowerCutError:
        pass
    found = read(files.power_cut(Random(seed)))
    for place in [("orders", number) for number in range(5)]:
        assert found.entries.get(place) in [state.get(place) for state in states[saved:]]
    assert not found.is_damaged, "a torn write is no damage"


def test_a_manifest_that_is_written_again_goes_on_from_there() -> None:
    files = FaultyFiles()
    manifest = made(files)
    for number in range(manifests.SPARE_LINES + 100):
        manifest.note(("orders", 0), Known(IDS[0], number))
        manifest.save()
    assert len(files.peek(PATH).splitlines()) < 2 * manifests.SPARE_LINES + 200
    assert read(files).entries == {("orders", 0): Known(IDS[0], manifests.SPARE_LINES + 99)}


def test_a_thousand_new_logs_cost_bytes_in_proportion() -> None:
    files = FaultyFiles()
    manifest = made(files)
    written = 0
    for number in range(5000):
        manifest.note(("orders", number), Known(IDS[0]))
        if number % 100 == 99:
            before = len(files.peek(PATH))
            manifest.save()
            after = len(files.peek(PATH))
            written += after if after < before else after - before
    assert written < 4 * len(files.peek(PATH))


@given(st.integers(0, 10**9))
def test_a_flipped_bit_costs_one_line_and_is_noticed(bit: int) -> None:
    files = FaultyFiles()
    manifest = made(files)
    for number in range(5):
        manifest.note((f"t{number}", number), Known(IDS[number], 10 * number))
        manifest.save()
    whole = read(files)
    last_line = files.peek(PATH).splitlines(keepends=True)[-1]
    files.flip(PATH, bit % (8 * (len(files.peek(PATH)) - len(last_line))))
    found = read(files)
    lost = {place for place, known in whole.entries.items() if found.entries.get(place) != known}
    assert len(lost) <= 2
    assert found.is_damaged


def test_a_full_disk_loses_nothing_that_was_noted() -> None:
    files = FaultyFiles()
    manifest = made(files)
    files.space_left = 10
    manifest.note(("orders", 0), Known(IDS[0]))
    with pytest.raises(DiskFullError):
        manifest.save()
    files.heal()
    manifest.note(("orders", 1), Known(IDS[0]))
    manifest.save()
    assert read(files).entries.keys() == {("orders", 0), ("orders", 1)}


def test_a_manifest_that_an_older_release_has_overtaken_is_made_again() -> None:
    files = FaultyFiles()
    manifest = made(files, 4)
    manifest.note(("orders", 0), Known(IDS[0], 100))
    manifest.save()
    assert made(files, 5).entries
    after = made(files, 7)  # the sixth start was an older release's, which may have cut the log
    assert after.adopts and not after.entries


def test_a_newer_format_is_refused() -> None:
    files = FaultyFiles()
    files.store(PATH, render(("manifest", manifests.FORMAT + 1, 1)))
    with pytest.raises(StorageError, match="newer"):
        Manifest.read(files)


def test_what_an_operator_accepts_is_expected_no_more() -> None:
    manifest = made(FaultyFiles())
    manifest.note(("orders", 0), Known(IDS[0], 100, 3, 100, 7))
    accept(manifest, [("orders", 0), ("unknown", 0)])
    assert manifest.entries == {("orders", 0): Known(IDS[0], unsure=True)}
