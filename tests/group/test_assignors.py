"""The broker's assignors: who gets what, how evenly, and how little moves."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.group.assignors import Reader, by_range, uniform

TOPICS = [UUID(int=number) for number in range(1, 6)]
T, U, V = TOPICS[:3]


def parts(topic: UUID, *indexes: int) -> frozenset[tuple[UUID, int]]:
    return frozenset((topic, index) for index in indexes)


def readers(*names: str, topics: tuple[UUID, ...] = (T,), **before: frozenset[tuple[UUID, int]]) -> dict[str, Reader]:
    return {name: Reader(frozenset(topics), before.get(name, frozenset())) for name in names}


counts_of = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)
names_of = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@st.composite
def homogeneous(draw: st.DrawFn) -> tuple[dict[str, Reader], dict[UUID, int]]:
    """Members that read the same, with any disjoint past, of topics that are gone and of partitions that are not."""
    counts, names = draw(counts_of), draw(names_of)
    places = [(topic, index) for topic in TOPICS for index in range(8)]
    past = {
        place: draw(st.sampled_from([*names, None])) for place in draw(st.lists(st.sampled_from(places), unique=True))
    }
    return {
        name: Reader(frozenset(counts), frozenset(place for place, owner in past.items() if owner == name))
        for name in names
    }, counts


@st.composite
def heterogeneous(draw: st.DrawFn) -> tuple[dict[str, Reader], dict[UUID, int]]:
    group, counts = draw(homogeneous())
    subsets = st.frozensets(st.sampled_from(sorted(counts)))
    return {name: reader._replace(topics=draw(subsets)) for name, reader in group.items()}, counts


def check_whole(group: dict[str, Reader], counts: dict[UUID, int], result: dict[str, frozenset]) -> None:
    """Every wanted partition has one owner, who subscribes to it."""
    wanted = frozenset().union(*(reader.topics for reader in group.values()))
    everything = sorted((topic, index) for topic in wanted for index in range(counts[topic]))
    assert sorted(place for places in result.values() for place in places) == everything
    assert all(place[0] in group[name].topics for name, places in result.items() for place in places)
    assert result.keys() == group.keys()


@given(homogeneous())
def test_uniform_is_whole_and_even_to_one(spec: tuple[dict[str, Reader], dict[UUID, int]]) -> None:
    result = uniform(*spec)
    check_whole(*spec, result)
    loads = [len(places) for places in result.values()]
    assert max(loads) - min(loads) <= 1


@given(homogeneous())
def test_no_even_assignment_moves_less_than_uniform(spec: tuple[dict[str, Reader], dict[UUID, int]]) -> None:
    group, counts = spec
    result = uniform(group, counts)
    stay = {
        name: len({place for place in reader.before if place[1] < counts.get(place[0], 0)})
        for name, reader in group.items()
    }
    share, extra = divmod(sum(len(places) for places in result.values()), len(group))
    # The best that any even assignment can keep: the larger shares go to those that have most.
    best = sum(min(had, share + (rank < extra)) for rank, had in enumerate(sorted(stay.values(), reverse=True)))
    kept = sum(len(result[name] & reader.before) for name, reader in group.items())
    assert kept == best


@given(heterogeneous())
def test_uniform_with_different_subscriptions_is_whole_and_nobody_could_take_from_one_with_two_more(
    spec: tuple[dict[str, Reader], dict[UUID, int]],
) -> None:
    group, counts = spec
    result = uniform(group, counts)
    check_whole(group, counts, result)
    for owner, places in result.items():
        for topic, _ in places:
            lightest = min(len(result[name]) for name, reader in group.items() if topic in reader.topics)
            assert len(result[owner]) - lightest <= 1


@given(st.one_of(homogeneous(), heterogeneous()))
def test_uniform_changes_nothing_when_nothing_changed(spec: tuple[dict[str, Reader], dict[UUID, int]]) -> None:
    group, counts = spec
    first = uniform(group, counts)
    again = {name: reader._replace(before=first[name]) for name, reader in group.items()}
    assert uniform(again, counts) == first


@given(st.one_of(homogeneous(), heterogeneous()), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(spec: tuple[dict[str, Reader], dict[UUID, int]], dice) -> None:
    group, counts = spec
    names = list(group)
    dice.shuffle(names)
    shuffled = {name: group[name] for name in names}
    assert uniform(group, counts) == uniform(shuffled, counts)
    assert by_range(group, counts) == by_range(shuffled, counts)


@given(st.one_of(homogeneous(), heterogeneous()))
def test_range_is_whole_and_gives_runs(spec: tuple[dict[str, Reader], dict[UUID, int]]) -> None:
    group, counts = spec
    result = by_range(group, counts)
    check_whole(group, counts, result)
    for places in result.values():
        for topic in {place[0] for place in places}:
            indexes = sorted(index for each, index in places if each == topic)
            assert indexes == list(range(indexes[0], indexes[-1] + 1))


def test_a_newcomer_takes_only_its_share() -> None:
    group = readers("a", "b", "new", a=parts(T, 0, 1, 2), b=parts(T, 3, 4, 5))
    result = uniform(group, {T: 6})
    assert {name: len(places) for name, places in result.items()} == {"a": 2, "b": 2, "new": 2}
    assert result["a"] < group["a"].before and result["b"] < group["b"].before


def test_who_leaves_is_replaced_without_moving_the_rest() -> None:
    group = readers("a", "b", a=parts(T, 0, 1), b=parts(T, 2, 3))
    result = uniform(group, {T: 6})
    assert result["a"] > group["a"].before and result["b"] > group["b"].before


def test_uniform_spreads_each_topic() -> None:
    result = uniform(readers("a", "b", topics=(T, U)), {T: 2, U: 2})
    assert all({topic for topic, _ in places} == {T, U} for places in result.values())


def test_range_cuts_like_topics_alike_in_the_order_of_instances() -> None:
    group = {
        "a": Reader(frozenset({T, U}), instance_id="two"),
        "b": Reader(frozenset({T, U}), instance_id="one"),
    }
    result = by_range(group, {T: 3, U: 3})
    assert result == {"b": parts(T, 0, 1) | parts(U, 0, 1), "a": parts(T, 2) | parts(U, 2)}


def test_members_without_topics_get_nothing() -> None:
    assert uniform(readers("a", topics=()), {}) == {"a": frozenset()}
    assert by_range(readers("a", topics=()), {}) == {"a": frozenset()}
    assert uniform({}, {}) == {}
