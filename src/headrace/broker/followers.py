"""What a leader knows of its followers: how far each has come, who is in sync, and what is committed by that.

Rules:
- A follower has what lies below the offset that it asks for. Only a fetch of the present leader epoch, and of the
  follower's newest start, counts.
- Committed is what every member of the in-sync set has. A change of that set counts before it is decided where that is
  the safer thing: those who shall join are waited for at once, those who shall leave until they have left.
- A follower that keeps up is waited for a little before it is a member, so that it can reach the high watermark at all
  while writers are busy.
- A follower keeps up if, within the allowed time, it asked for what was the end of the log when it asked before.
- It may join when it has reached the high watermark, and the offset at which this leader began.
- Nothing here knows a clock: times come in, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.image import PartitionRecord


class Follower:
    """One other replica."""

    __slots__ = ("_asked_at", "_end_then", "caught_up_at", "epoch", "offset")

    def __init__(self) -> None:
        self.offset = -1  # it has everything below; -1: it has not said yet
        self.epoch = -1  # of its registration
        self.caught_up_at: float | None = None  # None: it has not said yet, and nobody has looked
        self._asked_at = 0.0
        self._end_then = -1

    def asked(self, offset: int, end_offset: int, now: float) -> None:
        self.offset = offset
        if offset >= end_offset:
            self.caught_up_at = now
        elif 0 <= self._end_then <= offset:
            self.caught_up_at = max(self.caught_up_at or 0.0, self._asked_at)
        self._asked_at, self._end_then = now, end_offset

    def keeps_up(self, now: float, lag_seconds: float) -> bool:
        if self.caught_up_at is None:
            self.caught_up_at = now  # it gets the time that everybody gets
        return now - self.caught_up_at <= lag_seconds


class Followers:
    """See the module."""

    __slots__ = ("_candidates", "_proposed", "_waited", "alone", "followers", "record")

    def __init__(self, record: PartitionRecord) -> None:
        self.record = record
        self.followers: dict[int, Follower] = {}
        self._proposed: tuple[int, ...] = ()
        self._candidates: dict[int, None] = {}  # that are waited for before they are members
        self._waited: list[Follower] = []
        self.alone = False  # nobody is waited for
        self.changed(record)

    def changed(self, record: PartitionRecord) -> None:
        """What was decided. What was proposed before is decided by that, or refused."""
        if record.partition_epoch != self.record.partition_epoch:
            self._proposed = ()
        self.record = record
        others = [node for node in record.replicas if node != record.leader]
        self.followers = {node: self.followers.get(node) or Follower() for node in others}
        self._candidates = {node: None for node in self._candidates if node in self.followers}
        self._gather()

    def _gather(self) -> None:
        members = dict.fromkeys((*self.record.isr, *self._proposed, *self._candidates))
        self._waited = [follower for node, follower in self.followers.items() if node in members]
        self.alone = not self._waited

    def committed_offset(self, own_offset: int) -> int:
        """Everything below is on all in-sync replicas, if we have it up to `own_offset`."""
        for follower in self._waited:
            if follower.offset < own_offset:
                own_offset = follower.offset
        return own_offset

    def asked(self, node: int, epoch: int, offset: int, end_offset: int, now: float) -> bool:
        """A follower asks for `offset`. False if it is no replica, or has been started again since."""
        follower = self.followers.get(node)
        if follower is None or epoch < follower.epoch:
            return False
        if epoch > follower.epoch:
            if follower.epoch >= 0:  # it has been started again
                follower = self.followers[node] = Follower()
                self._gather()
            follower.epoch = epoch
        follower.asked(offset, end_offset, now)
        if node not in self.record.isr and node not in self._candidates and follower.caught_up_at is not None:
            self._candidates[node] = None
            self._gather()
        return True

    # ------------------------------------------------------------------ changes of the set

    def wish(
        self,
        now: float,
        lag_seconds: float,
        *,
        end_offset: int,
        least_offset: int,
        may_join: Callable[[int, int], bool],
    ) -> tuple[int, ...] | None:
        """The in-sync set as it should be, if that is another one. `least_offset`: what a new member must have.

        `may_join(node, epoch)`: the node is alive, and that is its newest start.
        """
        record = self.record
        wished = [record.leader]
        for node, follower in self.followers.items():
            behind = follower.offset < end_offset and not follower.keeps_up(now, lag_seconds)
            if node in self._candidates and (behind or node in record.isr):
                del self._candidates[node]
                self._gather()
            if node in record.isr:
                if not behind:
                    wished.append(node)
            elif not behind and follower.offset >= least_offset and may_join(node, follower.epoch):
                wished.append(node)
        ordered = tuple(node for node in record.replicas if node in wished)
        return None if self._proposed or set(ordered) == set(record.isr) else ordered

    def propose(self, isr: tuple[int, ...]) -> None:
        """A change is on its way: it counts where that is safer."""
        self._proposed = isr
        self._gather()

    def refused(self) -> None:
        """It is known that the change will not be made."""
        self._proposed = ()
        self._gather()
