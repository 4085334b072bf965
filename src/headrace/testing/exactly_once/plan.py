"""What a seed makes happen in a history."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    KILL_BROKER = "kill the broker"
    KILL_CLIENT = "kill a transformer and start another in its place"
    REPLACE_CLIENT = "stop a transformer, start another in its place, wake the first one up"
    PAUSE_NODE = "pause a node and wake it up again"
    CUT_NODE = "cut a node off and let it come back"
    ROLLING_RESTART = "restart all nodes, one after the other"


# What can happen to one broker, and what to a cluster, with weights.
LONE = {Fault.KILL_BROKER: 4, Fault.KILL_CLIENT: 3, Fault.REPLACE_CLIENT: 1}
SEVERAL = {
    Fault.KILL_BROKER: 4,
    Fault.KILL_CLIENT: 2,
    Fault.REPLACE_CLIENT: 1,
    Fault.PAUSE_NODE: 3,
    Fault.CUT_NODE: 3,
    Fault.ROLLING_RESTART: 1,
}
ANY = "any node"
# Whose leader is hit: the coordinator of transactions, that of the group, a partition that is read, or written.
TARGETS = ("__transaction_state", "__transaction_state", "__consumer_offsets", "orders", "bills", "ledger", ANY)


class Blow(NamedTuple):
    """A fault, `delay_s` after the `nth` line of this kind since the blow before it was dealt with."""

    fault: Fault
    step: str
    nth: int
    delay_s: float
    victim: int
    target: tuple[str, int] = (ANY, 0)  # topic and number of the partition whose leader is hit
    pause_s: float = 0.0  # until it is mended


class Plan(NamedTuple):
    seed: int
    transformers: int
    blows: tuple[Blow, ...]
    straggler: bool  # whether a transaction is left open, for the coordinator to abort


def plan(seed: int, *, nodes: int = 1) -> Plan:
    dice = random.Random(seed)
    transformers = dice.choice((1, 2))
    blow = _blow if nodes == 1 else _cluster_blow
    blows = tuple(blow(dice, transformers) for _ in range(dice.randint(2, 4)))
    return Plan(seed, transformers, blows, dice.random() < 0.5)


def _blow(dice: random.Random, transformers: int, faults: Mapping[Fault, int] = LONE) -> Blow:
    # Most blows fall where a transaction is ended: between its prepare, its markers and its completion.
    step = dice.choice(("begin", "committing", "committing", "aborting"))
    return Blow(
        fault=dice.choices(list(faults), weights=list(faults.values()))[0],
        step=step,
        nth=dice.randint(1, 2 if step == "aborting" else 6),
        delay_s=dice.choice((0.0, dice.uniform(0.0, 0.01), dice.uniform(0.0, 0.1))),
        victim=dice.randrange(transformers),
    )


def _cluster_blow(dice: random.Random, transformers: int) -> Blow:
    blow = _blow(dice, transformers, SEVERAL)
    # Some end before anybody has noticed, most when another node has taken over.
    pause_s = dice.choice((0.0, dice.uniform(0.0, 1.5), dice.uniform(2.0, 5.0)))
    return blow._replace(target=(dice.choice(TARGETS), dice.randrange(12)), pause_s=pause_s)
