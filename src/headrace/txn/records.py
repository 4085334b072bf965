"""What the coordinator writes to the transaction topic: one record per transactional id, and its states.

Rules:
- The key is the transactional id; the newest value is all that is known of it. A value of None: it is forgotten.
- Keys and values are arrays; new fields go to the end and have defaults, so that old records stay readable.
- A key that this version does not know is skipped on load, never an error.
- A state may follow another only where `FOLLOWS` says so; anything else is our bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

EPOCH_MAX: Final = 2**15 - 1
# The last epoch that a producer may be given: one more is kept back, so that it can always be fenced.
EPOCH_LAST: Final = EPOCH_MAX - 1

TopicPartition = tuple[str, int]


class State(IntEnum):
    """Kafka's states, by Kafka's numbers. DEAD and PREPARE_EPOCH_FENCE are names that clients may filter by: forgetting
    and fencing are one step here, so that no transaction is ever seen in them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that clients see, such as CompleteCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


IDLE: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

# From which states each state can be reached. An idle producer of the newer protocol may abort, too.
FOLLOWS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: IDLE,
    State.ONGOING: IDLE | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: IDLE | {State.ONGOING},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
}


class TransactionKey(msgspec.Struct, frozen=True, tag="t", array_like=True):
    transactional_id: str


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of one transactional id.

    `previous_producer_id`: who took the step before this one. `next_producer_id`: takes over when the transaction that
    is prepared has ended, because the epochs of this producer id are used up. `last_epoch`: the epoch that the producer
    itself gave up for the present one, so that it may repeat its request; -1 after a fence, and once it has gone on.
    `start_ms`, `update_ms`: wall time. `bumped`: the last end was asked for with the newer protocol (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    state: State
    timeout_ms: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    last_epoch: int = -1
    partitions: tuple[TopicPartition, ...] = ()
    start_ms: int = -1
    update_ms: int = -1
    bumped: bool = False

    @property
    def identity(self) -> tuple[int, int]:
        """The producer id and epoch that the producer was told to use from now on."""
        return (self.next_producer_id, 0) if self.next_producer_id >= 0 else (self.producer_id, self.producer_epoch)

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_LAST


Record = tuple[bytes, bytes | None]

_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(TransactionKey).decode
_decode_value = msgspec.msgpack.Decoder(Transaction).decode


def encode(transactional_id: str, value: Transaction | None) -> Record:
    """A record, or a tombstone if there is no value."""
    return _encode(TransactionKey(transactional_id)), None if value is None else _encode(value)


def decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """What `encode` was given, or None if the key is of a kind that this version does not know."""
    try:
        known = _decode_key(key)
    except msgspec.DecodeError:
        return None
    return known.transactional_id, None if value is None else _decode_value(value)
