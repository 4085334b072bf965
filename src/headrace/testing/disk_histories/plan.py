"""What a seed makes happen in a history."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final, NamedTuple


class Fault(StrEnum):
    KILL = "kill -9"
    PAUSE = "SIGSTOP, then SIGCONT"
    FOLDER_REMOVED = "a partition's folder is removed"
    FOLDER_OLDER = "a partition's folder is put back from an older copy"
    FOLDERS_SWAPPED = "the folders of two partitions are swapped"
    SMALL_FLIPPED = "a bit flips in a small file of a partition"
    SMALL_REMOVED = "a small file of a partition is removed"
    SMALL_CUT = "a small file of a partition is cut"
    INDEX_FLIPPED = "a bit flips in an index or a snapshot"
    SEGMENT_FLIPPED = "a bit flips in a segment while the node is down"
    SEGMENT_FLIPPED_LIVE = "a bit flips in a segment of a running leader"
    TORN_TAIL = "garbage or zeros behind the last batch"
    NODE_FILE_FLIPPED = "a bit flips in a file of the node"
    NODE_FILE_REMOVED = "a file of the node is removed"
    DIRECTORY_OLDER = "the data directory is put back from an older copy"
    DIRECTORY_EMPTIED = "the data directory is emptied"
    DISK_FULL = "the disk is full for a while"
    DISK_SLOW = "syncs are slow for a while"
    READS_FAIL = "reads of a partition fail"
    WRITES_FAIL = "writes fail"
    SYNCS_FAIL = "syncs fail"
    NO_DESCRIPTORS = "no descriptors are left for a while"


# Needs the shim, and so a compiler.
SHIM: Final = frozenset({Fault.DISK_FULL, Fault.DISK_SLOW, Fault.READS_FAIL, Fault.WRITES_FAIL, Fault.SYNCS_FAIL})
# Files are harmed while the node is down.
DOWN: Final = frozenset(
    {
        Fault.FOLDER_REMOVED,
        Fault.FOLDER_OLDER,
        Fault.FOLDERS_SWAPPED,
        Fault.SMALL_FLIPPED,
        Fault.SMALL_REMOVED,
        Fault.SMALL_CUT,
        Fault.INDEX_FLIPPED,
        Fault.SEGMENT_FLIPPED,
        Fault.TORN_TAIL,
        Fault.NODE_FILE_FLIPPED,
        Fault.NODE_FILE_REMOVED,
        Fault.DIRECTORY_OLDER,
        Fault.DIRECTORY_EMPTIED,
    }
)
# The whole node is harmed: it may refuse to start, in a cluster, too. What else is harmed must mend itself there.
NODE_WIDE: Final = frozenset(
    {Fault.NODE_FILE_FLIPPED, Fault.NODE_FILE_REMOVED, Fault.DIRECTORY_OLDER, Fault.DIRECTORY_EMPTIED}
)
# One node cannot tell: only others know that there was more.
CLUSTER_ONLY: Final = frozenset({Fault.DIRECTORY_OLDER, Fault.DIRECTORY_EMPTIED})


class Blow(NamedTuple):
    """A fault, and all that chance has to say about it. What it hits is found when it is dealt."""

    fault: Fault
    delay_s: float  # before it
    pause_s: float  # until what was killed starts again, or how long it lasts
    node: int  # the number of the node, from 0 on
    all_down: bool  # all nodes are killed, and one is harmed
    target: int  # which partition, or file: modulo their number
    file: int  # which file of the partition
    where: float  # how far into a file
    bit: int
    fresh: bool  # an older copy is of this run of the node; or else of an earlier one
    evict: bool  # the page cache forgets it
    zeros: bool  # the tail is zeros; or else garbage
    wide: bool  # syncs or writes fail in all of the data directory; or else in one partition


class Plan(NamedTuple):
    seed: int
    nodes: int
    blows: tuple[Blow, ...]


def plan(seed: int, *, nodes: int) -> Plan:
    """The faults of a history. The first one goes through all kinds as seeds go on."""
    dice = random.Random(f"{nodes} nodes, seed {seed}")
    faults = [fault for fault in Fault if nodes > 1 or fault not in CLUSTER_ONLY]
    count = dice.randint(3, 4) if nodes == 1 else dice.randint(2, 3)
    chosen = [faults[seed % len(faults)], *(dice.choice(faults) for _ in range(count - 1))]
    return Plan(seed, nodes, tuple(_blow(dice, fault, nodes) for fault in chosen))


def _blow(dice: random.Random, fault: Fault, nodes: int) -> Blow:
    return Blow(
        fault=fault,
        delay_s=dice.uniform(0.0, 1.0),
        pause_s=dice.choice((0.0, dice.uniform(0.5, 4.0))) if fault in DOWN else dice.uniform(1.0, 4.0),
        node=dice.randrange(nodes),
        all_down=dice.random() < 0.4,
        target=dice.randrange(1 << 16),
        file=dice.randrange(1 << 16),
        where=dice.random(),
        bit=dice.randrange(8),
        fresh=dice.random() < 0.5,
        evict=dice.random() < 0.5,
        zeros=dice.random() < 0.5,
        wide=dice.random() < 0.5,
    )
