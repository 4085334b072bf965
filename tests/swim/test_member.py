"""Which of two records is the newer one: a total order, so that all who hear the same believe the same."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from swim_stage import member

from headrace.swim.member import Member, State

records = st.builds(
    lambda incarnation, state, host, meta: Member(4, host, 7946, incarnation, state, "", meta),
    st.integers(0, 3),
    st.sampled_from(State),
    st.sampled_from(["a", "b"]),
    st.sampled_from([b"", b"x"]),
)


def later(one: Member, two: Member) -> Member:
    return two if two.supersedes(one) else one


@settings(deadline=None)
@given(st.lists(records, min_size=1), st.randoms(use_true_random=False))
def test_the_order_in_which_records_are_heard_does_not_matter(heard, dice) -> None:
    shuffled = heard + heard[: len(heard) // 2]  # some twice
    dice.shuffle(shuffled)
    assert reduce(later, heard) == reduce(later, shuffled)


@settings(deadline=None)
@given(records, records)
def test_of_two_different_records_exactly_one_supersedes_the_other(one, two) -> None:
    assert one.supersedes(two) + two.supersedes(one) == (one != two)


def test_within_an_incarnation_the_worse_word_counts() -> None:
    ranked = [member(4, 7, state) for state in (State.ALIVE, State.SUSPECT, State.DEAD, State.LEFT)]
    assert all(worse.supersedes(better) for better, worse in pairwise(ranked))


def test_a_higher_incarnation_overrules_every_state() -> None:
    assert all(member(4, 8).supersedes(member(4, 7, state)) for state in State)
    assert not any(member(4, 7, state).supersedes(member(4, 8)) for state in State)
