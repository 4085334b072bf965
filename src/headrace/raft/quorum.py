"""The arithmetic of majorities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum


class Tally(Enum):
    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority(voters: Collection[int]) -> int:
    return len(voters) // 2 + 1


def tally(voters: Collection[int], votes: Mapping[int, bool]) -> Tally:
    """What has come of an election. Only voters count, whoever else has answered."""
    granted = sum(votes.get(voter, False) for voter in voters)
    refused = sum(not votes.get(voter, True) for voter in voters)
    if voters and granted >= majority(voters):
        return Tally.WON
    return Tally.LOST if refused > len(voters) - majority(voters) else Tally.OPEN


def agreed(voters: Collection[int], reached: Mapping[int, int]) -> int:
    """The greatest number that a majority of the voters has reached; 0 if there are no voters."""
    if not voters:
        return 0
    return sorted((reached.get(voter, 0) for voter in voters), reverse=True)[majority(voters) - 1]
