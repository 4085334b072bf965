"""Leaders spread over the nodes: who stands first in each list of replicas.

Rules:
- Only the order within a list changes, and only by bringing one replica to the front: no bytes move for it.
- Where a node leads more than it may, leadership is passed on along the shortest chain of partitions that ends at a
  node with room; so what can be spread by reordering is spread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headrace.ring.node import Node


def limits(nodes: Mapping[int, Node], leaders: int, slack: float = 1.0) -> dict[int, int]:
    """How many partitions each node may lead: its share, times `slack`, but never less than its share rounded up."""
    weight = sum(node.weight for node in nodes.values())
    found = {}
    for node_id, node in nodes.items():
        share = leaders * node.weight / weight
        found[node_id] = max(-int(-share // 1), int(share * slack))
    return found


def spread(lists: list[list[int]], most: Mapping[int, int]) -> None:
    """Reorders `lists` in place until no node leads more than its `most`, as far as reordering can do it."""
    led: dict[int, dict[int, None]] = {node_id: {} for node_id in most}
    for number, replicas in enumerate(lists):
        if replicas:
            led[replicas[0]][number] = None
    for node_id in most:
        while len(led[node_id]) > most[node_id]:
            chain = _chain(node_id, lists, led, most)
            if not chain:
                break
            for number, successor in chain:
                replicas = lists[number]
                del led[replicas[0]][number]
                replicas.remove(successor)
                replicas.insert(0, successor)
                led[successor][number] = None


def _chain(
    crowded: int, lists: list[list[int]], led: Mapping[int, Mapping[int, None]], most: Mapping[int, int]
) -> list[tuple[int, int]]:
    """(partition, its next leader) from `crowded` to a node with room; empty if there is none."""
    came_by: dict[int, tuple[int, int]] = {crowded: (-1, crowded)}
    waiting = deque([crowded])
    while waiting:
        node_id = waiting.popleft()
        for number in led[node_id]:
            for other in lists[number][1:]:
                if other in came_by:
                    continue
                came_by[other] = (number, node_id)
                if len(led[other]) < most[other]:
                    return _back(other, crowded, came_by)
                waiting.append(other)
    return []


def _back(end: int, start: int, came_by: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """The chain that was followed, from its end: each partition is passed on before its next leader gets another."""
    chain = []
    while end != start:
        number, before = came_by[end]
        chain.append((number, end))
        end = before
    return chain
