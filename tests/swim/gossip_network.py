"""Seeded histories of whole clusters: a network that loses, delays, doubles, cuts; nodes that crash, stop and return.

A history has three phases: the cluster forms; faults of every kind; all is healed, and within a bound everybody must
believe the truth. The oracles that watch all the time:
- no packet is longer than its budget;
- nobody holds an incarnation of a node that the node never used, and nobody believes itself to be suspect or dead;
- the living that a node's events have told of are the living that it holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from headrace.swim.machine import Swim
from headrace.swim.member import Address, Member, State
from headrace.swim.options import SwimOptions, suspicion_s
from headrace.swim.output import MemberDied, MemberJoined, MemberLeft, MemberSuspected

TICK_S = 0.1
OPTIONS = SwimOptions()


class Node:
    def __init__(self, node_id: int, clock_ms: int) -> None:
        self.node_id = node_id
        self.clock_ms = clock_ms  # how far its wall clock is off
        self.swim: Swim | None = None
        self.lives = 0
        self.highest_incarnation = 0
        self.told_living: set[int] = set()
        self.is_stopped = False
        self.queue: list[tuple[bytes, Address]] = []  # what arrives while it is stopped

    @property
    def is_up(self) -> bool:
        return self.swim is not None


class Network:
    def __init__(self, seed: int, size: int, options: SwimOptions = OPTIONS, trace: bool = False) -> None:
        self.dice = Random(seed)
        self.options = options
        self.trace = trace
        self.now_s = 0.0
        self.loss = 0.0
        self.doubling = 0.0
        self.slow = 0.0
        self.cuts: set[tuple[int, int]] = set()  # from, to
        self.at: dict[Address, Node] = {}
        self.nodes = [Node(number, self.dice.randrange(-300, 300)) for number in range(1, size + 1)]
        self.deaths: list[tuple[float, int, int]] = []  # when, who believes it, who is dead
        self.suspicions: list[tuple[float, int, int]] = []
        self.packets = self.bytes = self.largest = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    # Time

    def at_s(self, when_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when_s, self._order, action))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Whether `until` came true. It is looked at once in a simulated second."""
        end_s, look_s = self.now_s + seconds, self.now_s
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
            if until and self.now_s >= look_s + 1:
                look_s = self.now_s
                if until():
                    return True
        self.now_s = end_s
        return bool(until and until())

    def say(self, text: str) -> None:
        if self.trace:
            print(f"{self.now_s:8.2f} {text}")

    # Nodes

    def start(self, node: Node, seeds: list[Address], incarnation: int | None = None, moved: bool = False) -> None:
        node.lives += 1
        host = f"10.{node.lives if moved else 0}.0.{node.node_id}"
        if incarnation is None:
            incarnation = round(self.now_s * 1000) + 1
        me = Member(node.node_id, host, 7946, incarnation, meta=b"life %d" % node.lives)
        self.at = {address: other for address, other in self.at.items() if other is not node}
        self.at[me.address] = node
        node.highest_incarnation = max(node.highest_incarnation, incarnation)
        node.swim = Swim(me, self.options, Random(self.dice.random()), cluster_id="mill", secret=b"grain")
        node.told_living, node.queue, node.is_stopped = {node.node_id}, [], False
        node.swim.join(seeds)
        self.say(f"start {node.node_id} as {me}")
        life = node.lives
        self.at_s(self.now_s + self.dice.random() * TICK_S, lambda: self._tick(node, life))

    def crash(self, node: Node) -> None:
        self.say(f"crash {node.node_id}")
        node.swim = None
        node.lives += 1

    def stop(self, node: Node, seconds: float) -> None:
        self.say(f"stop {node.node_id} for {seconds:.1f}")
        node.is_stopped = True
        life = node.lives

        def wake() -> None:
            if node.lives == life and node.is_stopped:
                node.is_stopped = False
                queue, node.queue = node.queue, []
                for raw, source in queue:
                    self._receive(node, raw, source)

        self.at_s(self.now_s + seconds, wake)

    def _tick(self, node: Node, life: int) -> None:
        if node.lives != life or node.swim is None:
            return
        if not node.is_stopped:
            node.swim.tick(self.now_s, self.wall_ms(node))
            self._act(node, node.swim)
        self.at_s(self.now_s + TICK_S, lambda: self._tick(node, life))

    def wall_ms(self, node: Node) -> int:
        return 1_800_000_000_000 + round(self.now_s * 1000) + node.clock_ms

    # Packets

    def _act(self, node: Node, swim: Swim) -> None:
        node.highest_incarnation = max(node.highest_incarnation, swim.me.incarnation)
        output = swim.take()
        for host, port, raw in output.packets:
            self._transmit(node, swim.me.address, (host, port), raw)
        for event in output.events:
            self.say(f"node {node.node_id}: {event}")
            if isinstance(event, MemberJoined):
                node.told_living.add(event.member.node_id)
            elif isinstance(event, MemberDied | MemberLeft):
                node.told_living.discard(event.member.node_id)
            if isinstance(event, MemberDied):
                self.deaths.append((self.now_s, node.node_id, event.member.node_id))
            if isinstance(event, MemberSuspected):
                self.suspicions.append((self.now_s, node.node_id, event.member.node_id))
        if output.events or self.dice.random() < 0.05:
            self._check(node, swim)

    def _transmit(self, node: Node, source: Address, address: Address, raw: bytes) -> None:
        self.packets += 1
        self.bytes += len(raw)
        self.largest = max(self.largest, len(raw))
        assert len(raw) <= self.options.packet_bytes, "a packet is too long"
        target = self.at.get(address)
        if target is None or (node.node_id, target.node_id) in self.cuts:
            return
        for _ in range(2 if self.dice.random() < self.doubling else 1):
            if self.dice.random() >= self.loss:
                delay_s = 0.001 + self.dice.random() * (0.6 if self.dice.random() < self.slow else 0.02)
                self.at_s(self.now_s + delay_s, lambda: self._arrive(address, raw, source))

    def _arrive(self, address: Address, raw: bytes, source: Address) -> None:
        node = self.at.get(address)
        if node is None or node.swim is None:
            return
        if node.is_stopped:
            node.queue.append((raw, source))
            del node.queue[:-200]
        else:
            self._receive(node, raw, source)

    def _receive(self, node: Node, raw: bytes, source: Address) -> None:
        assert node.swim is not None
        node.swim.receive(raw, source, self.now_s, self.wall_ms(node))
        self._act(node, node.swim)

    # Oracles

    def _check(self, node: Node, swim: Swim) -> None:
        assert swim.members[node.node_id] == swim.me
        assert swim.me.state in (State.ALIVE, State.LEFT), "a node believes ill of itself"
        living = {member.node_id for member in swim.members.values() if member.is_living} | {node.node_id}
        assert living == node.told_living, f"node {node.node_id} holds {living} and has told of {node.told_living}"
        for member in swim.members.values():
            highest = self.nodes[member.node_id - 1].highest_incarnation
            assert member.incarnation <= highest, f"an incarnation of node {member.node_id} that never was"
        assert not any(swim.refused.values()), f"a packet was refused: {swim.refused}"

    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.swim is not None and node.swim.me.state is State.ALIVE]

    def has_converged(self) -> bool:
        """Everybody who is up holds the same records of the living, and these are who is up, as they are."""
        truth = {node.node_id: node.swim.me for node in self.up() if node.swim}
        for node in self.up():
            assert node.swim is not None
            living = {key: member for key, member in node.swim.members.items() if member.is_living}
            if living != truth:
                return False
        return True

    def views(self) -> str:
        return "\n".join(f"{node.node_id}: {sorted(node.told_living)}" for node in self.up())


def detection_bound_s(options: SwimOptions, size: int) -> float:
    """Everybody is probed within two rounds less one; then it is suspected; then it is news."""
    return (2 * size + 1) * options.probe_interval_s + suspicion_s(options, size) + 5.0


def form(network: Network) -> None:
    """All nodes start at about the same time, with a few seeds, of which one is wrong."""
    count = max(1, min(3, len(network.nodes) - 1))
    seeds = [(f"10.0.0.{number}", 7946) for number in range(1, count + 1)]
    network.dice.shuffle(seeds)
    for node in network.nodes:
        begin_s = network.now_s + network.dice.random() * 3
        network.at_s(begin_s, lambda node=node: network.start(node, [*seeds, ("10.9.9.9", 7946)]))
    network.run(3.1)


def disturb(network: Network) -> None:
    """One fault of some kind."""
    dice, nodes = network.dice, network.nodes
    node, seeds = dice.choice(nodes), [(f"10.0.0.{number}", 7946) for number in range(1, len(nodes) + 1)]
    kind = dice.randrange(8)
    if not node.is_up:
        fresh = dice.random() < 0.5  # or it has forgotten all incarnations
        network.start(node, dice.sample(seeds, min(4, len(seeds))), None if fresh else 0, moved=dice.random() < 0.5)
    elif kind <= 1:
        network.crash(node)
    elif kind == 2:
        network.stop(node, dice.choice([1.0, 5.0, 20.0]))
    elif kind == 3:
        others = [other.node_id for other in nodes if other is not node]
        for other in dice.sample(others, dice.randrange(1, len(others) + 1)):  # one way only
            network.cuts.add((node.node_id, other) if dice.random() < 0.5 else (other, node.node_id))
    elif kind == 4:
        side = {other.node_id for other in dice.sample(nodes, len(nodes) // 2)}
        network.say(f"cut off {sorted(side)}")
        everybody = range(1, len(nodes) + 1)
        network.cuts |= {(a, b) for a in everybody for b in everybody if (a in side) != (b in side)}
    elif kind == 5:
        network.cuts.clear()
    elif kind == 6:
        network.loss, network.doubling = dice.choice([(0.0, 0.0), (0.05, 0.05), (0.3, 0.1)])
        network.slow = dice.choice([0.0, 0.1, 0.4])
    elif kind == 7 and node.swim is not None and not node.is_stopped and dice.random() < 0.5:
        network.say(f"leave {node.node_id}")
        node.swim.leave()
        life = node.lives
        network.at_s(network.now_s + 2.0, lambda: network.crash(node) if node.lives == life else None)


def heal(network: Network) -> None:
    network.say("heal")
    network.cuts.clear()
    network.loss = network.doubling = network.slow = 0.0
    for node in network.nodes:
        if node.is_stopped:
            node.is_stopped = False  # the queue of its kernel is gone
            node.queue = []
    for node in network.up():
        if node.swim is not None and node.swim.is_joining:  # all its seeds have moved: somebody gives it others
            node.swim.join([other.swim.me.address for other in network.up() if other.swim])


def simulate(seed: int, trace: bool = False) -> Network:
    dice = Random(seed)
    size = 30 if seed % 16 == 5 else dice.choice([3, 3, 4, 5, 5, 7, 9, 12, 16])
    network = Network(seed, size, trace=trace)
    network.loss = dice.choice([0.0, 0.05, 0.2])
    form(network)
    network.run(30)
    for _ in range(dice.randrange(4, 12)):
        disturb(network)
        network.run(dice.choice([0.5, 3.0, 10.0, 20.0]))
    heal(network)
    bound_s = detection_bound_s(OPTIONS, size) + 2 * OPTIONS.sync_interval_s + 3 * OPTIONS.rejoin_interval_s
    assert network.run(bound_s, until=network.has_converged), f"no agreement:\n{network.views()}"
    network.run(15)  # and it stays so: nobody is accused without need
    assert network.has_converged(), f"agreement was lost:\n{network.views()}"
    return network
