"""What transactions may ask for and how long their ids are remembered: the section `transactions`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.config import at_least, between, setting
from headrace.core.units import DAY_MS, HOUR_MS, MIB, MINUTE_MS


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    partitions: int = setting(
        8,
        help="Partitions of __transaction_state. It cannot change once the topic exists.",
        check=between(1, 1000),
        kafka="transaction.state.log.num.partitions",
    )
    max_timeout_ms: int = setting(
        15 * MINUTE_MS,
        help="Longest transaction timeout that a producer may ask for.",
        unit="ms",
        check=between(1, 2**31 - 1),
        kafka="transaction.max.timeout.ms",
    )
    id_expiration_ms: int = setting(
        7 * DAY_MS,
        help="A transactional id that was idle for so long is forgotten.",
        unit="ms",
        check=at_least(1),
        kafka="transactional.id.expiration.ms",
    )
    max_ids: int = setting(
        100_000,
        help="Most transactional ids that a node coordinates; whoever brings another one is told to try again.",
        check=at_least(1),
    )
    expiration_check_interval_ms: int = setting(
        HOUR_MS,
        help="Time between looks for transactional ids to forget.",
        unit="ms",
        check=at_least(1),
        kafka="transaction.remove.expired.transaction.cleanup.interval.ms",
    )
    concurrent_wait_ms: int = setting(
        100,
        help="How long a request may wait for the transaction before it to end, before it is told to try again.",
        unit="ms",
        check=at_least(0),
        kafka="add.partitions.to.txn.retry.backoff.max.ms",
    )
    compact_after_bytes: int = setting(
        16 * MIB,
        help="A partition of __transaction_state is rewritten when it has grown by so much.",
        unit="bytes",
        check=at_least(1),
    )
