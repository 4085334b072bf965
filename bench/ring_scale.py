"""Placement on 1,000 nodes and 100,000 partitions: what moves, how even it is, how long it takes.

`python -m bench.ring_scale`. Times are the processor's, of one run: the machine may be busy.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from headrace.ring import Move, Node, place, plan

NODES, RACKS, PARTITIONS, FACTOR = 1_000, 10, 100_000, 3
TOPICS = 1_000  # of a hundred partitions each

Assignment = dict[tuple[str, int], tuple[int, ...]]
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    begun = time.process_time()
    return work(), time.process_time() - begun


def fill(nodes: Sequence[Node], topics: int, partitions: int) -> Assignment:
    """Topics placed one after the other, as users create them."""
    current: Assignment = {}
    load: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    for number in range(topics):
        for index, replicas in enumerate(place(f"topic-{number}", partitions, FACTOR, nodes, load, leads)):
            current[f"topic-{number}", index] = replicas
            load.update(replicas)
            leads.update(replicas[:1])
    return current


def evenness(lists: Iterable[Sequence[int]], nodes: int) -> float:
    counts = Counter(node_id for replicas in lists for node_id in replicas)
    return max(counts.values()) * nodes / sum(counts.values())


def row(name: str, current: Assignment, nodes: Sequence[Node], leaving: frozenset[int], ideal: float) -> str:
    moves, seconds = timed(lambda: plan(current, nodes, leaving=leaving))
    after = current | {(move.topic, move.index): move.after for move in moves}
    staying = len(nodes) - len(leaving)
    leaders = [replicas[:1] for replicas in after.values()]
    return (
        f"| {name} | {share(moves, current):.3%} | {share(moves, current) / ideal:.2f}x | {len(moves):,} "
        f"| {evenness(after.values(), staying):.3f} | {evenness(leaders, staying):.3f} | {seconds:.1f} s |"
    )


def share(moves: Sequence[Move], current: Mapping[tuple[str, int], Sequence[int]]) -> float:
    """Of all replicas, how many are copied."""
    return sum(len(move.adding) for move in moves) / sum(len(replicas) for replicas in current.values())


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    nodes = [Node(node_id, f"rack-{node_id % RACKS}") for node_id in range(NODES)]
    one, seconds = timed(lambda: place("one", PARTITIONS, FACTOR, nodes))
    print(
        f"place one topic of {PARTITIONS:,} partitions on {NODES:,} nodes in {RACKS} racks: {seconds:.1f} s, ", end=""
    )
    print(f"max/mean of replicas {evenness(one, NODES):.3f}, of leaders {evenness([r[:1] for r in one], NODES):.3f}")
    current, seconds = timed(lambda: fill(nodes, TOPICS, PARTITIONS // TOPICS))
    print(f"place {TOPICS:,} topics one after the other: {seconds:.1f} s, ", end="")
    print(f"max/mean of replicas {evenness(current.values(), NODES):.3f}, ", end="")
    print(f"of leaders {evenness([r[:1] for r in current.values()], NODES):.3f}\n")
    print("| change | replicas copied | against the ideal | partitions | max/mean replicas | max/mean leaders | plan |")
    print("|---|---|---|---|---|---|---|")
    joined = [*nodes, Node(NODES, "rack-0")]
    many = [*nodes, *(Node(node_id, f"rack-{node_id % RACKS}") for node_id in range(NODES, NODES + 100))]
    none: frozenset[int] = frozenset()
    print(row("none", current, nodes, none, 1))
    print(row("one node joins", current, joined, none, 1 / (NODES + 1)))
    print(row("a hundred nodes join", current, many, none, 100 / (NODES + 100)))
    print(row("one node leaves", current, nodes, frozenset({500}), 1 / NODES))
    print(row("a rack of a hundred leaves", current, nodes, frozenset(range(0, NODES, RACKS)), 1 / RACKS))


if __name__ == "__main__":
    main()
