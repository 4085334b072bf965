"""Who is in a group: members, static instances, leader, and the protocols that all of them speak.

Rules:
- A roster knows no states, tokens or clocks; `classic` does.
- While there are members, one of them is the leader: the first to come, or the next in line when the leader goes.
- A protocol is a candidate when every member speaks it. Each member votes for the first candidate in its own list; the
  most votes win, and among equals the one that the longest-standing member prefers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.core.errors import ErrorCode

Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    """`deadline_ms`: when the session ends. `is_new`: has not yet seen its first rebalance complete."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    deadline_ms: int = 0
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


def size_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class Roster:
    """See the module."""

    __slots__ = ("_instances", "_members", "_speakers", "leader", "metadata_bytes")

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}  # instance id -> member id
        self._speakers: Counter[str] = Counter()  # protocol -> members that speak it
        self.leader: str | None = None
        self.metadata_bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def by_instance(self, instance_id: str) -> Member | None:
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def add(self, member: Member) -> None:
        if member.instance_id is not None:
            assert member.instance_id not in self._instances, "a static instance is in the group once"
            self._instances[member.instance_id] = member.member_id
        self._members[member.member_id] = member
        self._count(member.protocols, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        member = self._members.pop(member_id, None)
        if member is None:
            return None
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rename(self, member: Member, new_id: str) -> None:
        """A static member came back under a new id: it keeps its place, its leadership and its assignment."""
        del self._members[member.member_id]
        if self.leader == member.member_id:
            self.leader = new_id
        member.member_id = new_id
        self._members[new_id] = member
        assert member.instance_id is not None
        self._instances[member.instance_id] = new_id

    def revise(self, member: Member, protocols: Protocols, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        self._count(protocols, 1)

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def common(self, names: Iterable[str]) -> bool:
        """Whether one of `names` is spoken by every member."""
        return any(self._speakers[name] == len(self._members) for name in names)

    def elect(self) -> str:
        """The protocol of the next generation."""
        candidates = {name for name, speakers in self._speakers.items() if speakers == len(self._members)}
        votes: dict[str, int] = {}
        for member in self:
            choice = next(name for name, _ in member.protocols if name in candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def fault(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Why this is no member of ours, or none."""
        if instance_id is not None:
            known = self._instances.get(instance_id)
            if known is None or not member_id:  # who has lost its id is to join again, not to end
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._members else ErrorCode.unknown_member_id

    def _count(self, protocols: Protocols, step: int) -> None:
        for name in {name for name, _ in protocols}:
            self._speakers[name] += step
            if not self._speakers[name]:
                del self._speakers[name]
        self.metadata_bytes += step * size_of(protocols)
