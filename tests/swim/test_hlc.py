"""Hybrid logical clocks: causes before effects, never back, close to the wall."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.swim.hlc import COUNTER_BITS, HybridClock, stamp_ms

walls = st.lists(st.integers(0, 10_000), min_size=1, max_size=50)


@settings(deadline=None)
@given(walls)
def test_stamps_grow_whatever_the_wall_clock_does(walls_ms) -> None:
    clock = HybridClock(max_drift_ms=100)
    stamps = [clock.now(wall_ms) for wall_ms in walls_ms]
    assert stamps == sorted(set(stamps))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 50)), max_size=60))
def test_what_was_heard_has_a_greater_stamp_than_what_was_said(messages) -> None:
    clocks, skews = [HybridClock(1000) for _ in range(3)], (0, 300, -200)
    for at_ms, (sender, target, _) in enumerate(messages, start=1000):
        said = clocks[sender].now(at_ms + skews[sender])
        before = clocks[target].last
        heard = clocks[target].update(said, at_ms + skews[target])
        assert heard > said and heard > before


@settings(deadline=None)
@given(walls)
def test_a_clock_follows_the_wall_when_that_goes_on(walls_ms) -> None:
    clock = HybridClock(max_drift_ms=100)
    for wall_ms in walls_ms:
        clock.now(wall_ms)
    assert stamp_ms(clock.now(20_000)) == 20_000
    assert clock.ahead_ms(20_000) == 0


def test_a_stamp_from_too_far_ahead_is_not_followed() -> None:
    clock = HybridClock(max_drift_ms=100)
    assert stamp_ms(clock.update(1101 << COUNTER_BITS, 1000)) == 1000
    assert clock.refused == 1
    assert stamp_ms(clock.update(1100 << COUNTER_BITS, 1000)) == 1100
    assert (clock.refused, clock.ahead_ms(1000)) == (1, 100)


def test_a_full_counter_carries_into_the_milliseconds() -> None:
    clock = HybridClock(max_drift_ms=100)
    clock.last = (1000 << COUNTER_BITS) + 2**COUNTER_BITS - 1
    assert clock.now(1000) == 1001 << COUNTER_BITS


def test_events_of_the_same_millisecond_are_counted() -> None:
    clock = HybridClock(max_drift_ms=100)
    first = clock.now(1000)
    assert [clock.now(1000) - first for _ in range(3)] == [1, 2, 3]
