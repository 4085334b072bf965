"""What is kept of a group of the new protocol (KIP-848): its epochs, and each member's facts, target and progress.

Rules: those of `records`. Keys have the group first. Each of a member's three values stands alone, so that they may be
replayed in any order.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headrace.group.topics import Grouped


class ConsumerGroupKey(msgspec.Struct, frozen=True, tag="cg", array_like=True):
    group: str


class ConsumerMemberKey(msgspec.Struct, frozen=True, tag="cm", array_like=True):
    group: str
    member_id: str


class TargetKey(msgspec.Struct, frozen=True, tag="ct", array_like=True):
    group: str
    member_id: str


class CurrentKey(msgspec.Struct, frozen=True, tag="cc", array_like=True):
    group: str
    member_id: str


class Epochs(msgspec.Struct, frozen=True, array_like=True):
    """`topics`: the digest of the topics that the group epoch stands for. `changed_ms`: wall time of the last bump."""

    group_epoch: int = 0
    assignment_epoch: int = 0
    topics: bytes = b""
    changed_ms: int = 0


class ClassicFacts(msgspec.Struct, frozen=True, array_like=True):
    """Of a member that speaks the classic protocol. `protocols`: (name, metadata), the most wanted first."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a member said about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    assignor: str | None = None
    classic: ClassicFacts | None = None


class Target(msgspec.Struct, frozen=True, array_like=True):
    partitions: Grouped = ()


class Progress(StrEnum):
    """How far a member is on its way to the target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # it has to give partitions up
    UNRELEASED = "unreleased"  # others have to give up what it is to get


class Current(msgspec.Struct, frozen=True, array_like=True):
    """What a member may read (`assigned`), and what it has not yet given up (`revoking`).

    `since`: the epoch in which each of these was assigned, in their order (KIP-1251).
    """

    epoch: int = 0
    previous_epoch: int = 0
    progress: Progress = Progress.STABLE
    assigned: Grouped = ()
    revoking: Grouped = ()
    since: tuple[int, ...] = ()


ConsumerKey = ConsumerGroupKey | ConsumerMemberKey | TargetKey | CurrentKey
ConsumerValue = Epochs | MemberFacts | Target | Current
