"""About how much memory groups take: an estimate, so that it can have a bound in all.

Rules:
- A group is weighed when its members or offsets have changed; what others ask of it costs nothing.
- An estimate errs on the heavy side by a small factor, and never forgets what a client can make grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.group.classic import ClassicGroup
from headrace.group.commands import Command, Commit, ConsumerHeartbeat, DeleteOffsets, Join, Leave
from headrace.group.heartbeats import JOINS

if TYPE_CHECKING:
    from headrace.group.migration import MixedGroup
    from headrace.group.offsets import OffsetTable

GROUP_BYTES: Final = 2048
MEMBER_BYTES: Final = 1024


# Commands after which a group may take more, or less.
RESIZING: Final = (Join, Leave, ConsumerHeartbeat, Commit, DeleteOffsets)


def grows(command: Command, offsets: OffsetTable) -> bool:
    """Whether a command brings something new: a group, a member, an offset."""
    match command:
        case Join():
            return not command.member_id
        case ConsumerHeartbeat():
            return command.member_epoch == JOINS
        case Commit():
            known = offsets.of(command.group)
            return any((item.topic, item.partition) not in known for item in command.offsets)
    return False


class Weights:
    """Bytes by group, and in all. While it `is_stale` (a log is replayed) nothing is weighed."""

    __slots__ = ("_of", "_total", "is_stale")

    def __init__(self) -> None:
        self.is_stale = True
        self._of: dict[str, int] = {}
        self._total = 0

    def total(self, groups: Iterable[ClassicGroup | MixedGroup], offsets: OffsetTable) -> int:
        if self.is_stale:
            self.is_stale, self._of, self._total = False, {}, 0
            for group in groups:
                self.weigh(group, offsets)
        return self._total

    def weigh(self, group: ClassicGroup | MixedGroup, offsets: OffsetTable) -> None:
        if not self.is_stale:
            size = GROUP_BYTES + _members(group) + offsets.size_of(group.group)
            self._total += size - self._of.get(group.group, 0)
            self._of[group.group] = size

    def forget(self, name: str) -> None:
        self._total -= self._of.pop(name, 0)


def _members(group: ClassicGroup | MixedGroup) -> int:
    if isinstance(group, ClassicGroup):
        return 2 * group.roster.metadata_bytes + MEMBER_BYTES * (len(group.roster) + group.promised)
    names = sum(sum(map(len, facts.topics)) for facts in group.members.values())
    return 2 * names + MEMBER_BYTES * len(group.members)
