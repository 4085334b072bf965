"""Fair shares: a number of replicas divided by weight, between a least and a most for each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

_ROUNDS: Final = 64  # of halving: far below one replica, whatever the numbers
_EXACT: Final = 1e-6  # what floating point may take from a whole number


class Claim(NamedTuple):
    weight: float
    low: int
    high: int
    held: int = 0  # replicas that are there already: who has fewer is first when the remainder is given out
    tie: int = 0


def apportion(total: int, claims: Sequence[Claim]) -> list[int]:
    """Whole shares that sum to `total`, or as near to it as the bounds allow."""
    rate = _rate(total, claims)
    shares = [int(_bounded(rate, claim) + _EXACT) for claim in claims]
    rest = total - sum(shares)
    waiting = [
        ((claim.held + shares[at] + 1) / claim.weight, claim.tie, at)
        for at, claim in enumerate(claims)
        if shares[at] < claim.high
    ]
    heapq.heapify(waiting)
    while rest > 0 and waiting:
        _, tie, at = heapq.heappop(waiting)
        shares[at] += 1
        rest -= 1
        claim = claims[at]
        if shares[at] < claim.high:
            # Behind everybody who has not had a turn: shares stay within one of what is fair.
            heapq.heappush(waiting, ((claim.held + shares[at] + 1) / claim.weight + total, tie, at))
    return shares


def _bounded(rate: float, claim: Claim) -> float:
    return min(max(rate * claim.weight, claim.low), claim.high)


def _rate(total: int, claims: Sequence[Claim]) -> float:
    """Replicas per unit of weight, so that the shares within their bounds sum to `total`."""
    rate = total / sum(claim.weight for claim in claims)
    if all(claim.low <= rate * claim.weight <= claim.high for claim in claims):
        return rate
    low, high = 0.0, (total + 1) / min(claim.weight for claim in claims)
    for _ in range(_ROUNDS):
        rate = (low + high) / 2
        if sum(_bounded(rate, claim) for claim in claims) < total:
            low = rate
        else:
            high = rate
    return low
