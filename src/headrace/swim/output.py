"""What comes out of the machine: packets to send, and what has changed.

Rules:
- Packets may be sent in any order, or not at all: nothing depends on one of them.
- Events are in the order in which things were believed. They are hints: what is decided because of one is decided
  elsewhere, by those who can agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.swim.member import Member


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """New, or back from the dead."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberUpdated:
    """Another address, rack or meta, or no longer suspect."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberSuspected:
    member: Member


@dataclass(frozen=True, slots=True)
class MemberDied:
    member: Member


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """On purpose."""

    member: Member


@dataclass(frozen=True, slots=True)
class IdentityContested:
    """Another living node, here as it describes itself, goes by this node's id. One of them must be stopped."""

    member: Member


Event = MemberJoined | MemberUpdated | MemberSuspected | MemberDied | MemberLeft | IdentityContested


@dataclass(slots=True)
class Output:
    packets: list[tuple[str, int, bytes]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
