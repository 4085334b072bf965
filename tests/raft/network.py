"""A seeded cluster in memory: servers, disks and a network on which everything goes wrong, in virtual time.

First a safety phase: messages are late, lost, doubled and overtaken; links are cut, both ways or one way; servers crash
and lose what was not saved (or keep a part of the save that was on its way), pause, start again, join, are promoted and
removed; leadership is handed over; logs are compacted. Then a liveness phase: all is healed, and the cluster must make
progress. The same seed is the same history.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

from oracles import Oracles, Violation

from headrace.core.errors import CorruptionError
from headrace.raft.encoding import decode, encode
from headrace.raft.machine import Raft
from headrace.raft.membership import Change, ChangeKind, founding
from headrace.raft.memory import MemoryStorage
from headrace.raft.messages import AppendEntries, Message
from headrace.raft.options import RaftOptions
from headrace.raft.ready import Ready, RoleName, Save

TICK = 10
OPTIONS = RaftOptions(
    election_ticks=6, heartbeat_ticks=2, snapshot_ticks=20, max_inflight=4, max_apply_bytes=300,
    max_uncommitted_bytes=2000, max_unsaved_bytes=1000, promote_lag=5,
)  # fmt: skip
SPARES = 2


class Server:
    """One node and its disk. The disk survives a crash; the rest does not."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self.simulation = simulation
        self.node_id = node_id
        self.storage = MemoryStorage()
        self.disk_delay = simulation.dice.choice([0, 0, 3, 30, 100])
        self.tick_length = simulation.dice.choice([7, 10, 10, 14])
        self.life = 0
        self.paused_until = 0
        self.raft: Raft | None = None

    def start(self) -> None:
        assert self.raft is None
        dice = self.simulation.dice
        self.life += 1
        self.raft = Raft(self.node_id, self.storage, self.simulation.options, Random(dice.randrange(2**32)))
        self.state = self.storage.snapshot().payload
        self.saving: deque[Ready] = deque()
        self.reads: dict[int, int] = {}
        self.simulation.oracles.restored(self.node_id, self.storage.snapshot().index, self.state)
        self.simulation.after(dice.randrange(TICK), self.on_tick, self.life)

    def crash(self) -> None:
        """Power is lost: of the save that was on its way, a part may have been kept."""
        if self.raft is None:
            return
        if self.saving:
            self.storage.save(torn(self.saving[0].save, self.simulation.dice))
        self.raft = None

    def on_tick(self, life: int) -> None:
        if self.raft is None or life != self.life:
            return
        if self.paused_until <= self.simulation.now:
            self.raft.tick()
            self.pump()
        self.simulation.after(self.tick_length, self.on_tick, life)

    def deliver(self, raw: bytes) -> None:
        if self.raft is None:
            return
        if self.paused_until > self.simulation.now:
            awake = self.paused_until - self.simulation.now
            self.simulation.after(awake + self.simulation.dice.randrange(3 * TICK), self.deliver, raw)
            return
        message = decode(raw)
        if self.simulation.trace:
            self.simulation.note(f"{message}")
        self.raft.step(message)
        self.pump()

    def pump(self) -> None:
        """What a driver does with a Ready, except that saving takes time."""
        assert self.raft is not None
        simulation, oracles = self.simulation, self.simulation.oracles
        while ready := self.raft.ready():
            if ready.standing:
                simulation.note(f"node {self.node_id}: {ready.standing}")
                oracles.standing(self.raft, ready.standing)
                if ready.standing.role is RoleName.LEADER and simulation.crashes_leaders:
                    simulation.after(simulation.dice.randrange(5, 80), simulation.crash, self)
            oracles.saving(self.raft, ready.save.entries)
            for message in ready.send:
                simulation.transmit(message)
            if simulation.acknowledges_before_saving:
                for message in ready.send_after_save:
                    simulation.transmit(message)
            for entry in ready.commit:
                self.state = oracles.applied(self.node_id, self.raft.standing.term, self.state, entry)
            for read in ready.reads:
                oracles.served(self.node_id, read.index, self.reads.pop(read.number))
                simulation.reads_served += 1
            for number in ready.lost_reads:
                self.reads.pop(number)
            self.saving.append(ready)
            if len(self.saving) == 1:
                self.save_next()

    def save_next(self) -> None:
        ready = self.saving[0]
        if ready.save:
            self.simulation.after(self.simulation.dice.randrange(self.disk_delay + 1), self.on_saved, self.life)
        else:
            self.on_saved(self.life)

    def on_saved(self, life: int) -> None:
        if self.raft is None or life != self.life:
            return
        ready = self.saving[0]
        self.storage.save(ready.save)
        if ready.save.snapshot is not None:
            self.state = ready.save.snapshot.payload
            self.simulation.snapshots_installed += 1
            self.simulation.oracles.restored(self.node_id, ready.save.snapshot.index, self.state)
        if not self.simulation.acknowledges_before_saving:
            for message in ready.send_after_save:
                self.simulation.transmit(message)
        self.raft.advance(ready)
        self.saving.popleft()
        if self.saving:
            self.save_next()
        self.pump()

    def compact(self) -> None:
        assert self.raft is not None
        snapshot = self.raft.snapshot_at(self.raft.applied_index, self.state)
        if snapshot is not None and snapshot.index > 0:
            self.storage.compact(snapshot, keep=self.simulation.dice.randrange(6))

    def read(self) -> None:
        if self.raft is None or self.paused_until > self.simulation.now:
            return
        number = self.simulation.next_number()
        self.reads[number] = self.simulation.oracles.committed_index
        if self.raft.read(number) is not None:
            del self.reads[number]
        self.pump()

    @property
    def leads(self) -> bool:
        return self.raft is not None and self.raft.standing.role is RoleName.LEADER


def torn(save: Save, dice: Random) -> Save:
    """A part of a save, in the order in which it is written."""
    parts = dice.randrange(4)
    return Save(
        hard_state=save.hard_state if parts > 0 else None,
        snapshot=save.snapshot if parts > 1 else None,
        entries=save.entries[: dice.randrange(len(save.entries) + 1)]
        if parts > 2 or (parts == 2 and save.snapshot is None)
        else (),
    )


class Event(NamedTuple):
    time: int
    order: int
    act: Callable[..., None]
    arguments: tuple[object, ...]


class Simulation:
    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.dice = dice = Random(seed)
        self.trace = trace
        self.now = 0
        self.oracles = Oracles()
        self.events: list[Event] = []
        self.order = 0
        self.numbers = 0
        self.reads_served = 0
        self.snapshots_installed = 0
        self.cuts: set[tuple[int, int]] = set()
        self.acknowledges_before_saving = False
        self.loss = dice.choice([0.0, 0.0, 0.05, 0.2])
        self.duplication = dice.choice([0.0, 0.05, 0.2])
        self.slowness = dice.choice([2, 5, 15])
        self.has_stragglers = dice.random() < 0.7
        self.options = replace(OPTIONS, max_append_bytes=dice.choice([1, 150, 1000]))
        self.crashes_leaders = False
        self.haste = dice.choice([(5, 20, 60, 150), (30, 100, 300)])  # time between faults
        founders = dice.choice([1, 2, 3, 3, 3, 4, 5, 5])
        self.servers = {node: Server(self, node) for node in range(1, founders + SPARES + 1)}
        for node in range(1, founders + 1):
            self.servers[node].storage.save(founding(range(1, founders + 1)))
        if seed % 5 == 0:
            self.churn()
        for server in self.servers.values():
            server.start()

    def churn(self) -> None:
        """No leader lives long, and few of its entries arrive: many terms, many logs that differ (Figures 7 and 8)."""
        self.crashes_leaders = True
        self.slowness = 10
        self.options = replace(OPTIONS, max_append_bytes=1)
        for server in self.servers.values():
            server.disk_delay = 0

    # Time

    def after(self, delay: int, act: Callable[..., None], *arguments: object) -> None:
        self.order += 1
        heapq.heappush(self.events, Event(self.now + delay, self.order, act, arguments))

    def run(self, until: int, done: Callable[[], bool] | None = None) -> None:
        while self.events and self.events[0].time <= until:
            if done is not None and self.events[0].time // TICK != self.now // TICK and done():
                return
            event = heapq.heappop(self.events)
            self.now = event.time
            event.act(*event.arguments)
        self.now = max(self.now, until)

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def note(self, line: str) -> None:
        if self.trace:
            print(f"{self.now:6} {line}")

    # The network and the disks

    def transmit(self, message: Message) -> None:
        loss = 0.5 if self.crashes_leaders and isinstance(message, AppendEntries) else self.loss
        if (message.sender, message.to) in self.cuts or self.dice.random() < loss:
            return
        raw = encode(message)
        for _ in range(2 if self.dice.random() < self.duplication else 1):
            delay = 1 + self.dice.randrange(self.slowness)
            if self.has_stragglers and self.dice.random() < 0.02:
                delay += self.dice.randrange(200)  # a straggler from another time
            target = self.servers.get(message.to)
            if target is not None:
                self.after(delay, target.deliver, raw)

    # What is done to the cluster

    def propose(self) -> None:
        up = [server for server in self.servers.values() if server.raft is not None and server.paused_until <= self.now]
        leaders = [server for server in up if server.leads] or up
        if leaders:
            server = self.dice.choice(leaders)
            assert server.raft is not None
            payloads = [b"command %d" % self.next_number() for _ in range(self.dice.choice([1, 1, 1, 4]))]
            server.raft.propose(payloads)
            server.pump()

    def crash(self, server: Server | None = None) -> None:
        server = server or self.someone()
        server.crash()
        self.note(f"node {server.node_id}: crash")
        self.after(self.dice.choice([1, 30, 100, 600]), self.restart, server)

    def restart(self, server: Server) -> None:
        if server.raft is None:
            self.note(f"node {server.node_id}: restart")
            server.start()

    def cut(self) -> None:
        nodes = list(self.servers)
        kind = self.dice.randrange(3)
        if kind == 0:
            alone = self.someone().node_id
            pairs = [(alone, node) for node in nodes] + [(node, alone) for node in nodes]
        elif kind == 1:
            side = set(self.dice.sample(nodes, len(nodes) // 2))
            pairs = [(a, b) for a in nodes for b in nodes if (a in side) != (b in side)]
        else:
            deaf = self.someone().node_id
            pairs = [(node, deaf) for node in nodes] if self.dice.random() < 0.5 else [(deaf, node) for node in nodes]
        self.note(f"cut {pairs}")
        self.cuts.update(pairs)
        self.after(self.dice.choice([30, 150, 300]), self.heal)

    def heal(self) -> None:
        self.cuts.clear()

    def pause(self) -> None:
        server = self.someone()
        duration = self.dice.choice([20, 200, 400])
        server.paused_until = self.now + duration
        self.after(duration, server.read)  # somebody has waited

    def compact(self) -> None:
        for server in self.servers.values():
            if server.raft is not None and self.dice.random() < 0.5:
                server.compact()

    def change(self) -> None:
        for server in self.servers.values():
            if server.raft is not None and server.leads:
                members = server.raft.membership
                outsiders = [node for node in self.servers if node not in members.members]
                kind = self.dice.choice(list(ChangeKind))
                nodes = {
                    ChangeKind.ADD_LEARNER: outsiders,
                    ChangeKind.PROMOTE: members.learners,
                    ChangeKind.REMOVE: members.members if len(members.voters) > 1 else (),
                }[kind]
                if nodes:
                    outcome = server.raft.change(Change(kind, self.dice.choice(nodes)))
                    self.note(f"node {server.node_id}: {kind}: {outcome}")
                    server.pump()

    def transfer(self) -> None:
        for server in self.servers.values():
            if server.raft is not None and server.leads:
                server.raft.transfer(self.dice.choice(list(self.servers)))
                server.pump()

    def read(self) -> None:
        self.someone().read()

    def someone(self) -> Server:
        """A leader, more often than not; there may be one that does not know that its time is over."""
        leaders = [server for server in self.servers.values() if server.leads]
        if leaders and self.dice.random() < 0.6:
            return self.dice.choice(leaders)
        return self.dice.choice(list(self.servers.values()))

    # The phases

    def safety_phase(self, ticks: int) -> None:
        faults = [self.crash, self.crash, self.cut, self.cut, self.pause, self.transfer]
        works = [self.propose] * 6 + [self.read] * 3 + [self.compact, self.change]
        end = ticks * TICK
        next_fault = 250
        while self.now < end:
            self.run(self.now + self.dice.choice([1, 5, 10, 30]))
            self.dice.choice(works)()
            if self.now >= next_fault:
                self.dice.choice(faults)()
                next_fault = self.now + self.dice.choice(self.haste)

    def liveness_phase(self, ticks: int) -> None:
        """Healed, the members agree on one leader, commit what is proposed, catch up, and serve reads."""
        self.cuts.clear()
        self.has_stragglers = self.crashes_leaders = False
        self.loss = self.duplication = 0.0
        self.slowness = 5
        for server in self.servers.values():
            server.paused_until = 0
            server.disk_delay = min(server.disk_delay, 3)
            self.restart(server)
        before, until = self.oracles.committed_index, self.now + ticks * TICK
        self.run(until, lambda: self.leader() is not None)
        self.run(self.now + 300)
        while self.now < until and not self.agrees(before):
            self.propose()
            self.run(self.now + 10 * TICK, lambda: self.agrees(before))
        if not self.agrees(before):
            raise Violation("after healing, the members do not come to an agreement")
        self.read_everywhere()

    def read_everywhere(self) -> None:
        leader = self.leader()
        assert leader is not None and leader.raft is not None
        served = self.reads_served
        members = leader.raft.membership.members
        for node in members:
            self.servers[node].read()
        self.run(self.now + 20 * TICK)
        if self.reads_served < served + len(members):
            raise Violation("after healing, reads are not served")

    def leader(self) -> Server | None:
        leaders = [server for server in self.servers.values() if server.leads]
        return max(leaders, key=lambda server: server.raft.standing.term) if leaders else None  # type: ignore[union-attr]

    def agrees(self, before: int) -> bool:
        leader = self.leader()
        if leader is None or leader.raft is None or leader.raft.commit_index <= before:
            return False
        rafts = [self.servers[node].raft for node in leader.raft.membership.members]
        return all(
            raft is not None
            and raft.standing.leader == leader.node_id
            and raft.applied_index == leader.raft.last_index
            and raft.membership == leader.raft.membership
            for raft in rafts
        )


def simulate(seed: int, *, trace: bool = False, **flaws: bool) -> Simulation:
    """One history, checked. Raises Violation, or whatever the machine itself finds wrong."""
    simulation = Simulation(seed, trace)
    for name, value in flaws.items():
        assert hasattr(simulation, name)
        setattr(simulation, name, value)
    simulation.safety_phase(450 if simulation.crashes_leaders else 150)
    simulation.liveness_phase(400)
    return simulation


CAUGHT = (Violation, AssertionError, CorruptionError)
