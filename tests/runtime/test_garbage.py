"""Full collections look at what is new, and at everything when that has doubled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from headrace.runtime.garbage import Keeper


class Cycle:
    """Garbage that only the collector can find."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper(few=0)
    keeper.start()
    yield keeper
    keeper.stop()
    gc.collect()


def test_what_has_survived_is_set_aside_and_what_is_new_is_collected(keeper: Keeper):
    gc.collect()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    seen = weakref.ref(Cycle())
    gc.collect()
    assert seen() is None
    assert gc.get_freeze_count() < 1.5 * frozen


def test_cycles_that_were_set_aside_are_found_when_everything_has_doubled(keeper: Keeper):
    cycle = Cycle()
    gc.collect()
    seen = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert seen() is not None, "it was set aside"
    grown = [[number] for number in range(2 * gc.get_freeze_count())]
    gc.collect()
    gc.collect()
    assert seen() is None
    del grown
