"""What becomes of a request to the machine: a place in the log, or a reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    NO_LEADER = "no leader is known"
    NOT_LEADER = "another server leads"
    TRANSFERRING = "leadership is being handed over"
    BUSY = "too much waits already"
    TERM_NOT_STARTED = "the leader has not committed an entry of its own term yet"
    CHANGE_PENDING = "the membership change before this one is not committed yet"
    ALREADY_A_MEMBER = "the server is a member already"
    NOT_A_MEMBER = "the server is not a member"
    NOT_A_LEARNER = "the server is not a learner"
    NOT_A_VOTER = "the server is not a voter"
    LEARNER_BEHIND = "the learner has not caught up yet"
    LAST_VOTER = "the last voter cannot be removed"


@dataclass(frozen=True, slots=True)
class Proposed:
    """Appended, not yet committed. It is committed when the entry at `last_index` is handed out with this term; if an
    entry of another term is handed out at its index, it never will be."""

    term: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Not appended. `leader`: whom to ask instead, if it is known."""

    reason: Reason
    leader: int | None = None
