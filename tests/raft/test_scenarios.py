"""Whole stories as text: commands after `>`, then all that happens. Read them as documentation.

HEADRACE_REGENERATE=1 writes what happens now into the files; look at the difference before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raft_stage import OPTIONS, Solo

from headrace.raft.membership import Change, ChangeKind
from headrace.raft.messages import Message
from headrace.raft.records import Entry, Membership, Snapshot

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def entry_text(entry: Entry) -> str:
    content = members_text(entry.membership) if entry.membership else entry.payload.decode() or "start"
    return f"{entry.index}/{entry.term} {content}"


def members_text(membership: Membership) -> str:
    learners = f" learners {','.join(map(str, membership.learners))}" if membership.learners else ""
    return f"voters {','.join(map(str, membership.voters))}{learners}"


def message_text(message: Message) -> str:
    parts = []
    for name in message.__struct_fields__[3:]:
        value = getattr(message, name)
        if isinstance(value, Snapshot):
            value = f"{value.index}/{value.term} {members_text(value.membership)}"
        elif isinstance(value, tuple):
            value = "[" + ", ".join(map(entry_text, value)) + "]"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        parts.append(f"{name}={value}")
    return f"{message.sender} -> {message.to} {type(message).__name__} term={message.term} {' '.join(parts)}".rstrip()


class Story:
    """A cluster that says all that it does."""

    def __init__(self) -> None:
        self.servers: dict[int, Solo] = {}
        self.down: set[int] = set()
        self.cuts: set[int] = set()
        self.flying: list[Message] = []
        self.lines: list[str] = []

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        self.lines = []
        getattr(self, f"do_{verb}")(*words)
        return self.lines

    # Commands

    def do_found(self, count: str) -> None:
        voters = range(1, int(count) + 1)
        for node in voters:
            self.add(Solo(node, voters=voters))

    def do_join(self, node: str) -> None:
        self.add(Solo(int(node), terms=()))

    def do_tick(self, node: str, count: str = "1") -> None:
        """Ticks of one server; what they lead to is seen at once, but not delivered."""
        for _ in range(int(count)):
            self.servers[int(node)].raft.tick()
            self.act(int(node))

    def do_timeout(self, node: str) -> None:
        self.do_tick(node, str(OPTIONS.election_ticks))

    def do_deliver(self, count: str = "1000") -> None:
        """Messages in order, until nobody has anything to say, or so many."""
        for _ in range(int(count)):
            if not self.flying:
                break
            message = self.flying.pop(0)
            if {message.sender, message.to} & (self.cuts | self.down) or message.to not in self.servers:
                self.lines.append(f"lost: {message_text(message)}")
            else:
                self.lines.append(message_text(message))
                self.servers[message.to].raft.step(message)
                self.act(message.to)

    def do_propose(self, node: str, *payloads: str) -> None:
        self.outcome(self.servers[int(node)].raft.propose([payload.encode() for payload in payloads]))
        self.act(int(node))

    def do_change(self, node: str, kind: str, whom: str) -> None:
        self.outcome(self.servers[int(node)].raft.change(Change(ChangeKind(kind), int(whom))))
        self.act(int(node))

    def do_transfer(self, node: str, whom: str) -> None:
        self.outcome(self.servers[int(node)].raft.transfer(int(whom)))
        self.act(int(node))

    def do_read(self, node: str, number: str) -> None:
        self.outcome(self.servers[int(node)].raft.read(int(number)))
        self.act(int(node))

    def do_cut(self, *nodes: str) -> None:
        self.cuts = set(map(int, nodes))

    def do_lose(self) -> None:
        self.flying.clear()

    def do_crash(self, node: str) -> None:
        self.down.add(int(node))

    def do_restart(self, node: str) -> None:
        self.down.discard(int(node))
        self.add(self.servers[int(node)].restart())

    def do_compact(self, node: str) -> None:
        server = self.servers[int(node)]
        snapshot = server.raft.snapshot_at(server.raft.applied_index, b"state")
        assert snapshot is not None
        server.storage.compact(snapshot)

    def do_status(self) -> None:
        for node, server in self.servers.items():
            standing, raft = server.raft.standing, server.raft
            log = " ".join(f"{index}/{term}" for index, term in server.log)
            self.lines.append(
                f"{node}: {standing.role.value} term={standing.term} leader={standing.leader} "
                f"{members_text(raft.membership)} commit={raft.commit_index} log=[{log}]"
            )

    # What happens

    def add(self, server: Solo) -> None:
        self.servers[server.raft.node_id] = server
        server.run()

    def outcome(self, outcome: object) -> None:
        self.lines.append("tried" if outcome is None else str(outcome))

    def act(self, node: int) -> None:
        server = self.servers[node]
        while ready := server.raft.ready():
            if ready.standing:
                standing = ready.standing
                self.lines.append(f"  {node} is {standing.role.value} term={standing.term} leader={standing.leader}")
            if ready.save.hard_state:
                self.lines.append(f"  {node} saves term={ready.save.hard_state.term} vote={ready.save.hard_state.vote}")
            if ready.save.snapshot:
                self.lines.append(f"  {node} saves snapshot {ready.save.snapshot.index}/{ready.save.snapshot.term}")
            for entry in ready.save.entries:
                self.lines.append(f"  {node} saves {entry_text(entry)}")
            for entry in ready.commit:
                self.lines.append(f"  {node} applies {entry_text(entry)}")
            for read in ready.reads:
                self.lines.append(f"  {node} serves read {read.number} at {read.index}")
            for number in ready.lost_reads:
                self.lines.append(f"  {node} loses read {number}")
            server.storage.save(ready.save)
            self.flying.extend(ready.send)
            self.flying.extend(ready.send_after_save)
            server.raft.advance(ready)


def tell(text: str, run: Callable[[str], list[str]]) -> Iterator[str]:
    """The story again, with what happens now."""
    for line in text.splitlines():
        if line.startswith("#") or not line:
            yield line
        elif line.startswith("> "):
            yield line
            yield from run(line[2:])


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_is_told_as_it_happens(path: Path):
    text = path.read_text(encoding="utf-8")
    told = "\n".join(tell(text, Story().run)) + "\n"
    if os.environ.get("HEADRACE_REGENERATE"):
        path.write_text(told, encoding="utf-8")
    assert told.splitlines() == text.splitlines() or os.environ.get("HEADRACE_REGENERATE")


def test_there_are_stories():
    assert STORIES
