"""A plan: the moves that bring a cluster into balance after a node came, went, or changed its rack.

Rules:
- It begins with what is, not with what the ring would choose: a node that joins N takes about 1/(N+1) of the replicas,
  and nothing else moves; a node that leaves gives what it holds, and hardly anything else moves.
- A replica keeps its place in the list; the preferred leader changes only where its replica moves, or where a node
  would lead a tenth more than its share.
- The number of replicas falls only if there are fewer nodes than replicas. The move then says so: `missing`.
- A node within a twentieth of its share (by weight) is in balance; nothing moves from one such to another.
- A cluster in balance gets an empty plan; so does one that has followed its plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from headrace.ring.leaders import limits, spread
from headrace.ring.ledger import Ledger
from headrace.ring.node import Node, distinct

SLACK: Final = 0.05  # a node that is so near to its share is in balance
LEADER_SLACK: Final = 1.1

Replicas = tuple[int, ...]


class Move(msgspec.Struct, frozen=True):
    """One partition's replicas, before and after."""

    topic: str
    index: int
    before: Replicas
    after: Replicas

    @property
    def adding(self) -> Replicas:
        """Who copies the partition: what the move costs."""
        return tuple(node_id for node_id in self.after if node_id not in self.before)

    @property
    def removing(self) -> Replicas:
        return tuple(node_id for node_id in self.before if node_id not in self.after)

    @property
    def missing(self) -> int:
        """Replicas for which there is no node: the replication factor falls by so many."""
        return len(self.before) - len(self.after)


def plan(
    current: Mapping[tuple[str, int], Sequence[int]],
    nodes: Collection[Node],
    *,
    leaving: Collection[int] = frozenset(),
) -> list[Move]:
    """The moves, in the order of topics and partitions. `nodes` are those that may hold replicas, minus `leaving`."""
    staying = [node for node in distinct(nodes) if node.node_id not in leaving]
    if not staying:
        raise ValueError("no node is left to hold replicas")
    names = sorted(current)
    lists = [list(current[name]) for name in names]
    ledger = Ledger(staying, lists, [topic for topic, _ in names])
    ledger.replace()
    ledger.respread()
    ledger.balance(SLACK)
    spread(lists, limits(ledger.nodes, len(lists), LEADER_SLACK))
    return [
        Move(topic, index, tuple(current[topic, index]), tuple(replicas))
        for (topic, index), replicas in zip(names, lists, strict=True)
        if list(current[topic, index]) != replicas
    ]
