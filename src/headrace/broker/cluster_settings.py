"""How nodes find, believe and watch each other: the section `cluster`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import at_least, between, setting
from headrace.core.units import MINUTE_MS, SECOND_MS


def _addresses(text: str) -> str | None:
    try:
        parse_addresses(text)
    except ValueError as error:
        return str(error)
    return None


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """`host:port[,host:port]`. Raises ValueError."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = word.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(f"needs HOST:PORT, not {word!r}")
        found.append((host.strip("[]"), int(port)))
    return found


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    join: str | None = setting(
        None,
        help="Nodes of the cluster to join, HOST:PORT[,HOST:PORT]; any of them will do. Unset, a new data directory "
        "begins a cluster of its own. A node that belongs to a cluster finds it again without.",
        check=_addresses,
        flag="--join",
    )
    secret: str | None = setting(
        None,
        help="What all nodes of a cluster know and nobody else. Needed as soon as nodes are on different machines.",
    )
    voters: int = setting(
        5,
        help="Nodes that vote on metadata, at most; an even number counts as one less. The others follow.",
        check=between(1, 9),
    )
    election_ms: int = setting(
        500,
        help="A controller that was not heard for so long, up to twice as long, is replaced.",
        unit="ms",
        check=between(50, MINUTE_MS),
        kafka="controller.quorum.fetch.timeout.ms",
    )
    heartbeat_ms: int = setting(
        200,
        help="How often a node tells the controller that it lives.",
        unit="ms",
        check=between(10, MINUTE_MS),
        kafka="broker.heartbeat.interval.ms",
    )
    session_ms: int = setting(
        1500,
        help="A node that was not heard for so long loses its leaderships.",
        unit="ms",
        check=between(50, 10 * MINUTE_MS),
        kafka="broker.session.timeout.ms",
    )
    leave_ms: int = setting(
        10 * SECOND_MS,
        help="Longest time that a stopping node takes to give its leaderships away.",
        unit="ms",
        check=at_least(0),
    )
    gossip: bool = setting(
        True,
        help="Whether nodes gossip, by UDP on the port of the same number: deaths and addresses are known sooner.",
    )
    max_skew_ms: int = setting(
        500,
        help="A node whose clock differs by more is warned of.",
        unit="ms",
        check=at_least(1),
    )
    replica_lag_ms: int = setting(
        10 * SECOND_MS,
        help="A follower that was not at the end of its leader's log for so long is not in sync any more.",
        unit="ms",
        check=at_least(100),
        kafka="replica.lag.time.max.ms",
    )
    replica_throttle_bytes_per_second: int | None = setting(
        None,
        help="Most bytes per second that this node copies for replicas that are being moved to it; unset, no limit.",
        unit="bytes_per_second",
        check=at_least(1),
    )
    balance_leaders_ms: int = setting(
        10 * SECOND_MS,
        help="How often leaderships go back to the preferred replicas; 0: never by itself.",
        unit="ms",
        check=at_least(0),
    )
    snapshot_records: int = setting(
        10_000,
        help="Metadata records after which a snapshot replaces the log; more if the last snapshot was large.",
        check=at_least(1),
    )
