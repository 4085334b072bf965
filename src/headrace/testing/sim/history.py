"""What clients did and saw: the only thing that most oracles look at.

Rules:
- A value is unique in the whole history and names its origin: nobody has to guess which record is which.
- Facts are noted when they are known: an acknowledgement when it has arrived, a request before it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace.testing.sim.clients import Partition

Fate = Literal["acknowledged", "unknown", "refused"]
Verdict = Literal["committed", "aborted", "unknown"]


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(slots=True)
class Sent:
    """A record that a producer has sent."""

    value: bytes
    partition: Partition
    producer: str
    number: int  # of this producer in this partition: they must appear in this order
    fate: Fate = "unknown"
    offset: int = -1
    transaction: Transaction | None = None


@dataclass(slots=True)
class Transaction:
    name: str
    values: list[bytes] = field(default_factory=list)
    verdict: Verdict = "unknown"


class History:
    """See the module. Readers are checked as they read."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.transactions: list[Transaction] = []
        self.seen: dict[tuple[Partition, int], bytes | None] = {}  # by place: what anybody ever read there
        self.commits: dict[tuple[str, Partition], int] = {}  # highest acknowledged commit of a group
        self.facts: dict[str, int] = {}  # how often what happened, for a look at whether anything happened at all

    def count(self, what: str, number: int = 1) -> None:
        self.facts[what] = self.facts.get(what, 0) + number

    # -- producers

    def send(self, record: Sent) -> None:
        assert record.value not in self.sent, "values are unique"
        self.sent[record.value] = record

    def acknowledge(self, record: Sent, offset: int) -> None:
        record.fate, record.offset = "acknowledged", offset
        self.count("acknowledged")
        if offset >= 0:
            self.read(record.partition, offset, record.value, by=f"the acknowledgement of {record.producer}")

    # -- readers

    def read(self, partition: Partition, offset: int, value: bytes | None, *, by: str) -> None:
        """A record was seen at a place: it must be one that was sent, the same for everybody and for ever."""
        if value is not None and value not in self.sent:
            raise Violation(f"{by} found {value!r} at {partition} {offset}, which nobody has sent")
        before = self.seen.setdefault((partition, offset), value)
        if before != value:
            raise Violation(f"{by} found {value!r} at {partition} {offset}, where {before!r} was before")

    def committed(self, group: str, partition: Partition, offset: int) -> None:
        """A commit was acknowledged."""
        key = (group, partition)
        self.commits[key] = max(offset, self.commits.get(key, -1))
        self.count("commits")

    def resumed(self, group: str, partition: Partition, offset: int, at_least: int) -> None:
        """Somebody was told where a group stands; `at_least` was acknowledged before it asked."""
        if offset < at_least:
            raise Violation(f"group {group} stands at {offset} of {partition}, and {at_least} was committed")

    # -- at the end

    def check_log(self, partition: Partition, records: Sequence[tuple[int, bytes | None]], *, committed: bool) -> None:
        """`records`: everything that a reader of the whole partition gets."""
        last: dict[str, int] = {}
        places: dict[bytes, int] = {}
        for offset, value in records:
            self.read(partition, offset, value, by="the final reader")
            if value is None:
                continue
            sent = self.sent.get(value)
            if sent is None:
                raise Violation(f"{partition} {offset} holds {value!r}, which nobody has sent")
            if sent.partition != partition:
                raise Violation(f"{value!r} lies in {partition} and was sent to {sent.partition}")
            if value in places:
                raise Violation(f"{value!r} is in {partition} at {places[value]} and again at {offset}")
            places[value] = offset
            if sent.number <= last.get(sent.producer, -1):
                raise Violation(f"{value!r} at {partition} {offset} comes after number {last[sent.producer]}")
            last[sent.producer] = sent.number
            if sent.fate == "refused":
                raise Violation(f"{value!r} at {partition} {offset} was refused")
            if committed and sent.transaction is not None and sent.transaction.verdict == "aborted":
                raise Violation(f"{value!r} of the aborted {sent.transaction.name} was read at {partition} {offset}")
        for sent in self.sent.values():
            if sent.partition != partition or sent.value in places:
                continue
            owed = sent.transaction.verdict == "committed" if sent.transaction else sent.fate == "acknowledged"
            if owed:
                raise Violation(f"{sent.value!r} was acknowledged at {partition} {sent.offset} and is lost")
        self.count("records", len(records))

    def check_transactions(self, visible: dict[bytes, tuple[Partition, int]]) -> None:
        """All or nothing, whatever is known about the outcome."""
        for transaction in self.transactions:
            there = [value for value in transaction.values if value in visible]
            if there and len(there) != len(transaction.values):
                missing = [value for value in transaction.values if value not in visible]
                raise Violation(f"{transaction.name} is torn: {there} are there and {missing} are not")
            if transaction.verdict == "committed" and transaction.values and not there:
                raise Violation(f"{transaction.name} was committed and is not there")
