"""Who belongs to the cluster, at every index of the log, and which changes are allowed.

Rules (thesis, chapter 4):
- One server at a time: any majority of the old membership and any majority of the new one have a server in common.
- A server uses the latest membership in its log, committed or not, and goes back when that entry is overwritten.
- A server first listens (a learner has no vote and delays nothing); it becomes a voter when it has nearly caught up.
- The last voter cannot be removed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from headrace.raft.outcome import Reason
from headrace.raft.ready import Save
from headrace.raft.records import Entry, Membership

FOUNDING_TERM = 1


class ChangeKind(Enum):
    ADD_LEARNER = "add_learner"
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    node: int


def founding(voters: Iterable[int]) -> Save:
    """What every founder of a cluster saves before its machine is made: the same first entry. Servers that join later
    save nothing: they learn of the founding with the log."""
    members = Membership(voters=tuple(sorted(set(voters))))
    assert members.voters, "a cluster is founded by at least one server"
    return Save(entries=(Entry(1, FOUNDING_TERM, membership=members),))


def changed(membership: Membership, change: Change) -> Membership | Reason:
    """The membership after a change, or why it is not allowed."""
    voters, learners, node = set(membership.voters), set(membership.learners), change.node
    if change.kind is ChangeKind.ADD_LEARNER:
        if node in voters | learners:
            return Reason.ALREADY_A_MEMBER
        learners.add(node)
    elif change.kind is ChangeKind.PROMOTE:
        if node not in learners:
            return Reason.NOT_A_LEARNER
        learners.remove(node)
        voters.add(node)
    else:
        if node not in voters | learners:
            return Reason.NOT_A_MEMBER
        if voters == {node}:
            return Reason.LAST_VOTER
        voters.discard(node)
        learners.discard(node)
    return Membership(tuple(sorted(voters)), tuple(sorted(learners)))


class Memberships:
    """The memberships that a log holds, by the index of their entry, above the one that its snapshot begins with."""

    def __init__(self, index: int, membership: Membership) -> None:
        self._indexes = [index]
        self._memberships = [membership]

    @property
    def latest(self) -> Membership:
        return self._memberships[-1]

    @property
    def latest_index(self) -> int:
        return self._indexes[-1]

    def at(self, index: int) -> Membership:
        place = bisect_right(self._indexes, index) - 1
        assert place >= 0, f"the membership at {index} is forgotten"
        return self._memberships[place]

    def append(self, index: int, membership: Membership) -> None:
        assert index > self.latest_index
        self._indexes.append(index)
        self._memberships.append(membership)

    def truncate(self, first: int) -> None:
        """Forget the memberships of entries from `first` on."""
        while len(self._indexes) > 1 and self._indexes[-1] >= first:
            self._indexes.pop()
            self._memberships.pop()

    def compact(self, index: int) -> None:
        """Forget what was in force only before `index`."""
        place = bisect_right(self._indexes, index) - 1
        if place > 0:
            del self._indexes[:place], self._memberships[:place]
