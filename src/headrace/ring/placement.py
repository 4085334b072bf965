"""Where the replicas of new partitions go: consistent hashing with virtual nodes and bounded load.

Rules:
- A partition's key stands on the circle; its replicas go to the next nodes clockwise that have room, no two on a node,
  and on as many racks as there are.
- A node's room is its share of this topic by weight, rounded up or down. What rounding leaves over goes to those that
  hold least of other topics. So a topic is spread as evenly as it can be: three partitions go to three nodes.
- Leaders are spread as evenly as replicas: the first of each list.
- The answer depends on the arguments alone, and not on the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headrace.core.errors import ApiError, ErrorCode
from headrace.ring.circle import Room, circle, point
from headrace.ring.leaders import limits, spread
from headrace.ring.ledger import Ledger
from headrace.ring.node import Node, Rack, distinct
from headrace.ring.share import Claim, apportion

MAX_STEPS: Final = 64  # of a walk on the circle, before all nodes are looked at

_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


def place(
    topic: str,
    partitions: range | int,
    factor: int,
    nodes: Collection[Node],
    load: Mapping[int, int] = _NOTHING,
    leads: Mapping[int, int] = _NOTHING,
) -> list[tuple[int, ...]]:
    """The replicas of each partition, the preferred leader first.

    `load` and `leads` count the replicas that nodes hold and the partitions that they lead already. ApiError if
    there are fewer nodes than `factor`.
    """
    indexes = range(partitions) if isinstance(partitions, int) else partitions
    chosen = distinct(nodes)
    if not 1 <= factor <= len(chosen):
        raise ApiError(
            ErrorCode.invalid_replication_factor,
            f"A replication factor of {factor} needs nodes; {len(chosen)} are there.",
        )
    room = Room(
        circle(tuple((node.node_id, node.weight) for node in chosen)),
        _room(topic, len(indexes), factor, chosen, load),
    )
    placing = _Placing(chosen, room)
    lists = [placing.replicas(point(topic, index), factor) for index in indexes]
    if any(room.left(owner) for owner in range(len(chosen))):
        Ledger(chosen, lists, [topic] * len(lists)).balance()
    by_id = {node.node_id: node for node in chosen}
    _choose_leaders(lists, by_id, leads)
    spread(lists, limits(by_id, len(lists)))
    return [tuple(replicas) for replicas in lists]


def _room(topic: str, count: int, factor: int, nodes: Sequence[Node], load: Mapping[int, int]) -> list[int]:
    """How many replicas each node gets: divided among racks first, then within each rack."""
    racks: dict[Rack, list[int]] = {}
    for owner, node in enumerate(nodes):
        racks.setdefault(node.place, []).append(owner)
    level = 1  # replicas of one partition on one rack, at most
    while sum(min(len(owners), level) for owners in racks.values()) < factor:
        level += 1
    held = [load.get(node.node_id, 0) for node in nodes]
    claims = [
        Claim(
            sum(nodes[owner].weight for owner in owners),
            count * min(len(owners), level - 1),
            count * min(len(owners), level),
            sum(held[owner] for owner in owners),
            point(topic, nodes[owners[0]].node_id),
        )
        for owners in racks.values()
    ]
    found = [0] * len(nodes)
    for owners, share in zip(racks.values(), apportion(count * factor, claims), strict=True):
        within = [
            Claim(nodes[owner].weight, 0, count, held[owner], point(topic, nodes[owner].node_id)) for owner in owners
        ]
        for owner, part in zip(owners, apportion(share, within), strict=True):
            found[owner] = part
    return found


class _Placing:
    """Takes replicas from the circle, one partition at a time."""

    def __init__(self, nodes: Sequence[Node], room: Room) -> None:
        self._ids = [node.node_id for node in nodes]
        self._racks = [node.place for node in nodes]
        self._on_rack: dict[Rack, list[int]] = {}
        for owner, rack in enumerate(self._racks):
            self._on_rack.setdefault(rack, []).append(owner)
        self._room = room

    def replicas(self, key: int, factor: int) -> list[int]:
        owners: list[int] = []
        use: dict[Rack, int] = {}
        least = 0
        for owner in self._room.walk(key, MAX_STEPS):
            rack = self._racks[owner]
            if owner not in owners and use.get(rack, 0) == least:
                self._take(owner, owners, use)
                if len(owners) == factor:
                    break
                least = self._least(use)
        while len(owners) < factor:
            self._take(self._roomiest(owners, use), owners, use)
        return [self._ids[owner] for owner in owners]

    def _take(self, owner: int, owners: list[int], use: dict[Rack, int]) -> None:
        owners.append(owner)
        use[self._racks[owner]] = use.get(self._racks[owner], 0) + 1
        self._room.take(owner)

    def _least(self, use: Mapping[Rack, int]) -> int:
        if len(use) < len(self._on_rack):
            return 0
        return min(count for rack, count in use.items() if count < len(self._on_rack[rack]))

    def _roomiest(self, owners: Sequence[int], use: Mapping[Rack, int]) -> int:
        """When the walk finds nobody: of the least used racks the node with most room, full or not."""
        least = self._least(use)
        free = (
            owner
            for rack, there in self._on_rack.items()
            if use.get(rack, 0) == least
            for owner in there
            if owner not in owners
        )
        return max(free, key=lambda owner: (self._room.left(owner), -owner))


def _choose_leaders(lists: list[list[int]], nodes: Mapping[int, Node], leads: Mapping[int, int]) -> None:
    """The replica that leads least of this topic, then least of all, comes first."""
    led = dict.fromkeys(nodes, 0)
    for replicas in lists:
        leader = min(
            replicas,
            key=lambda node_id: (led[node_id] / nodes[node_id].weight, leads.get(node_id, 0) / nodes[node_id].weight),
        )
        led[leader] += 1
        replicas.remove(leader)
        replicas.insert(0, leader)
