"""A node as the ring sees it: an id, a rack and a weight."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

Rack = str | int


class Node(msgspec.Struct, frozen=True):
    """A node of twice the weight holds twice as much. A node that names no rack is a rack of its own."""

    node_id: int
    rack: str | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"node {self.node_id}: a weight is above 0, not {self.weight}")

    @property
    def place(self) -> Rack:
        """What must not fail twice for one partition: the rack, or the node itself."""
        return self.node_id if self.rack is None else self.rack


def distinct(nodes: Iterable[Node]) -> list[Node]:
    """In the order of their ids, so that no answer depends on the order in which nodes are named."""
    found = {node.node_id: node for node in nodes}
    return [found[node_id] for node_id in sorted(found)]
