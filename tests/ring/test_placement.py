"""New partitions: spread over nodes and racks, the same everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ApiError, ErrorCode
from headrace.ring import Node, place
from headrace.ring.share import Claim, apportion

names = st.text("abcdefgh", min_size=1, max_size=8)


def plain(count: int) -> list[Node]:
    return [Node(node_id) for node_id in range(count)]


def racked(*sizes: int) -> list[Node]:
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    return [Node(node_id, f"rack-{rack}") for node_id, rack in enumerate(racks)]


def counts(lists: Sequence[tuple[int, ...]], nodes: Sequence[Node]) -> list[int]:
    held = Counter(node_id for replicas in lists for node_id in replicas)
    return [held[node.node_id] for node in nodes]


def leaders(lists: Sequence[tuple[int, ...]], nodes: Sequence[Node]) -> list[int]:
    return counts([replicas[:1] for replicas in lists], nodes)


@given(names, st.integers(1, 60), st.integers(1, 12), st.data())
@settings(max_examples=150, deadline=None)
def test_replicas_and_leaders_are_spread_as_evenly_as_can_be(
    topic: str, partitions: int, size: int, data: st.DataObject
) -> None:
    nodes = plain(size)
    factor = data.draw(st.integers(1, min(size, 5)))
    lists = place(topic, partitions, factor, nodes, {})
    assert len(lists) == partitions
    assert all(len(set(replicas)) == factor for replicas in lists)
    held, led = counts(lists, nodes), leaders(lists, nodes)
    assert max(held) - min(held) <= 1
    assert max(led) <= -(-partitions // size) + (1 if factor > 1 else 0)


@given(names, st.integers(1, 60), st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
@settings(max_examples=150, deadline=None)
def test_replicas_stand_on_as_many_racks_as_there_are(
    topic: str, partitions: int, sizes: list[int], data: st.DataObject
) -> None:
    nodes = racked(*sizes)
    factor = data.draw(st.integers(1, min(len(nodes), 5)))
    rack = {node.node_id: node.rack for node in nodes}
    for replicas in place(topic, partitions, factor, nodes, {}):
        assert len(set(replicas)) == factor
        assert len({rack[node_id] for node_id in replicas}) == min(factor, len(sizes))


@given(
    names, st.integers(1, 40), st.permutations(racked(2, 3, 4)), st.dictionaries(st.integers(0, 8), st.integers(0, 9))
)
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_nodes_makes_no_difference(
    topic: str, partitions: int, shuffled: list[Node], load: dict[int, int]
) -> None:
    assert place(topic, partitions, 3, shuffled, load) == place(topic, partitions, 3, racked(2, 3, 4), load)


@pytest.mark.parametrize("topic", ["orders", "payments", "x", "__consumer_offsets"])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_as_many_partitions_as_nodes_go_to_different_nodes(topic: str, size: int) -> None:
    assert counts(place(topic, size, 1, plain(size), {}), plain(size)) == [1] * size
    assert leaders(place(topic, size, 3, plain(size), {}), plain(size)) == [1] * size


def test_what_does_not_go_round_goes_to_those_that_hold_least() -> None:
    assert place("one", 1, 1, plain(4), {0: 9, 1: 9, 2: 3, 3: 9}) == [(2,)]
    assert set(place("two", 1, 2, plain(4), {0: 9, 1: 4, 2: 3, 3: 9})[0]) == {1, 2}


def test_a_topic_is_spread_over_all_nodes_even_if_one_is_empty() -> None:
    assert counts(place("hot", 8, 1, plain(4), {0: 100, 1: 100, 2: 100}), plain(4)) == [2, 2, 2, 2]


def test_many_small_topics_fill_the_nodes_evenly() -> None:
    nodes = plain(5)
    load: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    for number in range(200):
        (replicas,) = place(f"topic-{number}", 1, 3, nodes, load, leads)
        load.update(replicas)
        leads.update(replicas[:1])
    assert set(load.values()) == {120}
    assert max(leads.values()) - min(leads.values()) <= 4


def test_weight_decides_how_much_a_node_holds() -> None:
    nodes = [Node(0), Node(1, weight=2), Node(2, weight=3)]
    assert counts(place("weighed", 60, 1, nodes, {}), nodes) == [10, 20, 30]


def test_partitions_that_are_added_do_not_depend_on_those_that_are_there() -> None:
    added = place("grown", range(4, 8), 2, plain(4), {})
    assert len(added) == 4
    assert counts(added, plain(4)) == [2, 2, 2, 2]


def test_a_single_node_of_a_rack_holds_a_replica_of_everything_when_the_rack_must_be_used() -> None:
    nodes = racked(1, 5)
    assert counts(place("uneven", 50, 2, nodes, {}), nodes) == [50, 10, 10, 10, 10, 10]


@pytest.mark.parametrize("factor", [0, 4])
def test_a_factor_that_the_nodes_cannot_give_is_refused(factor: int) -> None:
    with pytest.raises(ApiError) as refused:
        place("many", 1, factor, plain(3), {})
    assert refused.value.code is ErrorCode.invalid_replication_factor


def test_a_weight_is_above_nothing() -> None:
    with pytest.raises(ValueError):
        Node(1, weight=0)


def test_most_partitions_stay_where_they_are_if_the_ring_has_one_node_more() -> None:
    before = place("steady", 2000, 1, plain(50), {})
    after = place("steady", 2000, 1, plain(51), {})
    moved = sum(a != b for a, b in zip(before, after, strict=True))
    assert moved < 0.25 * 2000  # hashing modulo the number of nodes would move 98 %


@pytest.mark.process
def test_another_process_with_another_hash_seed_places_alike() -> None:
    code = "from headrace.ring import *; print(place('t', 30, 3, [Node(i, f'r{i % 3}') for i in range(9)], {}))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{place('t', 30, 3, [Node(i, f'r{i % 3}') for i in range(9)], {})}\n"}


@given(st.integers(0, 500), st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 20), st.integers(0, 50)), min_size=1))
def test_shares_sum_to_the_whole_within_their_bounds(total: int, bounds: list[tuple[float, int, int]]) -> None:
    claims = [Claim(weight, low, low + more) for weight, low, more in bounds]
    shares = apportion(total, claims)
    assert all(claim.low <= share <= claim.high for share, claim in zip(shares, claims, strict=True))
    least, most = sum(claim.low for claim in claims), sum(claim.high for claim in claims)
    assert sum(shares) == min(max(total, least), most)
