"""The circle of consistent hashing: every node stands on it many times, every key at one point.

Rules:
- Points come from BLAKE2b over names and numbers: the same in every process, on every machine, for ever.
- A node's points depend on its id and weight alone. A node that joins or leaves takes or gives only what borders on it.
- `Room` walks the circle past nodes that are full in (nearly) constant time, however many are: so the bound on a node's
  load can be tight, where the usual recipe leaves a quarter of room to keep its walks short.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

POINTS_PER_NODE: Final = 64  # of weight 1
MAX_POINTS_PER_NODE: Final = 1024
_POINTS_PER_HASH: Final = 8  # a digest of 64 bytes, cut into eight


def point(name: str, number: int) -> int:
    """Where a key stands."""
    return int.from_bytes(blake2b(f"{number}:{name}".encode(), digest_size=8).digest(), "big")


class Circle:
    """`owners[place]` is the position, in the list of nodes, of the node that stands at `points[place]`."""

    __slots__ = ("owners", "points")

    def __init__(self, nodes: Sequence[tuple[int, float]]) -> None:
        standing = sorted(
            (where, owner) for owner, (node_id, weight) in enumerate(nodes) for where in _stands(node_id, weight)
        )
        self.points = [where for where, _ in standing]
        self.owners = [owner for _, owner in standing]


@lru_cache(maxsize=4)
def circle(nodes: tuple[tuple[int, float], ...]) -> Circle:
    """The circle of (node id, weight) pairs; the last ones are remembered, since topics come one by one."""
    return Circle(nodes)


class Room:
    """A circle of nodes of which some are full."""

    __slots__ = ("_circle", "_left", "_open", "_skips")

    def __init__(self, around: Circle, capacities: Sequence[int]) -> None:
        self._circle = around
        self._left = list(capacities)
        self._open = sum(left > 0 for left in self._left)
        self._skips: dict[int, int] = {}  # a forest: from each place that was found full towards the next that is not

    def walk(self, key: int, max_steps: int) -> Iterator[int]:
        """The owners with room, clockwise from `key`; one may come several times."""
        points, owners, skips, left = self._circle.points, self._circle.owners, self._skips, self._left
        place = bisect_left(points, key) % len(points)
        steps = 0
        while steps < max_steps and self._open:
            while place in skips:
                after = skips[place]
                if after in skips:
                    skips[place] = skips[after]  # halves the path for whoever comes next
                place = after
            after = (place + 1) % len(points)
            if left[owners[place]] > 0:
                steps += 1
                yield owners[place]
            else:
                skips[place] = after
            place = after

    def take(self, owner: int) -> None:
        """One more replica for `owner`, who may be full already."""
        self._left[owner] -= 1
        self._open -= self._left[owner] == 0

    def left(self, owner: int) -> int:
        """Below 0 if `owner` took more than there was room for."""
        return self._left[owner]


def _stands(node_id: int, weight: float) -> Iterator[int]:
    count = min(max(round(POINTS_PER_NODE * weight), 1), MAX_POINTS_PER_NODE)
    for part in range(0, count, _POINTS_PER_HASH):
        digest = blake2b(f"{node_id}/{part}".encode(), digest_size=8 * _POINTS_PER_HASH).digest()
        for eighth in range(min(_POINTS_PER_HASH, count - part)):
            yield int.from_bytes(digest[8 * eighth : 8 * eighth + 8], "big")
