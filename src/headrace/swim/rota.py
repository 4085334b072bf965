"""Whose turn it is to be probed, and who is picked by chance: all living nodes but this one.

Rules:
- Everybody is probed once in a round, in an order that is shuffled anew for each round. So nobody waits for its probe
  longer than two rounds less one.
- A new node gets a place by chance, so that those who learn of it at the same time do not all probe it at the same
  time.
"""

from __future__ import annotations

from collections.abc import Container

from headrace.swim.options import Dice


class Rota:
    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._nodes: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node_id: int) -> None:
        place = self._dice.randrange(len(self._nodes) + 1)
        self._nodes.insert(place, node_id)
        if place < self._next:
            self._next += 1

    def remove(self, node_id: int) -> None:
        place = self._nodes.index(node_id)
        del self._nodes[place]
        if place < self._next:
            self._next -= 1

    def turn(self) -> int | None:
        """The next to be probed."""
        if not self._nodes:
            return None
        if self._next >= len(self._nodes):
            self._shuffle()
            self._next = 0
        self._next += 1
        return self._nodes[self._next - 1]

    def pick(self, count: int, without: Container[int] = ()) -> list[int]:
        """Some others by chance, each at most once."""
        nodes = self._nodes
        if len(nodes) <= 2 * count + 2:  # too few to try one's luck
            rest = [node for node in nodes if node not in without]
            while len(rest) > count:
                rest.pop(self._dice.randrange(len(rest)))
            return rest
        picked: list[int] = []
        for _ in range(4 * count):
            node = nodes[self._dice.randrange(len(nodes))]
            if node not in picked and node not in without:
                picked.append(node)
                if len(picked) == count:
                    break
        return picked

    def _shuffle(self) -> None:
        nodes = self._nodes
        for last in range(len(nodes) - 1, 0, -1):
            other = self._dice.randrange(last + 1)
            nodes[last], nodes[other] = nodes[other], nodes[last]
