"""Plans: few moves, and balance when they are done."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ring import Move, Node, place, plan

Assignment = dict[tuple[str, int], tuple[int, ...]]


def plain(count: int) -> list[Node]:
    return [Node(node_id) for node_id in range(count)]


def filled(nodes: Sequence[Node], topics: Mapping[str, int], factor: int) -> Assignment:
    """A cluster whose topics were placed one after the other."""
    current: Assignment = {}
    load: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    for topic, partitions in topics.items():
        for index, replicas in enumerate(place(topic, partitions, factor, nodes, load, leads)):
            current[topic, index] = replicas
            load.update(replicas)
            leads.update(replicas[:1])
    return current


def followed(current: Assignment, moves: Sequence[Move]) -> Assignment:
    assert all(current[move.topic, move.index] == move.before != move.after for move in moves)
    return current | {(move.topic, move.index): move.after for move in moves}


def loads(current: Assignment, nodes: Sequence[Node]) -> list[int]:
    held = Counter(node_id for replicas in current.values() for node_id in replicas)
    assert set(held) <= {node.node_id for node in nodes}
    return [held[node.node_id] for node in nodes]


def leads(current: Assignment, nodes: Sequence[Node]) -> list[int]:
    led = Counter(replicas[0] for replicas in current.values())
    return [led[node.node_id] for node in nodes]


def copies(moves: Sequence[Move]) -> int:
    return sum(len(move.adding) for move in moves)


def is_even(held: Sequence[int]) -> bool:
    mean = sum(held) / len(held)
    return min(math.floor(mean), 0.95 * mean) <= min(held) and max(held) <= max(math.ceil(mean), 1.05 * mean)


topics = st.dictionaries(st.text("abcd", min_size=1, max_size=4), st.integers(1, 30), min_size=1, max_size=6)


@given(topics, st.integers(1, 9), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_nodes_that_join_take_their_share_and_nothing_else_moves(
    names: dict[str, int], size: int, factor: int, joining: int
) -> None:
    factor = min(factor, size)
    current = filled(plain(size), names, factor)
    nodes = plain(size + joining)
    moves = plan(current, nodes)
    after = followed(current, moves)
    held = loads(after, nodes)
    assert is_even(held)
    assert all(set(move.adding) <= set(range(size, size + joining)) for move in moves if move.adding)
    replicas = factor * len(current)
    assert copies(moves) <= joining * -(-replicas // (size + joining))
    assert max(leads(after, nodes)) <= max(-(-len(after) // len(nodes)), 1.1 * len(after) / len(nodes)) + 1
    assert plan(after, nodes) == []


@given(topics, st.integers(4, 9), st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_a_node_that_leaves_gives_what_it_holds_and_hardly_anything_else_moves(
    names: dict[str, int], size: int, factor: int, gone: int
) -> None:
    current = filled(plain(size), names, factor)
    moves = plan(current, plain(size), leaving=frozenset({gone}))
    after = followed(current, moves)
    staying = [node for node in plain(size) if node.node_id != gone]
    held = loads(after, staying)
    assert is_even(held)
    lost = sum(gone in replicas for replicas in current.values())
    assert lost <= copies(moves) <= 1.1 * lost + 3  # small clusters pay for the rule of one replica per node
    assert all(move.missing == 0 for move in moves)


@given(topics, st.integers(3, 12), st.data())
@settings(max_examples=100, deadline=None)
def test_after_a_change_of_racks_replicas_stand_on_as_many_racks_as_there_are(
    names: dict[str, int], size: int, data: st.DataObject
) -> None:
    current = filled(plain(size), names, 3)
    racks = data.draw(st.lists(st.sampled_from("ABCD"), min_size=size, max_size=size))
    nodes = [Node(node_id, rack) for node_id, rack in enumerate(racks)]
    moves = plan(current, nodes)
    after = followed(current, moves)
    for replicas in after.values():
        assert len(set(replicas)) == 3
        assert len({racks[node_id] for node_id in replicas}) == min(3, len(set(racks)))
    assert plan(after, nodes) == []


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("xyz"), st.integers(0, 20)),
        st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple),
        max_size=40,
    ),
    st.sets(st.integers(0, 12), min_size=1),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_cluster_comes_into_balance(current: Assignment, present: set[int], data: st.DataObject) -> None:
    nodes = [Node(node_id) for node_id in sorted(present)]
    moves = plan(current, nodes)
    after = followed(current, moves)
    held = loads(after, nodes)
    assert is_even(held)
    for name, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == min(len(current[name]), len(nodes))
    assert plan(after, nodes) == []
    assert plan(dict(reversed(current.items())), list(reversed(nodes))) == moves


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("xyz"), st.integers(0, 20)),
        st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple),
        max_size=40,
    ),
    st.dictionaries(
        st.integers(0, 12), st.tuples(st.sampled_from(["A", "B", "C", None]), st.sampled_from([0.5, 1, 3])), min_size=1
    ),
)
@settings(max_examples=200, deadline=None)
def test_racks_and_weights_in_any_mixture_keep_the_rules(
    current: Assignment, present: dict[int, tuple[str | None, float]]
) -> None:
    nodes = [Node(node_id, rack, weight) for node_id, (rack, weight) in present.items()]
    place_of = {node.node_id: node.place for node in nodes}
    moves = plan(current, nodes)
    after = followed(current, moves)
    for name, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == min(len(current[name]), len(nodes))
        assert len({place_of[node_id] for node_id in replicas}) == min(len(replicas), len(set(place_of.values())))
    assert plan(after, nodes) == []


def test_too_few_nodes_are_told_by_the_move() -> None:
    current = {("t", 0): (1, 2, 3)}
    (move,) = plan(current, [Node(1), Node(2), Node(3)], leaving=frozenset({2}))
    assert move == Move("t", 0, (1, 2, 3), (1, 3))
    assert (move.missing, move.adding, move.removing) == (1, (), (2,))


def test_without_any_node_there_is_no_plan() -> None:
    with pytest.raises(ValueError):
        plan({("t", 0): (1,)}, [Node(1)], leaving=frozenset({1}))


def test_a_joining_node_takes_from_every_topic_and_its_share_of_leaders() -> None:
    current = filled(plain(4), {"a": 40, "b": 40, "c": 40}, 2)
    after = followed(current, plan(current, plain(5)))
    took = Counter(topic for (topic, _), replicas in after.items() if 4 in replicas)
    assert min(took.values()) >= 12 and sum(took.values()) == 48
    assert max(leads(after, plain(5))) - min(leads(after, plain(5))) <= 4


def test_leaders_that_crowd_on_one_node_are_spread_without_copying() -> None:
    current = {("t", index): (0, 1, 2) for index in range(9)}
    moves = plan(current, plain(3))
    assert copies(moves) == 0
    assert leads(followed(current, moves), plain(3)) == [3, 3, 3]
