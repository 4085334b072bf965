"""What a seed makes happen in a history."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    KILL_BROKER = "kill the broker"
    KILL_CLIENT = "kill a transformer and start another in its place"
    REPLACE_CLIENT = "stop a transformer, start another in its place, wake the first one up"


class Blow(NamedTuple):
    """A fault, `delay_s` after the `nth` line of this kind since the blow before it was dealt with."""

    fault: Fault
    step: str
    nth: int
    delay_s: float
    victim: int


class Plan(NamedTuple):
    seed: int
    transformers: int
    blows: tuple[Blow, ...]
    straggler: bool  # whether a transaction is left open, for the coordinator to abort


def plan(seed: int) -> Plan:
    dice = random.Random(seed)
    transformers = dice.choice((1, 2))
    blows = tuple(_blow(dice, transformers) for _ in range(dice.randint(2, 4)))
    return Plan(seed, transformers, blows, dice.random() < 0.5)


def _blow(dice: random.Random, transformers: int) -> Blow:
    # Most blows fall where a transaction is ended: between its prepare, its markers and its completion.
    step = dice.choice(("begin", "committing", "committing", "aborting"))
    return Blow(
        fault=dice.choices(list(Fault), weights=(4, 3, 1))[0],
        step=step,
        nth=dice.randint(1, 2 if step == "aborting" else 6),
        delay_s=dice.choice((0.0, dice.uniform(0.0, 0.01), dice.uniform(0.0, 0.1))),
        victim=dice.randrange(transformers),
    )
