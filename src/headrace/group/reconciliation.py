"""One member's step from what it has to what it should have (KIP-848): first give up, then get.

Rules:
- A partition belongs to a member from the moment it is assigned until the member has said that it gave it up. In
  between nobody else gets it.
- A member that has to give partitions up stays in its epoch until it has done so; then it goes on to the target.
- It must say so after it was told. What it said before does not count, even if it did not own them then: it may have
  been about to begin. Only who begins anew, or stops to join again, says what is final. (Kafka takes any word for it;
  then a client that is slow to begin reads a partition that is already another's.)
- What others still hold is left out and asked for again at the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.group.consumer_records import Progress
from headrace.group.topics import NOTHING, Partitions, TopicPartition


class Stand(NamedTuple):
    """Where a member stands. See `consumer_records.Current`."""

    epoch: int = 0
    previous_epoch: int = 0
    progress: Progress = Progress.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING

    @property
    def held(self) -> Partitions:
        return self.assigned | self.revoking if self.revoking else self.assigned

    def at(self, epoch: int) -> Stand:
        return self if epoch == self.epoch else self._replace(epoch=epoch, previous_epoch=self.epoch)

    def is_at(self, epoch: int) -> bool:
        """Whether there is nothing left to do to reach `epoch`."""
        return self.epoch == epoch and self.progress is Progress.STABLE


def advance(
    stand: Stand,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_held: Callable[[TopicPartition], bool],
    *,
    is_final: bool = False,
) -> Stand:
    """The next stand. `owned` is what the member says that it has, or None if it does not say.

    `is_final`: it will begin with nothing else before it hears of the next stand.
    """
    if stand.is_at(target_epoch):
        return stand
    epoch = stand.epoch
    if stand.progress is Progress.UNREVOKED:
        if owned is None or owned & stand.revoking:
            return stand
        epoch += 1
    kept = stand.assigned & target
    revoking = stand.assigned - target
    if revoking and (owned is None or owned & revoking or not is_final):
        return stand.at(epoch)._replace(progress=Progress.UNREVOKED, assigned=kept, revoking=revoking)
    wanted = target - kept
    # What it gave up just now is still booked to it, but is in nobody's way.
    unreleased = {place for place in wanted if place not in stand.revoking and is_held(place)}
    progress = Progress.UNRELEASED if unreleased else Progress.STABLE
    return stand.at(target_epoch)._replace(progress=progress, assigned=target - unreleased, revoking=NOTHING)
