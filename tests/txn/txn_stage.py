"""A stage for scenarios: commands by short verbs, answers as short text."""

from __future__ import annotations

from itertools import count
from typing import Any

from headrace.txn.commands import (
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
from headrace.txn.machine import Transactions
from headrace.txn.records import Record, Transaction, encode
from headrace.txn.settings import TransactionSettings

SETTINGS = TransactionSettings()
WALL = 1_700_000_000_000
TIMEOUT_MS = 60_000
Who = tuple[int, int]


class Stage:
    """One machine, its log, the markers that it asked for, and producer ids from 1000 on."""

    def __init__(self, settings: TransactionSettings = SETTINGS) -> None:
        self.settings = settings
        self.now = Now(0, WALL)
        self.machine = Transactions(settings, self.now)
        self.log: list[Record] = []
        self.markers: list[Markers] = []  # still to be written
        self._ids = count(1000)

    # -- the machine

    def take(self, decision: Decision) -> Answer:
        self.log.extend(decision.records)
        self.markers.extend(decision.markers)
        return decision.answer

    def ask(self, command: Command) -> Answer:
        answer = self.take(self.machine.decide(command, self.now))
        if isinstance(answer, NeedsProducerId):
            assert isinstance(command, InitProducer | End)
            fields = {name: getattr(command, name) for name in command.__struct_fields__}
            answer = self.take(self.machine.decide(type(command)(**{**fields, "spare_id": next(self._ids)}), self.now))
            assert not isinstance(answer, NeedsProducerId)
        return answer

    def wait(self, ms: int) -> None:
        """Let time pass, and call `tick` exactly when it is due."""
        end = self.now.ms + ms
        while (due := self.machine.due()) is not None and due <= end:
            self.now = Now(max(due, self.now.ms), self.now.wall_ms + max(due - self.now.ms, 0))
            self.take(self.machine.tick(self.now))
        self.now = Now(end, self.now.wall_ms + end - self.now.ms)

    def restart(self) -> None:
        """A new machine from the log; what was prepared is taken up again."""
        self.machine = reload(self.log, self.settings, self.now)
        self.markers = []
        self.take(self.machine.resume(self.now))

    def given(self, transaction: Transaction, name: str = "t") -> None:
        """Begin with this."""
        self.log.append(encode(name, transaction))
        self.restart()

    # -- verbs

    def init(self, expected: Who | None = None, *, name: str = "t", timeout_ms: int = TIMEOUT_MS) -> str:
        return said(self.ask(InitProducer(transactional_id=name, timeout_ms=timeout_ms, expected=expected)))

    def add(self, who: Who, *partitions: int, name: str = "t") -> str:
        wanted = tuple(("a", p) for p in partitions)
        return said(
            self.ask(AddPartitions(transactional_id=name, producer_id=who[0], producer_epoch=who[1], partitions=wanted))
        )

    def verify(self, who: Who, *partitions: int, name: str = "t") -> str:
        wanted = tuple(("a", p) for p in partitions)
        return said(
            self.ask(Verify(transactional_id=name, producer_id=who[0], producer_epoch=who[1], partitions=wanted))
        )

    def end(self, who: Who, how: str, *, bump: bool = True, name: str = "t") -> str:
        assert how in ("commit", "abort")
        return said(
            self.ask(
                End(
                    transactional_id=name,
                    producer_id=who[0],
                    producer_epoch=who[1],
                    commit=how == "commit",
                    bump=bump,
                )
            )
        )

    def written(self) -> list[str]:
        """Write all markers that wait, and say so to the machine; the markers as text."""
        markers, self.markers = self.markers, []
        for item in markers:
            self.ask(
                MarkersWritten(
                    transactional_id=item.transactional_id,
                    producer_id=item.producer_id,
                    producer_epoch=item.producer_epoch,
                )
            )
        return [shown(item) for item in markers]

    def state(self, name: str = "t") -> str:
        answer = self.ask(Describe(transactional_id=name))
        assert isinstance(answer, Description)
        known = answer.transaction
        if known is None:
            return "unknown"
        partitions = ",".join(f"{topic}-{partition}" for topic, partition in known.partitions)
        return f"{known.state.title} {known.producer_id}/{known.producer_epoch} {partitions}".strip()


def shown(markers: Markers) -> str:
    how = "commit" if markers.commit else "abort"
    partitions = ",".join(f"{topic}-{partition}" for topic, partition in markers.partitions)
    return f"{how} {markers.producer_id}/{markers.producer_epoch} in {partitions}"


def said(answer: Any) -> str:
    """An answer as short text."""
    match answer:
        case Identity(error=error) if error:
            return error.name
        case Identity():
            return f"{answer.producer_id}/{answer.producer_epoch}"
        case Outcome():
            return "ok" if not answer.error else answer.error.name
        case Verified():
            return " ".join("ok" if not error else error.name for error in answer.errors)
    return repr(answer)


def reload(log: list[Record], settings: TransactionSettings, now: Now) -> Transactions:
    machine = Transactions(settings, now)
    for key, value in log:
        machine.replay(key, value, now)
    return machine
