"""Machines without a network: what one server answers, and small clusters whose messages are delivered by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from headrace.raft.machine import Raft
from headrace.raft.memory import MemoryStorage
from headrace.raft.messages import Message
from headrace.raft.options import RaftOptions
from headrace.raft.outcome import Proposed
from headrace.raft.ready import Read, Ready, RoleName, Save
from headrace.raft.records import Entry, HardState, Membership, Snapshot

OPTIONS = RaftOptions(election_ticks=10, heartbeat_ticks=2)
Kind = TypeVar("Kind")


class Shortest:
    """Dice that always show the least: the election timeout is `election_ticks`."""

    def randrange(self, stop: int, /) -> int:
        return 0


def log_of(terms: Sequence[int], voters: Iterable[int] = (1, 2, 3)) -> tuple[Entry, ...]:
    """Entries of these terms; the first one founds the cluster."""
    rest = [Entry(index, term, b"%d" % index) for index, term in enumerate(terms[1:], start=2)]
    return (Entry(1, terms[0], membership=Membership(tuple(voters))), *rest)


class Solo:
    """One server, driven by hand. Saves succeed at once unless they are held."""

    def __init__(
        self,
        node_id: int = 1,
        terms: Sequence[int] = (1,),
        voters: Iterable[int] = (1, 2, 3),
        term: int | None = None,
        vote: int | None = None,
        options: RaftOptions = OPTIONS,
        storage: MemoryStorage | None = None,
    ) -> None:
        self.storage = storage or MemoryStorage()
        if storage is None:
            entries = log_of(terms, voters) if terms else ()
            self.storage.save(Save(HardState(max([*terms, term or 0, 0]), vote), entries=entries))
        self.raft = Raft(node_id, self.storage, options, Shortest())
        self.readies: list[Ready] = []
        self.sent: list[Message] = []
        self.committed: list[Entry] = []
        self.reads: list[Read] = []
        self.lost_reads: list[int] = []

    def take(self) -> list[Message]:
        """Everything that may leave before anything is saved."""
        before = len(self.sent)
        while ready := self.raft.ready():
            self.readies.append(ready)
            self.sent.extend(ready.send)
            self.committed.extend(ready.commit)
            self.reads.extend(ready.reads)
            self.lost_reads.extend(ready.lost_reads)
        return self.sent[before:]

    def save(self, count: int | None = None) -> list[Message]:
        """Save what was taken, oldest first, and send what waited for it."""
        before = len(self.sent)
        for ready in self.readies[:count]:
            self.storage.save(ready.save)
            self.sent.extend(ready.send_after_save)
            self.raft.advance(ready)
        del self.readies[:count]
        return self.sent[before:]

    def run(self) -> list[Message]:
        before = len(self.sent)
        self.take()
        while self.readies:
            self.save()
            self.take()
        return self.sent[before:]

    def step(self, *messages: Message) -> list[Message]:
        """What it says to these messages."""
        self.run()
        before = len(self.sent)
        for message in messages:
            self.raft.step(message)
            self.run()
        return self.sent[before:]

    def answer(self, message: Message, kind: type[Kind]) -> Kind:
        """Its one answer of this kind."""
        found = [answer for answer in self.step(message) if isinstance(answer, kind)]
        assert len(found) == 1, found
        return found[0]

    def tick(self, count: int = 1) -> list[Message]:
        self.run()
        before = len(self.sent)
        for _ in range(count):
            self.raft.tick()
            self.run()
        return self.sent[before:]

    def restart(self) -> Solo:
        """After a crash: what was not saved is gone."""
        return Solo(self.raft.node_id, storage=self.storage, options=self.raft._state.options)

    @property
    def role(self) -> RoleName:
        return self.raft.standing.role

    @property
    def term(self) -> int:
        return self.raft.standing.term

    @property
    def log(self) -> list[tuple[int, int]]:
        """Index and term of every entry that is kept."""
        log = self.raft._state.log
        return [(entry.index, entry.term) for entry in log.slice(log.first_index, log.last_index + 1, 2**60)]

    def propose(self, *payloads: bytes) -> Proposed:
        outcome = self.raft.propose(payloads)
        assert isinstance(outcome, Proposed), outcome
        return outcome


class Cluster:
    """Several servers and the messages between them, delivered in order when `settle` is called."""

    def __init__(self, founders: int = 3, joiners: int = 0, options: RaftOptions = OPTIONS) -> None:
        voters = tuple(range(1, founders + 1))
        self.servers = {node: Solo(node, voters=voters, options=options) for node in voters}
        for node in range(founders + 1, founders + joiners + 1):
            self.servers[node] = Solo(node, terms=(), options=options)
        self.flying: list[Message] = []
        self.cuts: set[int] = set()  # who is cut off
        self.delivered: list[Message] = []

    def __getitem__(self, node: int) -> Solo:
        return self.servers[node]

    def collect(self) -> None:
        for server in self.servers.values():
            self.flying.extend(server.run())

    def settle(self) -> None:
        """Until nobody has anything to say."""
        self.collect()
        while self.flying:
            message = self.flying.pop(0)
            if message.sender in self.cuts or message.to in self.cuts or message.to not in self.servers:
                continue
            self.delivered.append(message)
            self.servers[message.to].raft.step(message)
            self.flying.extend(self.servers[message.to].run())

    def tick(self, node: int, count: int = 1) -> None:
        for _ in range(count):
            self.servers[node].raft.tick()
            self.settle()

    def beat(self, node: int) -> None:
        """A leader's heartbeats go out."""
        self.tick(node, OPTIONS.heartbeat_ticks)

    def elect(self, node: int) -> Solo:
        """Everybody waits for a leader; this server's patience ends first."""
        self.settle()
        for other, server in self.servers.items():
            if other != node and other not in self.cuts:
                for _ in range(OPTIONS.election_ticks - 1):
                    server.raft.tick()
        self.tick(node, OPTIONS.election_ticks)
        assert self.servers[node].role is RoleName.LEADER
        return self.servers[node]

    def compact(self, node: int, keep: int = 0) -> Snapshot:
        server = self.servers[node]
        snapshot = server.raft.snapshot_at(server.raft.applied_index, b"state")
        assert snapshot is not None
        server.storage.compact(snapshot, keep)
        return snapshot
