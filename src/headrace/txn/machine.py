"""All transactional ids of one partition of the transaction topic, as a replicated machine.

Rules (Kafka 4's, KIP-98, KIP-360, KIP-890):
- `decide` and `tick` change the state at once and return a Decision: records to append, an answer and markers that may
  go out only when the records are committed. If they cannot be, the driver throws the machine away and builds a new
  one from the log.
- A transaction ends in this order: a Prepare record is committed; the markers are written to its partitions; a Complete
  record is appended. What was prepared is never unmade: `resume` goes on with it after a restart.
- An epoch never goes back, and no two producers are ever given the same producer id and epoch. With the newer protocol
  the markers carry the epoch after the one that wrote the records, so that nothing late can follow them.
- A producer that is overtaken (a new one under the same transactional id, or its own timeout) is fenced: the epoch is
  bumped in the same record that prepares the abort. No repeated request of the old epoch is accepted after that.
- `replay` of every record of the log, in order, rebuilds the state; so does `replay` of `snapshot`, and so does the log
  followed by any part of a snapshot.
- `due` tells when to call `tick` next. It may be early, never late.
- Pure: time and producer ids come in with the calls; nothing here waits, logs, or knows a file or a socket.

Differs from Kafka: a fence bumps the epoch once, not twice, since requests of fenced epochs are told from repeated ones
by `last_epoch`; InitProducerId with an epoch that is not the present one never aborts what the present one does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.core.errors import ErrorCode
from headrace.txn.commands import (
    NONE,
    AddPartitions,
    Answer,
    Command,
    Decision,
    Describe,
    Description,
    End,
    Identity,
    InitProducer,
    Markers,
    MarkersWritten,
    NeedsProducerId,
    Now,
    Outcome,
    Verified,
    Verify,
)
from headrace.txn.records import EPOCH_LAST, FOLLOWS, IDLE, PREPARED, Record, State, Transaction, decode, encode

if TYPE_CHECKING:
    from headrace.txn.records import TopicPartition
    from headrace.txn.settings import TransactionSettings

NEVER_MS = 2**62


class Transactions:
    """See the module."""

    def __init__(self, settings: TransactionSettings, now: Now) -> None:
        self._settings = settings
        self._known: dict[str, Transaction] = {}
        self._partitions: dict[str, frozenset[TopicPartition]] = {}  # of those that are ongoing
        self._deadlines: dict[str, int] = {}  # likewise
        self._wakes: list[tuple[int, str]] = []  # a heap; entries that `_wake_of` does not confirm are stale
        self._wake_of: dict[str, int] = {}
        self._next_check_ms = now.ms + settings.expiration_check_interval_ms

    # -- the machine ---------------------------------------------------------------------------------------------

    def decide(self, command: Command, now: Now) -> Decision:
        step = _Step(self, command.transactional_id, now)
        answer: Answer
        match command:
            case AddPartitions():
                answer = Outcome(self._add(command, step))
            case Verify():
                return Decision(answer=self._verify(command))
            case InitProducer():
                answer = self._init(command, step)
            case End():
                answer = self._end(command, step)
            case MarkersWritten():
                answer = Outcome(self._complete(command, step))
            case Describe():
                answer = Description(self._known.get(command.transactional_id))
        return step.decision(answer)

    def tick(self, now: Now) -> Decision:
        """Do everything whose time has come: abort what took too long, forget ids that were idle for too long."""
        records: list[Record] = []
        markers: list[Markers] = []
        while self._wakes and self._wakes[0][0] <= now.ms:
            wake_ms, name = heapq.heappop(self._wakes)
            if self._wake_of.get(name) != wake_ms:
                continue
            del self._wake_of[name]
            if self._deadlines.get(name, NEVER_MS) <= now.ms:
                step = _Step(self, name, now)
                self._fence(self._known[name], step)
                records += step.records
                markers += step.markers
            else:
                self._wake(name)
        if self._next_check_ms <= now.ms:
            self._next_check_ms = now.ms + self._settings.expiration_check_interval_ms
            records += self._expire(now)
        return Decision(tuple(records), tuple(markers))

    def due(self) -> int | None:
        """The monotonic time of the next `tick`, or None if nothing is to happen."""
        if not self._known:
            return None
        return min(self._wakes[0][0], self._next_check_ms) if self._wakes else self._next_check_ms

    def replay(self, key: bytes, value: bytes | None, now: Now) -> None:
        """Take in one record of the log."""
        record = decode(key, value)
        if record is not None:
            self._put(*record, now)

    def resume(self, now: Now) -> Decision:
        """After the last `replay`: go on with what was prepared to end."""
        records: list[Record] = []
        markers: list[Markers] = []
        for name, known in list(self._known.items()):
            if known.state in PREPARED:
                step = _Step(self, name, now)
                self._send_markers(known, step)
                records += step.records
                markers += step.markers
        return Decision(tuple(records), tuple(markers))

    def snapshot(self, names: Iterable[str] | None = None) -> Iterator[Record]:
        """The records that rebuild the state (of some ids, or of all)."""
        for name in list(self._known) if names is None else names:
            if (known := self._known.get(name)) is not None:
                yield encode(name, known)

    # -- to be looked at -----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> Transaction | None:
        return self._known.get(name)

    def items(self) -> Iterator[tuple[str, Transaction]]:
        return iter(self._known.items())

    # -- producers -----------------------------------------------------------------------------------------------

    def _init(self, command: InitProducer, step: _Step) -> Answer:
        if not command.transactional_id:
            return Identity(ErrorCode.invalid_request)
        if not 0 < command.timeout_ms <= self._settings.max_timeout_ms:
            return Identity(ErrorCode.invalid_transaction_timeout)
        known, expected, spare_id = self._known.get(command.transactional_id), command.expected, command.spare_id
        if known is None:
            if spare_id is None:
                return NeedsProducerId()
            known = step.put(Transaction(spare_id, 0, State.EMPTY, command.timeout_ms, update_ms=step.now.wall_ms))
            return Identity(NONE, *known.identity)
        if expected is not None and not _may_go_on(known, expected):
            return Identity(ErrorCode.producer_fenced)
        if known.state in PREPARED:
            return Identity(ErrorCode.concurrent_transactions)
        if known.state is State.ONGOING:
            self._fence(known, step)
            return Identity(ErrorCode.concurrent_transactions)
        fresh: dict[str, Any] = {"timeout_ms": command.timeout_ms, "partitions": (), "start_ms": -1}
        if expected is not None and expected != known.identity:
            # A repeated request: the answer to the first one was lost. Nothing was done in between.
            repeated = step.move(known, State.EMPTY, previous_producer_id=known.previous_producer_id, **fresh)
            return Identity(NONE, *repeated.identity)
        last_epoch = -1 if expected is None else known.producer_epoch
        if not known.is_exhausted:
            fresh["producer_epoch"] = known.producer_epoch + 1
        elif spare_id is None:
            return NeedsProducerId()
        else:
            fresh |= {"producer_id": spare_id, "producer_epoch": 0}
        return Identity(NONE, *step.move(known, State.EMPTY, last_epoch=last_epoch, **fresh).identity)

    def _fence(self, known: Transaction, step: _Step) -> None:
        """Abort what is ongoing, under an epoch that nobody is ever told."""
        assert known.producer_epoch <= EPOCH_LAST, "an epoch is kept back for fencing"
        epoch = known.producer_epoch + 1
        prepared = step.move(known, State.PREPARE_ABORT, producer_epoch=epoch, last_epoch=-1, bumped=True)
        self._send_markers(prepared, step)

    # -- partitions ----------------------------------------------------------------------------------------------

    def _add(self, command: AddPartitions, step: _Step) -> ErrorCode:
        name, known = command.transactional_id, self._known.get(command.transactional_id)
        if known is None or (fault := _fault(known, command)) is not NONE:
            return _unknown(name) if known is None else fault
        if known.state in PREPARED:
            return ErrorCode.concurrent_transactions
        if known.state is not State.ONGOING:
            # It knows its epoch: it cannot be repeating the request that gave it this one.
            begun = {"start_ms": step.now.wall_ms, "last_epoch": -1}
            step.move(known, State.ONGOING, partitions=tuple(sorted(set(command.partitions))), **begun)
            return NONE
        present = self._partitions[name]
        if not present.issuperset(command.partitions):
            step.move(known, State.ONGOING, partitions=tuple(sorted(present.union(command.partitions))))
        return NONE

    def _verify(self, command: Verify) -> Verified:
        known = self._known.get(command.transactional_id)
        error = _unknown(command.transactional_id) if known is None else _fault(known, command)
        if known is not None and error is NONE and known.state in PREPARED:
            error = ErrorCode.concurrent_transactions
        if error is not NONE:
            return Verified((error,) * len(command.partitions))
        present = self._partitions.get(command.transactional_id, frozenset())
        return Verified(tuple(NONE if p in present else ErrorCode.transaction_abortable for p in command.partitions))

    # -- the end -------------------------------------------------------------------------------------------------

    def _end(self, command: End, step: _Step) -> Answer:
        known = self._known.get(command.transactional_id)
        if known is None:
            return Identity(_unknown(command.transactional_id))
        repeated = command.bump and _is_repeated_end(known, command)
        if not repeated and (fault := _fault(known, command)) is not NONE:
            return Identity(fault)
        error = _end_fault(known, command, repeated)
        if error is not NONE:
            return Identity(error)
        if repeated or (known.state in IDLE and not command.bump):
            return Identity(NONE, *known.identity)
        state = State.PREPARE_COMMIT if command.commit else State.PREPARE_ABORT
        changes: dict[str, Any] = {"bumped": command.bump}
        if known.state in IDLE:
            changes["start_ms"] = step.now.wall_ms
        if command.bump:
            if known.is_exhausted:
                if command.spare_id is None:
                    return NeedsProducerId()
                changes["next_producer_id"] = command.spare_id
            changes |= {"producer_epoch": known.producer_epoch + 1, "last_epoch": known.producer_epoch}
        prepared = step.move(known, state, **changes)
        self._send_markers(prepared, step)
        return Identity(NONE, *prepared.identity)

    def _send_markers(self, prepared: Transaction, step: _Step) -> None:
        if prepared.partitions:
            commit = prepared.state is State.PREPARE_COMMIT
            step.markers.append(
                Markers(
                    step.name,
                    prepared.producer_id,
                    prepared.producer_epoch,
                    commit,
                    prepared.partitions,
                    prepared.bumped,
                )
            )
        else:
            self._finish(prepared, step)

    def _complete(self, command: MarkersWritten, step: _Step) -> ErrorCode:
        known = self._known.get(command.transactional_id)
        written = (command.producer_id, command.producer_epoch)
        if known is None or known.state not in PREPARED or written != (known.producer_id, known.producer_epoch):
            return ErrorCode.invalid_txn_state  # it was completed before
        self._finish(known, step)
        return NONE

    def _finish(self, prepared: Transaction, step: _Step) -> None:
        commit = prepared.state is State.PREPARE_COMMIT
        producer_id, producer_epoch = prepared.identity
        step.move(
            prepared,
            State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            next_producer_id=-1,
            partitions=(),
        )

    def _expire(self, now: Now) -> Iterator[Record]:
        limit_ms = now.wall_ms - self._settings.id_expiration_ms
        for name, known in list(self._known.items()):
            if known.state in IDLE and known.update_ms <= limit_ms:
                self._put(name, None, now)
                yield encode(name, None)

    # -- small steps ---------------------------------------------------------------------------------------------

    def _put(self, name: str, known: Transaction | None, now: Now) -> None:
        """The one place where the state changes, in operation and on load."""
        before = self._known.pop(name, None)
        if known is not None:
            self._known[name] = known
        if known is None or known.state is not State.ONGOING:
            self._partitions.pop(name, None)
            self._deadlines.pop(name, None)
            return
        self._partitions[name] = frozenset(known.partitions)
        if before is None or before.state is not State.ONGOING or before.start_ms != known.start_ms:
            # Wall time tells how long it has gone on; whatever that clock says, at most the whole timeout is left.
            left_ms = known.start_ms + known.timeout_ms - now.wall_ms
            self._deadlines[name] = now.ms + max(0, min(left_ms, known.timeout_ms))
            self._wake(name)

    def _wake(self, name: str) -> None:
        """See to it that `tick` looks at this id in time."""
        deadline_ms = self._deadlines.get(name, NEVER_MS)
        if deadline_ms < self._wake_of.get(name, NEVER_MS):
            self._wake_of[name] = deadline_ms
            heapq.heappush(self._wakes, (deadline_ms, name))


class _Step:
    """What one decision does to one transactional id."""

    __slots__ = ("_machine", "markers", "name", "now", "records")

    def __init__(self, machine: Transactions, name: str, now: Now) -> None:
        self._machine = machine
        self.name = name
        self.now = now
        self.records: list[Record] = []
        self.markers: list[Markers] = []

    def put(self, transaction: Transaction) -> Transaction:
        self.records.append(encode(self.name, transaction))
        self._machine._put(self.name, transaction, self.now)
        return transaction

    def move(self, known: Transaction, state: State, **changes: Any) -> Transaction:
        assert known.state in FOLLOWS[state], f"{self.name}: {state.title} cannot follow {known.state.title}"
        changes = {"previous_producer_id": known.producer_id, "update_ms": self.now.wall_ms, **changes}
        return self.put(replace(known, state=state, **changes))

    def decision(self, answer: Answer) -> Decision:
        return Decision(tuple(self.records), tuple(self.markers), answer)


def _unknown(transactional_id: str) -> ErrorCode:
    return ErrorCode.invalid_producer_id_mapping if transactional_id else ErrorCode.invalid_request


def _fault(known: Transaction, command: AddPartitions | Verify | End) -> ErrorCode:
    """Why this is not the producer of today, or none."""
    producer_id, producer_epoch = known.identity
    if command.producer_id != producer_id:
        return ErrorCode.invalid_producer_id_mapping
    is_own = command.producer_epoch == producer_epoch and producer_epoch <= EPOCH_LAST
    return NONE if is_own else ErrorCode.producer_fenced


def _may_go_on(known: Transaction, expected: tuple[int, int]) -> bool:
    """Whether a producer that has `expected` is the one of today, or was it one request ago (KIP-360)."""
    producer_id, producer_epoch = expected
    if expected == known.identity:
        return True
    if producer_id == known.producer_id:
        return known.state in PREPARED or producer_epoch == known.last_epoch >= 0
    return producer_id == known.previous_producer_id and producer_epoch == known.last_epoch >= EPOCH_LAST


def _is_repeated_end(known: Transaction, command: End) -> bool:
    """Whether the producer repeats an EndTxn whose answer it did not get: it does not know its new epoch yet."""
    if not known.bumped or known.state not in PREPARED | {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}:
        return False
    if command.producer_epoch != known.last_epoch or known.last_epoch < 0:
        return False
    if command.producer_id == known.producer_id:
        return command.producer_epoch + 1 == known.producer_epoch
    return command.producer_id == known.previous_producer_id and known.producer_epoch == 0


def _end_fault(known: Transaction, command: End, repeated: bool) -> ErrorCode:
    """Why a transaction in this state cannot end this way, or none. The producer is the right one."""
    bad = ErrorCode.invalid_txn_state
    match known.state:
        case State.ONGOING:
            return NONE
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            is_same = command.commit == (known.state is State.PREPARE_COMMIT)
            if command.bump and not repeated:
                return ErrorCode.concurrent_transactions if not command.commit else bad
            return ErrorCode.concurrent_transactions if is_same else bad
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT:
            is_same = command.commit == (known.state is State.COMPLETE_COMMIT)
            if repeated or not command.bump:
                return NONE if is_same else bad
    # Idle: the newer protocol lets a producer abort when nothing is ongoing; there is nothing to commit.
    return NONE if command.bump and not command.commit else bad
