"""How often gossip speaks, how long it waits, and how much it holds; and the formulas that grow with the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

SMALLEST_PACKET_BYTES: Final = 1_200


class Dice(Protocol):
    """Where chance comes from; `random.Random` is one."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class SwimOptions:
    """The driver ticks at least once in `probe_timeout_s`, better five times."""

    probe_interval_s: float = 1.0  # each node probes one other so often
    probe_timeout_s: float = 0.4  # without an answer for so long, others are asked to probe it too
    indirect_probes: int = 3  # how many others
    suspicion_mult: float = 4.0  # see suspicion_s
    retransmit_mult: int = 3  # see transmissions
    gossip_interval_s: float = 0.2  # news do not wait for probes
    gossip_nodes: int = 3  # they are sent to so many at a time
    sync_interval_s: float = 30.0  # full exchange with somebody
    join_interval_s: float = 1.0  # seeds are asked again
    rejoin_interval_s: float = 10.0  # some of the dead, and of the seeds where nobody answers, are asked again
    forget_s: float = 3_600.0  # the dead and the departed are forgotten
    packet_bytes: int = SMALLEST_PACKET_BYTES  # no packet is longer
    max_members: int = 10_000  # of which records are held
    max_drift_ms: int = 5_000  # stamps that are further ahead do not move the hybrid clock

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
        if self.probe_timeout_s >= self.probe_interval_s:
            raise ValueError("probe_timeout_s must be less than probe_interval_s")
        if self.packet_bytes < SMALLEST_PACKET_BYTES:
            raise ValueError(f"packet_bytes must be at least {SMALLEST_PACKET_BYTES}")


LAN: Final = SwimOptions()
# Nodes on one machine, or few in one room: a death is known in about a second.
LOCAL: Final = SwimOptions(
    probe_interval_s=0.25,
    probe_timeout_s=0.1,
    gossip_interval_s=0.05,
    sync_interval_s=10.0,
    join_interval_s=0.25,
    rejoin_interval_s=2.0,
)


def suspicion_s(options: SwimOptions, living: int) -> float:
    """How long a suspect has to refute. News needs time to reach it, and that grows as the logarithm of the cluster."""
    return options.suspicion_mult * max(1.0, math.log10(max(living, 1))) * options.probe_interval_s


def transmissions(options: SwimOptions, living: int) -> int:
    """How often each node passes one piece of news on. By chance, exp(-transmissions) of all nodes miss it."""
    return options.retransmit_mult * math.ceil(math.log(living + 1))
