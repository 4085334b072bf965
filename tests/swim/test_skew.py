"""Skew: from the shortest of the last round trips, wrong by half of it at most."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.swim.skew import MAX_AGE_S, SAMPLES, Sending, Skew

WALL_MS = 1_800_000_000_000


def trip(skew: Skew, offset_ms: float, out_ms: float, back_ms: float, at_s: float = 0.0) -> None:
    sent = Sending(at_s, WALL_MS + round(at_s * 1000))
    now_s = at_s + (out_ms + back_ms) / 1000
    skew.add(sent, round(sent.wall_ms + out_ms + offset_ms), now_s, WALL_MS + round(now_s * 1000))


@settings(deadline=None)
@given(
    st.integers(-10_000, 10_000),
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), min_size=1, max_size=SAMPLES),
)
def test_the_estimate_is_wrong_by_half_the_shortest_trip_at_most(offset_ms, trips) -> None:
    skew = Skew()
    for place, (out_ms, back_ms) in enumerate(trips):
        trip(skew, offset_ms, out_ms, back_ms, at_s=float(place))
    best = skew.best
    assert best is not None
    assert abs(best.rtt_ms - min(out_ms + back_ms for out_ms, back_ms in trips)) < 0.01
    assert abs(best.offset_ms - offset_ms) <= best.rtt_ms / 2 + 1  # and what rounding to milliseconds does


def test_a_trip_during_which_our_own_clock_was_set_tells_nothing() -> None:
    skew = Skew()
    skew.add(Sending(5.0, WALL_MS), WALL_MS, 5.01, WALL_MS + 60_000)
    assert skew.best is None


def test_a_clock_that_was_set_is_seen_when_the_old_trips_are_gone() -> None:
    skew = Skew()
    trip(skew, 0, 0.1, 0.1)
    for place in range(1, SAMPLES + 1):
        trip(skew, 500, 2, 2, at_s=float(place))
    assert skew.best is not None
    assert abs(skew.best.offset_ms - 500) <= 3


def test_old_trips_make_way_for_new_ones() -> None:
    skew = Skew()
    trip(skew, 0, 0.1, 0.1)
    trip(skew, 500, 50, 50, at_s=MAX_AGE_S + 1)
    assert skew.best is not None
    assert skew.best.offset_ms > 400
