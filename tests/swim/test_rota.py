"""Whose turn it is: everybody once in a round, whoever comes and goes."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from swim_stage import Least

from headrace.swim.rota import Rota


def filled(size: int, seed: int = 3) -> Rota:
    rota = Rota(Random(seed))
    for node in range(size):
        rota.add(node)
    return rota


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 1000))
def test_everybody_has_one_turn_in_a_round(size, seed) -> None:
    rota = filled(size, seed)
    [rota.turn() for _ in range(len(rota))]  # those who came while the first round ran
    for _ in range(3):
        assert sorted(rota.turn() for _ in range(size)) == list(range(size))


@settings(deadline=None)
@given(st.integers(2, 20), st.integers(0, 1000), st.lists(st.sampled_from(["turn", "add", "remove"]), max_size=60))
def test_nobody_waits_longer_than_two_rounds_less_one(size, seed, steps) -> None:
    rota, dice, waiting, newest = filled(size, seed), Random(seed), 0, size
    for step in [*steps, *["turn"] * 2 * (size + len(steps))]:
        if step == "add":
            rota.add(newest)
            newest += 1
        elif step == "remove" and len(rota) > 1:
            rota.remove(dice.choice([node for node in rota._nodes if node != 0] or [0]))
        elif step == "turn":
            largest = max(len(rota), newest)
            waiting = 0 if rota.turn() == 0 else waiting + 1
            assert waiting <= 2 * largest - 1


@settings(deadline=None)
@given(st.integers(2, 20), st.integers(0, 1000), st.data())
def test_who_comes_and_who_goes_costs_nobody_else_its_turn(size, seed, data) -> None:
    rota = filled(size, seed)
    [rota.turn() for _ in range(2 * size)]  # to the end of a round
    had = [rota.turn() for _ in range(data.draw(st.integers(1, size - 1)))]
    rota.remove(data.draw(st.sampled_from(had)))
    rota.add(99)
    left = set(range(size)) - set(had)
    assert left <= {rota.turn() for _ in range(len(left) + 1)}


def test_one_who_comes_among_those_who_had_their_turn_gives_nobody_a_second() -> None:
    rota = Rota(Least())
    for node in range(3):
        rota.add(node)
    first = [rota.turn(), rota.turn()]
    rota.add(9)  # at the very front
    assert rota.turn() not in first


def test_rounds_have_different_orders() -> None:
    rota = filled(10)
    rounds = {tuple(rota.turn() for _ in range(10)) for _ in range(5)}
    assert len(rounds) == 5


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 6), st.integers(0, 1000))
def test_those_who_are_picked_are_different_and_allowed(size, count, seed) -> None:
    picked = filled(size, seed).pick(count, without=(0, 1))
    assert len(set(picked)) == len(picked) <= count
    assert not {0, 1} & set(picked)
    if size <= 2 * count + 2:
        assert len(picked) == min(count, max(0, size - 2))


def test_nobody_is_left_to_probe_in_a_cluster_of_one() -> None:
    assert filled(0).turn() is None
