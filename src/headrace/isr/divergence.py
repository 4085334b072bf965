"""Where a follower's log and its leader's part, told by leader epochs (KIP-101, KIP-279, KIP-595).

Rules:
- Two logs that hold the same epoch hold the same records of it, up to where the shorter of the two ends in it. A
  follower therefore cuts at the end of the last epoch that both know, and nowhere else: never at its high watermark.
- Below its high watermark it does not cut at all: a leader that was elected by the rules has everything there, so one
  that has not is short (its log is damaged, lost, or of another disk). Unless an unclean election came after what the
  follower knows: then its knowledge counts no more (`known_committed`).
- A leader tells that a log parts from its own by the last epoch it has at or below the follower's, and where that
  ended. If the follower does not have that epoch, it cuts to the end of its own last one below, and asks again.
- A leader's own epoch begins at the end of its log even while there is no record of it: the history of the log (which
  knows only epochs with records, `storage/epochs.py`) does not say so, these rules do.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from headrace.core.errors import ApiError, ErrorCode


class History(Protocol):
    """The epochs of one log, as `storage.epochs.Epochs` keeps them."""

    latest: int  # -1: none

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]: ...

    def epoch_at(self, offset: int) -> int: ...


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class Truncation(NamedTuple):
    end_offset: int  # the log ends here afterwards
    is_final: bool  # otherwise the leader is asked again, with what is then the last epoch


UNKNOWN: Final = EpochEnd(-1, -1)


def end_offset_for_epoch(history: History, log_end_offset: int, leader_epoch: int, epoch: int) -> EpochEnd:
    """The leader's answer to OffsetForLeaderEpoch: its last epoch at or below `epoch`, and where that ended."""
    if epoch < 0 or epoch > leader_epoch:
        return UNKNOWN
    if epoch == leader_epoch:
        return EpochEnd(epoch, log_end_offset)
    if epoch >= history.latest:
        return EpochEnd(history.latest if history.latest >= 0 else epoch, log_end_offset)
    return EpochEnd(*history.end_offset_for(epoch, log_end_offset))


def diverging(
    history: History,
    log_start_offset: int,
    log_end_offset: int,
    leader_epoch: int,
    fetch_offset: int,
    last_fetched_epoch: int,
) -> EpochEnd | None:
    """What the leader answers to a Fetch whose log parts from its own; None if it does not.

    `last_fetched_epoch`: of the record before `fetch_offset`, -1 in an empty log. ApiError without common ground.
    """
    if last_fetched_epoch < 0:
        return None
    end = end_offset_for_epoch(history, log_end_offset, leader_epoch, last_fetched_epoch)
    if end == UNKNOWN or fetch_offset < log_start_offset:
        raise ApiError(ErrorCode.offset_out_of_range)
    return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None


def truncate_to(history: History, log_end_offset: int, answer: EpochEnd) -> Truncation:
    """Where the follower cuts its log, given the leader's `answer`. `log_end_offset` if there is nothing to cut."""
    assert answer != UNKNOWN, "a leader that knows no common epoch answers with an error"
    epoch, end_offset = history.end_offset_for(min(answer.epoch, history.latest), log_end_offset)
    if epoch < 0:
        return Truncation(min(answer.end_offset, log_end_offset), True)
    if epoch != answer.epoch:
        return Truncation(min(end_offset, log_end_offset), False)
    return Truncation(min(end_offset, answer.end_offset, log_end_offset), True)


def known_committed(history: History, log_end_offset: int, high_watermark: int, unclean_epoch: int) -> int:
    """Below which offset a follower must not be cut; 0: it may be cut anywhere.

    `unclean_epoch`: of the last election that may have lost something, -1: there was none. Only records of that epoch,
    or a later one, are known to have been committed after it. A follower claims no more than it has: a node that has
    lost bytes may have known more.
    """
    known = min(high_watermark, log_end_offset)
    if known <= 0 or (unclean_epoch >= 0 and history.epoch_at(known - 1) < unclean_epoch):
        return 0
    return known
