"""What may be asked of the transactions, and what they answer.

Rules:
- A command carries everything that its decision needs; what depends on a request's version comes in as a named fact.
- Every command has one answer, in the same decision. Nobody waits inside the machine.
- A producer id is drawn outside: a command that needs one and has none is answered with NeedsProducerId, changes
  nothing, and is to be put again with one.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.core.errors import ErrorCode
from headrace.txn.records import Record, TopicPartition, Transaction

NONE = ErrorCode.none


class Now(NamedTuple):
    """Two clocks: `ms` is monotonic, for timeouts; `wall_ms` dates what is written and tells idle ids."""

    ms: int
    wall_ms: int


class InitProducer(msgspec.Struct, frozen=True, kw_only=True):
    """`expected`: the producer id and epoch that the producer has and wants to go on from (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    spare_id: int | None = None


class AddPartitions(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class Verify(msgspec.Struct, frozen=True, kw_only=True):
    """Are these partitions in the producer's transaction?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """`bump`: the producer speaks the newer protocol (EndTxn 5): every end gives it a new epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    bump: bool
    spare_id: int | None = None


class MarkersWritten(msgspec.Struct, frozen=True, kw_only=True):
    """The markers of a prepared transaction are in all its partitions, to stay."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Describe(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str


Command = InitProducer | AddPartitions | Verify | End | MarkersWritten | Describe


class Outcome(msgspec.Struct, frozen=True):
    """Done, or why not. Answers AddPartitions and MarkersWritten."""

    error: ErrorCode = NONE


class Identity(msgspec.Struct, frozen=True):
    """Answers InitProducer and End: what the producer is to call itself from now on."""

    error: ErrorCode = NONE
    producer_id: int = -1
    producer_epoch: int = -1


class Verified(msgspec.Struct, frozen=True):
    """Answers Verify. `errors`: in the order of the partitions."""

    errors: tuple[ErrorCode, ...]


class Description(msgspec.Struct, frozen=True):
    """Answers Describe."""

    transaction: Transaction | None


class NeedsProducerId(msgspec.Struct, frozen=True):
    """Put the command again, with a spare producer id."""


Answer = Outcome | Identity | Verified | Description | NeedsProducerId


class Markers(msgspec.Struct, frozen=True):
    """Markers to write, and MarkersWritten to say when they are written.

    `bumped`: the epoch is higher than that of the records that they end.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    bumped: bool = False


class Decision(NamedTuple):
    """Append `records`; when they and all that was decided before on the same transactional id are committed, send the
    answer and write `markers`."""

    records: tuple[Record, ...] = ()
    markers: tuple[Markers, ...] = ()
    answer: Answer = Outcome()
