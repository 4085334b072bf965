"""Whether anything that a broker wrote may be gone: it ended cleanly, or its system still runs."""

from __future__ import annotations

from random import Random

from headrace.storage.directory import distrust_system, leave_clean_mark, take_clean_mark, trust_system
from headrace.testing.files import FaultyFiles


def running(boot_id: str = "one") -> FaultyFiles:
    """The directory of a broker that runs and has told the cluster so."""
    files = FaultyFiles()
    trust_system(files, boot_id)
    return files


def test_a_clean_end_counts_once() -> None:
    files = FaultyFiles()
    leave_clean_mark(files)
    assert take_clean_mark(files)
    assert not take_clean_mark(files)


def test_a_killed_broker_has_lost_nothing_while_its_system_runs() -> None:
    assert take_clean_mark(running("one").killed(), "one")


def test_a_broker_whose_system_went_down_may_have_lost_something() -> None:
    assert not take_clean_mark(running("one").power_cut(Random(1)), "two")


def test_a_loss_is_not_forgotten_before_the_cluster_knows_it() -> None:
    files = running("one").power_cut(Random(1))
    assert not take_clean_mark(files, "two")
    files = files.killed()
    assert not take_clean_mark(files, "two"), "it was killed before it had registered"
    trust_system(files, "two")
    assert take_clean_mark(files, "two")


def test_a_clean_end_is_not_forgotten_by_being_killed_early_in_the_next_life() -> None:
    files = FaultyFiles()
    leave_clean_mark(files)
    assert take_clean_mark(files, "two")
    assert take_clean_mark(files.killed(), "two")


def test_nobody_trusts_a_system_whose_sync_has_failed() -> None:
    files = running("one")
    distrust_system(files)
    assert not take_clean_mark(files.killed(), "one")


def test_a_system_that_cannot_be_told_from_another_is_not_trusted() -> None:
    assert not take_clean_mark(running("").killed(), "")
