"""Who holds which replica, and what may move where.

Rules:
- A partition has at most one replica on a node. Its replicas stand on as many racks as there are: a replica goes to a
  rack that the others use least, and never to one that they use more than the rack it leaves.
- A replica moves for balance only if its old holder, without it, still holds at least as much for its weight as the new
  one with it. So every move evens out, and nothing moves there and back. What has moved already moves on first, since
  that copies nothing more.
- A replica keeps its place in its partition's list, leader's place or follower's, on whatever node it is.
- Everything is in the order of ids and numbers: the same input gives the same answer everywhere.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from headrace.ring.circle import point
from headrace.ring.node import Node, Rack


class Ledger:
    """`lists` are changed in place; they name only nodes of `nodes`, except for places that `replace` mends."""

    def __init__(self, nodes: Sequence[Node], lists: list[list[int]], topics: Sequence[str]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._racks: dict[int, Rack] = {node.node_id: node.place for node in nodes}
        self._sizes: dict[Rack, int] = {}
        for rack in self._racks.values():
            self._sizes[rack] = self._sizes.get(rack, 0) + 1
        self._lists = lists
        self._topics = topics
        self._origins = [tuple(replicas) for replicas in lists]
        self._held: dict[int, dict[int, None]] = {node_id: {} for node_id in self._nodes}
        self._leads = dict.fromkeys(self._nodes, 0)
        for number, replicas in enumerate(lists):
            for position, node_id in enumerate(replicas):
                if node_id in self._held:
                    self._held[node_id][number] = None
                    self._leads[node_id] += position == 0
        self._ties = {node_id: point("node", node_id) for node_id in self._nodes}
        self._ranks = sorted(self._rank(node_id) for node_id in self._nodes)  # the one with most room first

    @property
    def nodes(self) -> Mapping[int, Node]:
        return self._nodes

    def load(self, node_id: int) -> int:
        return len(self._held[node_id])

    # The three steps of a plan

    def replace(self) -> None:
        """Every replica on a node that is not of us goes to one that is; without any left to take it, it is dropped."""
        lost = [
            (position, number)
            for number, replicas in enumerate(self._lists)
            for position, node_id in enumerate(replicas)
            if node_id not in self._nodes
        ]
        for position, number in sorted(lost):  # leaders first: each of them goes to another node
            found = self._lightest(number, position)
            if found is not None:
                self._move(number, position, found)
        for number in {number for _, number in lost}:
            self._lists[number][:] = [node_id for node_id in self._lists[number] if node_id in self._nodes]

    def respread(self) -> None:
        """Replicas that share a rack go apart where there is another rack for them, followers before leaders."""
        for number, replicas in enumerate(self._lists):
            racks = {self._racks[node_id] for node_id in replicas}
            if len(racks) == len(replicas):
                continue
            for position in range(len(replicas) - 1, -1, -1):
                use = self._use(number, position)
                if self._least(use) < use.get(self._racks[replicas[position]], 0):
                    found = self._lightest(number, position)
                    if found is not None:
                        self._move(number, position, found)

    def balance(self, slack: float = 0.0) -> None:
        """From the nodes that hold most for their weight to those that hold least, while that evens out.

        Only if one of the two is further from its share than `slack`, as a part of it.
        """
        held = sum(len(numbers) for numbers in self._held.values())
        share = held / sum(node.weight for node in self._nodes.values())
        while self._even_out(share, slack):
            pass

    # How

    def _even_out(self, share: float, slack: float) -> bool:
        """Whether anything moved. `share`: what is fair for each unit of weight."""
        moved = False
        queues = _Queues(self._held, self._lists, self._origins, self._topics)
        barren: set[tuple[int, Rack]] = set()  # (donor, rack): nothing of the donor's may go there
        for _, _, receiver in list(self._ranks):
            if self.load(receiver) < share * (1 - slack) * self._nodes[receiver].weight:
                moved |= self._fill(receiver, share, 0.0, queues, barren)
            moved |= self._fill(receiver, math.inf, share * (1 + slack), queues, barren)
        return moved

    def _fill(self, receiver: int, up_to: float, above: float, queues: _Queues, barren: set[tuple[int, Rack]]) -> bool:
        """Replicas for `receiver`, until it holds `up_to`, from those that hold most and more than `above`, by weight.

        Who has nothing for it, or too little, is not asked again.
        """
        rack, weight = self._racks[receiver], self._nodes[receiver].weight
        least = max((self.load(receiver) + 1) / weight, above)
        if self._ranks[-1][0] <= least:
            return False
        donors = [(-ratio, tie, donor) for ratio, tie, donor in self._ranks if ratio > least]
        heapq.heapify(donors)
        cursors: dict[tuple[int, bool], int] = {}
        moved = False
        while donors and self.load(receiver) < up_to * weight:
            ratio, tie, donor = donors[0]
            spare = (self.load(donor) - 1) / self._nodes[donor].weight
            found = None
            gives = -ratio > above and spare >= (self.load(receiver) + 1) / weight
            if gives and (donor, rack) not in barren:
                found = self._pick(donor, receiver, queues, cursors)
                if found is None and not self._may_give(donor, rack):
                    barren.add((donor, rack))
            if found is None:
                heapq.heappop(donors)
                continue
            self._move(found, self._lists[found].index(donor), receiver)
            heapq.heapreplace(donors, (-spare, tie, donor))
            moved = True
        return moved

    def _may_give(self, donor: int, rack: Rack) -> bool:
        return any(self._rack_allows(number, self._lists[number].index(donor), rack) for number in self._held[donor])

    def _pick(self, donor: int, receiver: int, queues: _Queues, cursors: dict[tuple[int, bool], int]) -> int | None:
        """The next of the donor's replicas that the receiver may take: a leading one, if that evens out the leaders."""
        rack = self._racks[receiver]
        leads = (self._leads[donor] - 1) / self._nodes[donor].weight
        lead = (self._leads[receiver] + 1) / self._nodes[receiver].weight <= leads
        for leading in (lead, not lead):
            queue = queues.of(donor, leading)
            for at in range(cursors.get((donor, leading), 0), len(queue)):
                number = queue[at]
                replicas = self._lists[number]
                is_there = donor in replicas and receiver not in replicas  # the queue may be older than a move
                if is_there and self._rack_allows(number, replicas.index(donor), rack):
                    cursors[donor, leading] = at + 1
                    return number
            cursors[donor, leading] = len(queue)
        return None

    def _rack_allows(self, number: int, position: int, rack: Rack) -> bool:
        own = self._racks[self._lists[number][position]]
        if own == rack:
            return True
        use = self._use(number, position)
        return use.get(rack, 0) <= use.get(own, 0)

    def _use(self, number: int, position: int) -> dict[Rack, int]:
        """How many of the partition's other replicas stand on each rack."""
        use: dict[Rack, int] = {}
        for at, node_id in enumerate(self._lists[number]):
            rack = self._racks.get(node_id)
            if at != position and rack is not None:
                use[rack] = use.get(rack, 0) + 1
        return use

    def _least(self, use: Mapping[Rack, int]) -> int:
        """How much the least used rack with a free node is used."""
        if len(use) < len(self._sizes):
            return 0
        return min((count for rack, count in use.items() if count < self._sizes[rack]), default=0)

    def _lightest(self, number: int, position: int) -> int | None:
        replicas = self._lists[number]
        use = self._use(number, position)
        least = self._least(use)
        for _, _, node_id in self._ranks:
            if node_id not in replicas and use.get(self._racks[node_id], 0) == least:
                return node_id
        return None

    def _move(self, number: int, position: int, to: int) -> None:
        node_id = self._lists[number][position]
        if node_id in self._nodes:
            self._leave_rank(node_id)
            del self._held[node_id][number]
            self._leads[node_id] -= position == 0
            insort(self._ranks, self._rank(node_id))
        self._leave_rank(to)
        self._held[to][number] = None
        self._leads[to] += position == 0
        insort(self._ranks, self._rank(to))
        self._lists[number][position] = to

    def _leave_rank(self, node_id: int) -> None:
        del self._ranks[bisect_left(self._ranks, self._rank(node_id))]

    def _rank(self, node_id: int) -> tuple[float, int, int]:
        return len(self._held[node_id]) / self._nodes[node_id].weight, self._ties[node_id], node_id


class _Queues:
    """The order in which a node gives replicas away: what it just got, then from topics that it holds most of."""

    def __init__(
        self,
        held: Mapping[int, Mapping[int, None]],
        lists: Sequence[Sequence[int]],
        origins: Sequence[Sequence[int]],
        topics: Sequence[str],
    ) -> None:
        self._held = held
        self._lists = lists
        self._origins = origins
        self._topics = topics
        self._queues: dict[int, tuple[list[int], list[int]]] = {}

    def of(self, node_id: int, leads: bool) -> list[int]:
        found = self._queues.get(node_id)
        if found is None:
            found = self._queues[node_id] = (self._queue(node_id, False), self._queue(node_id, True))
        return found[leads]

    def _queue(self, node_id: int, leads: bool) -> list[int]:
        counts: dict[str, int] = {}
        places: list[tuple[bool, int, int]] = []
        for number in sorted(self._held[node_id]):
            if (self._lists[number][0] == node_id) == leads:
                topic = self._topics[number]
                counts[topic] = counts.get(topic, 0) + 1
                places.append((node_id in self._origins[number], -counts[topic], number))
        return [number for _, _, number in sorted(places)]
