"""`python -m bench.swim_scale`: a thousand gossip machines in one process, under simulated time.

The machines are the real ones, sealed packets included; only the network (1 to 20 ms, loss) and time are simulated.
So times are seconds of the cluster, not of this machine; bytes are those of the packets, without UDP's 28 for each.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import time
from collections.abc import Callable
from random import Random
from statistics import median

from headrace.swim.belief import Way
from headrace.swim.machine import Swim
from headrace.swim.member import Address, Member
from headrace.swim.options import LAN, LOCAL, SwimOptions, suspicion_s
from headrace.swim.output import MemberDied, MemberJoined, MemberSuspected

WALL_MS = 1_800_000_000_000


class Cluster:
    def __init__(self, size: int, options: SwimOptions, seed: int) -> None:
        self.dice = Random(seed)
        self.options = options
        self.tick_s = options.probe_timeout_s / 2
        self.now_s = 0.0
        self.loss = 0.0
        self.packets = self.bytes = 0
        self.events: list[tuple[float, int, object]] = []
        self.machines: dict[Address, Swim] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        members = [Member(number, f"10.0.{number >> 8}.{number & 255}", 7946, WALL_MS) for number in range(size)]
        for me in members:
            machine = self.add(me)
            for other in members:  # as if they had joined an hour ago
                if other is not me:
                    machine._belief.hear(other, Way.JOIN)
            machine.take()

    def add(self, me: Member) -> Swim:
        machine = Swim(me, self.options, Random(self.dice.random()), cluster_id="bench", secret=b"bench")
        self.machines[me.address] = machine
        self._at(self.now_s + self.dice.random() * self.tick_s, self._tick, me.address, machine)
        return machine

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._heap[0][0] <= end_s:
            self.now_s, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)
        self.now_s = end_s

    def _at(self, when_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when_s, self._order, action, arguments))

    def _tick(self, address: Address, machine: Swim) -> None:
        if self.machines.get(address) is machine:
            machine.tick(self.now_s, WALL_MS + int(self.now_s * 1000))
            self._act(address, machine)
            self._at(self.now_s + self.tick_s, self._tick, address, machine)

    def _arrive(self, target: Address, raw: bytes, source: Address) -> None:
        machine = self.machines.get(target)
        if machine is not None:
            machine.receive(raw, source, self.now_s, WALL_MS + int(self.now_s * 1000))
            self._act(target, machine)

    def _act(self, address: Address, machine: Swim) -> None:
        output = machine.take()
        for host, port, raw in output.packets:
            self.packets += 1
            self.bytes += len(raw)
            if self.dice.random() >= self.loss:
                self._at(self.now_s + 0.001 + 0.019 * self.dice.random(), self._arrive, (host, port), raw, address)
        for event in output.events:
            self.events.append((self.now_s, machine.me.node_id, event))


class Traffic:
    """What every node sends, on average, while something lasts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._begin = (cluster.now_s, cluster.packets, cluster.bytes)

    def per_node(self) -> dict[str, float]:
        cluster, (begin_s, packets, size) = self._cluster, self._begin
        node_seconds = (cluster.now_s - begin_s) * len(cluster.machines)
        return {
            "packets_per_s": round((cluster.packets - packets) / node_seconds, 2),
            "bytes_per_s": round((cluster.bytes - size) / node_seconds),
        }


def quiet(cluster: Cluster) -> dict[str, object]:
    traffic = Traffic(cluster)
    cluster.run(20)
    return {"for_s": 20, **traffic.per_node()}


def deaths(cluster: Cluster, count: int) -> dict[str, object]:
    """Some nodes vanish at once; when is each of them known to be dead?"""
    victims = cluster.dice.sample(sorted(cluster.machines), count)
    ids = {cluster.machines.pop(address).me.node_id for address in victims}
    begin_s, first = cluster.now_s, len(cluster.events)
    traffic = Traffic(cluster)
    cluster.run(15 + suspicion_s(cluster.options, len(cluster.machines)))
    told = [
        (when_s - begin_s, event.member.node_id)
        for when_s, _, event in cluster.events[first:]
        if isinstance(event, MemberDied) and event.member.node_id in ids
    ]
    suspected = {
        event.member.node_id: when_s - begin_s
        for when_s, _, event in reversed(cluster.events[first:])
        if isinstance(event, MemberSuspected) and event.member.node_id in ids
    }
    return {
        "nodes": count,
        "reports_missing": count * len(cluster.machines) - len(told),
        "first_suspicion_s": round(median(suspected.values()), 1),
        "first_report_s": round(median(min(s for s, node in told if node == victim) for victim in ids), 1),
        "half_of_the_reports_s": round(median(s for s, _ in told), 1),
        "last_report_s": round(max(s for s, _ in told), 1),
        **traffic.per_node(),
    }


def arrival(cluster: Cluster) -> dict[str, object]:
    """One node joins by one seed; when does everybody know it, and when does it know everybody?"""
    size, begin_s, first = len(cluster.machines), cluster.now_s, len(cluster.events)
    me = Member(50_000, "10.9.0.1", 7946, WALL_MS)
    seed = next(iter(cluster.machines))
    newcomer = cluster.add(me)
    newcomer.join([seed])
    while newcomer.is_joining:
        cluster.run(0.1)
    joined_s = cluster.now_s - begin_s
    cluster.run(10)
    told = [
        when_s - begin_s
        for when_s, _, event in cluster.events[first:]
        if isinstance(event, MemberJoined) and event.member.node_id == me.node_id
    ]
    return {
        "it_knows_all_s": round(joined_s, 1),
        "half_know_it_s": round(median(told), 1),
        "all_know_it_s": round(max(told), 1) if len(told) == size else math.inf,
    }


def loss(cluster: Cluster, share: float, seconds: float) -> dict[str, object]:
    """Packets are lost and nobody dies: every suspicion is wrong, and every death is."""
    cluster.loss = share
    traffic, first = Traffic(cluster), len(cluster.events)
    cluster.run(seconds)
    rates, end = traffic.per_node(), len(cluster.events)
    cluster.run(suspicion_s(cluster.options, len(cluster.machines)) + 2)  # as lossy: the last suspicions come to an end
    wrong = {event.member for _, _, event in cluster.events[first:end] if isinstance(event, MemberSuspected)}
    dead = {event.member for _, _, event in cluster.events[first:] if isinstance(event, MemberDied)}
    cluster.loss = 0.0
    return {
        "share": share,
        "for_s": seconds,
        "probes": round(seconds / cluster.options.probe_interval_s) * len(cluster.machines),
        "wrong_suspicions": len(wrong),
        "wrong_deaths": len(dead),
        **rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--deaths", type=int, default=5)
    parser.add_argument("--loss", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=30.0, help="of lost packets")
    parser.add_argument("--local", action="store_true", help="the options for few nodes that are close to each other")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    begin_s = time.monotonic()
    options = LOCAL if chosen.local else LAN
    cluster = Cluster(chosen.nodes, options, chosen.seed)
    result: dict[str, object] = {"nodes": chosen.nodes, "suspicion_s": round(suspicion_s(options, chosen.nodes), 1)}
    result["quiet"] = quiet(cluster)
    result["deaths"] = deaths(cluster, chosen.deaths)
    result["arrival"] = arrival(cluster)
    result["loss"] = loss(cluster, chosen.loss, chosen.seconds)
    result["simulated_s"] = round(cluster.now_s)
    result["took_s"] = round(time.monotonic() - begin_s, 1)
    result["cpu_s"] = round(time.process_time(), 1)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
