"""Whose log a directory holds: known through damage, never guessed, and nothing removed that may be ours."""

from __future__ import annotations

from random import Random
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import CorruptionError
from headrace.storage.identity import CLAIM, IDENTITY, OWNER, Identity, Trust, Verdict, give_to, identity_of, judge
from headrace.storage.log import Log
from headrace.storage.manifest import Known
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles
from headrace.testing.logs import append, make_batch, sync

PATH = "topics/orders-0"
OURS = UUID("a3bb189e-8bf9-4c05-9a5b-0123456789ab")
OTHER = UUID("6fa459ea-ee8a-4ca4-894e-db77e160355e")


def owned(topic_id: UUID = OURS, index: int = 0) -> FaultyFiles:
    """A directory with one synced record."""
    files = FaultyFiles()
    log = Log.open(files, PATH, TopicConfig(), now_ms=1)
    give_to(log, topic_id, index)
    append(log, make_batch([b"one"]))
    sync(log)
    return files


def legacy(owner: bytes | None, claim: bytes | None = None) -> FaultyFiles:
    files = owned()
    files.remove(f"{PATH}/{IDENTITY}")
    if owner is not None:
        files.store(f"{PATH}/{OWNER}", owner)
    if claim is not None:
        files.store(f"{PATH}/{CLAIM}", claim + crc32(claim).to_bytes(4, "big"))
    return files


def test_a_log_says_whose_it_is_from_its_first_sync_on() -> None:
    assert identity_of(owned().power_cut(Random(1)), PATH) == Identity(OURS, 0)


@given(st.integers(0, 10**6))
def test_a_damaged_identity_says_nothing(bit: int) -> None:
    files = owned()
    files.flip(f"{PATH}/{IDENTITY}", bit % (8 * (len(files.peek(f"{PATH}/{IDENTITY}")) - 1)))
    assert identity_of(files, PATH) is None
    assert judge(files, PATH, OURS, 0, Known(OURS), trust=Trust()) is Verdict.OPEN, "the manifest knows its place"


@given(st.integers(0, 127))
def test_a_flipped_bit_in_the_owner_file_of_an_older_release_does_not_make_it_anothers(bit: int) -> None:
    damaged = bytearray(OURS.bytes)
    damaged[bit // 8] ^= 1 << bit % 8
    for files in (legacy(bytes(damaged)), legacy(bytes(damaged), OURS.bytes)):
        for known in (None, Known(OURS, 1)):
            assert judge(files, PATH, OURS, 0, known, trust=Trust(adopts=True)) is Verdict.OPEN


def test_directories_of_older_releases_are_known() -> None:
    assert identity_of(legacy(OURS.bytes), PATH) == Identity(OURS, is_checked=False)
    assert identity_of(legacy(None, OURS.bytes), PATH) == Identity(OURS)
    assert judge(legacy(None), PATH, OURS, 0, None, trust=Trust(adopts=True)) is Verdict.OPEN


def test_a_log_that_is_known_and_not_there_is_lost() -> None:
    with pytest.raises(CorruptionError, match="is missing.*headrace log accept DIR orders 0"):
        judge(FaultyFiles(), PATH, OURS, 0, Known(OURS), trust=Trust())


def test_a_log_that_nobody_has_heard_of_is_new() -> None:
    assert judge(FaultyFiles(), PATH, OURS, 0, None, trust=Trust()) is Verdict.OPEN
    assert judge(FaultyFiles(), PATH, OURS, 0, Known(OTHER, 99), trust=Trust()) is Verdict.OPEN


def test_nothing_is_new_to_a_damaged_manifest() -> None:
    with pytest.raises(CorruptionError, match="is missing"):
        judge(FaultyFiles(), PATH, OURS, 0, None, trust=Trust(is_damaged=True))


@pytest.mark.parametrize("found", [(OTHER, 0), (OURS, 1)])
def test_a_log_in_the_place_of_another_is_lost(found: tuple[UUID, int]) -> None:
    with pytest.raises(CorruptionError, match="swapped"):
        judge(owned(*found), PATH, OURS, 0, Known(OURS), trust=Trust())


def test_only_what_is_surely_an_older_topics_is_removed() -> None:
    assert judge(owned(OTHER), PATH, OURS, 0, Known(OTHER), trust=Trust()) is Verdict.REMOVE
    assert judge(owned(OTHER), PATH, OURS, 0, None, trust=Trust()) is Verdict.SET_ASIDE
    assert judge(legacy(OTHER.bytes), PATH, OURS, 0, Known(OTHER), trust=Trust()) is Verdict.SET_ASIDE
    assert judge(legacy(None), PATH, OURS, 0, Known(OTHER), trust=Trust()) is Verdict.SET_ASIDE


def test_records_that_nobody_owns_belong_to_no_new_topic() -> None:
    assert judge(legacy(None), PATH, OURS, 0, None, trust=Trust()) is Verdict.SET_ASIDE


def test_a_directory_that_was_made_and_not_noted_is_used() -> None:
    files = FaultyFiles()
    Log.open(files, PATH, TopicConfig(), now_ms=1)
    assert judge(files, PATH, OURS, 0, None, trust=Trust()) is Verdict.OPEN


def test_a_copy_is_believed_only_where_ends_are_exact() -> None:
    files, backup = owned(), owned()
    known = Known(OURS, 1, fingerprint=files.fingerprint(PATH))
    exact = Known(OURS, 1, fingerprint=files.fingerprint(PATH), is_exact=True)
    assert judge(files, PATH, OURS, 0, known, trust=Trust()) is Verdict.OPEN
    files.put(PATH, backup)
    assert judge(files, PATH, OURS, 0, exact, trust=Trust()) is Verdict.OPEN
    with pytest.raises(CorruptionError, match="put back from a copy"):
        judge(files, PATH, OURS, 0, known, trust=Trust())


def test_a_log_that_is_older_than_it_was_is_left_as_it_is() -> None:
    files = owned()
    before = {path: files.peek(path) for path in files.paths()}
    with pytest.raises(CorruptionError, match="ends at offset 1, but everything below 2"):
        Log.open(files, PATH, TopicConfig(), now_ms=1, known=Known(OURS, 2))
    assert {path: files.peek(path) for path in files.paths()} == before
    assert Log.open(files, PATH, TopicConfig(), now_ms=1, known=Known(OURS, 1)).end_offset == 1
