"""Whether a data directory is the newest one: copies and lost manifests are noticed before anything is changed."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from headrace.broker.directory_state import DirectoryState
from headrace.core.errors import StorageError
from headrace.storage.directory import STARTS, Directory
from headrace.storage.manifest import PATH, Known, Manifest
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.metadata import InlineWorkers

PLACE = ("orders", 0)


def enter(files: FaultyFiles, *, accept: bool = False) -> DirectoryState:
    directory = Directory.claim(files, node_id=1)
    try:
        return DirectoryState.enter(files, directory, InlineWorkers(), boot_id="one", accept=accept)
    except StorageError:
        directory.release()
        raise


def used() -> FaultyFiles:
    """A directory with one log, left cleanly."""
    files = FaultyFiles()
    state = enter(files)
    state.manifest.note(PLACE, Known(UUID(int=1), 10, 0, 10, 5))
    state.leave(clean=True)
    return files.killed()


def restored(files: FaultyFiles) -> FaultyFiles:
    """The same bytes, in other files."""
    after = FaultyFiles()
    for name in files.names(""):
        after.put(name, files)
    return after


def test_starts_are_counted_and_a_clean_end_is_known() -> None:
    files = used()
    state = enter(files)
    assert (state.start, state.was_clean) == (2, True)
    assert state.manifest[PLACE] is not None


def test_a_copy_is_refused_and_left_as_it_is() -> None:
    copy = restored(used())
    before = {path: copy.peek(path) for path in copy.paths()}
    with pytest.raises(StorageError, match="is a copy.*--accept-restored"):
        enter(copy)
    assert {path: copy.peek(path) for path in copy.paths()} == before


def test_a_copy_that_is_accepted_may_lack_something_in_every_log() -> None:
    state = enter(restored(used()), accept=True)
    assert not state.was_clean
    assert state.known.unsure() == [PLACE]
    state.known.sure([PLACE])
    state.leave(clean=True)
    assert enter(state.files.killed()).known.unsure() == [], "once"  # type: ignore[attr-defined]


def test_accepting_what_is_no_copy_changes_nothing() -> None:
    state = enter(used(), accept=True)
    assert state.was_clean and state.known.unsure() == []


def test_a_manifest_that_is_gone_is_missed() -> None:
    files = used()
    files.remove(PATH)
    with pytest.raises(StorageError, match="lost its manifest"):
        enter(files)
    assert enter(files, accept=True).known.trust.adopts


def test_a_directory_of_an_older_release_gets_a_manifest_once() -> None:
    files = used()
    content = files.peek("meta.json")
    assert b'"manifest": true' in content
    files.remove(PATH)
    files.store("meta.json", _without_manifest(files))
    state = enter(files)
    assert state.known.trust.adopts
    assert not enter(files.killed()).known.trust.adopts


def _without_manifest(files: FaultyFiles) -> bytes:
    from headrace.storage.directory import _parse, _render

    meta = _parse(files.peek("meta.json"))
    del meta["manifest"]
    return _render(meta)


@pytest.mark.parametrize("content", [b"", b"1x", b"0"])
def test_a_damaged_count_of_starts_does_not_go_back(content: bytes) -> None:
    files = used()
    enter(files)
    files = files.killed()
    files.store(STARTS, content)
    assert enter(files).start == 3


def test_at_every_power_cut_the_next_start_goes_on() -> None:
    for template in (FaultyFiles(), used(), _legacy()):
        for number in range(25):
            files = template.copy()
            files.cut_power_at(files.operations + number)
            starts = 0
            try:
                state = enter(files)
                starts = state.start
                state.leave(clean=True)
            except PowerCutError:
                pass
            after = files.power_cut(Random(number))
            state = enter(after)
            assert state.start > starts
            assert (state.manifest[PLACE] is not None) == (PLACE in (_entries(template) or {}))


def _legacy() -> FaultyFiles:
    files = used()
    files.remove(PATH)
    files.store("meta.json", _without_manifest(files))
    return files


def _entries(files: FaultyFiles) -> dict[tuple[str, int], Known] | None:
    found = Manifest.read(files)
    return None if found is None else found.entries
