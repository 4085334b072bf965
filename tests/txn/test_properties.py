"""Random histories of producers, zombies among them, against a coordinator and partitions that keep a simple model.

Answers get lost, requests arrive late or twice, markers are written one by one and again after a restart, time ends.
Whatever happens: a transaction is committed whole or not at all, and as its producer was told; no two producers are
given the same epoch; every transaction ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from txn_stage import SETTINGS, TIMEOUT_MS, WALL, Stage, Who, reload

from headrace.txn.commands import Markers, MarkersWritten
from headrace.txn.records import EPOCH_LAST, EPOCH_MAX, IDLE, State, Transaction

PARTITIONS = 3
Label = tuple[int, int]  # producer instance, number of its transaction


@dataclass
class Partition:
    """What a partition makes of batches and markers: epochs only grow, a marker closes what is open."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Label]] = field(default_factory=dict)
    outcomes: list[tuple[Label, bool]] = field(default_factory=list)

    def append(self, who: Who, label: Label) -> bool:
        producer_id, epoch = who
        if epoch < self.epochs.get(producer_id, -1):
            return False
        self.epochs[producer_id] = epoch
        self.open.setdefault(producer_id, []).append(label)
        return True

    def mark(self, markers: Markers) -> None:
        if markers.producer_epoch >= self.epochs.get(markers.producer_id, -1):
            self.epochs[markers.producer_id] = markers.producer_epoch
            for label in self.open.pop(markers.producer_id, []):
                self.outcomes.append((label, markers.commit))


@dataclass
class Producer:
    """One instance of a client, with a memory of its own."""

    number: int
    bump: bool
    who: Who | None = None
    transaction: int = 0
    partitions: set[int] = field(default_factory=set)
    ending: str | None = None  # an end whose answer did not come
    late: list[tuple[Who, Label, int]] = field(default_factory=list)
    acknowledged: dict[Label, set[int]] = field(default_factory=dict)

    @property
    def label(self) -> Label:
        return self.number, self.transaction

    def next(self) -> None:
        self.transaction += 1
        self.partitions = set()
        self.ending = None


WHICH = st.sampled_from([0, 0, 0, 1, 1, 2])  # the newest first
PLACE = st.integers(0, PARTITIONS - 1)
HOW = st.sampled_from(["commit", "abort"])


class History(RuleBasedStateMachine):
    @initialize(epoch=st.sampled_from([0, 0, EPOCH_LAST - 3, EPOCH_LAST - 1]), bump=st.booleans())
    def begin(self, epoch: int, bump: bool) -> None:
        self.stage = Stage()
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.producers: list[Producer] = []
        self.told: dict[Who, int] = {}
        self.committed: dict[Label, set[int]] = {}
        self.aborted: set[Label] = set()
        self.pending: dict[int, set[tuple[str, int]]] = {}  # markers, by their place in the stage -> written so far
        self.newest: Who = (-1, -1)
        if epoch:
            self.stage.given(Transaction(5, epoch, State.EMPTY, TIMEOUT_MS, update_ms=WALL))
        self.come(bump, False)

    def _one(self, which: int) -> Producer:
        return self.producers[-1 - which % len(self.producers)]

    def _learn(self, producer: Producer, said: str, lost: bool) -> bool:
        """Take an answer with an identity; False if it is an error."""
        if "/" not in said:
            return False
        producer_id, _, epoch = said.partition("/")
        who = (int(producer_id), int(epoch))
        assert who[1] < EPOCH_MAX, "the epoch for fencing is never given away"
        assert self.told.setdefault(who, producer.number) == producer.number, "two producers with one epoch"
        if not lost:
            producer.who = who
        return not lost

    # -- producers

    @rule(bump=st.booleans(), patient=st.booleans())
    def come(self, bump: bool, patient: bool) -> None:
        """A new instance under the same transactional id. The others become zombies and do not know it."""
        if len(self.producers) == 4:
            return
        self.producers.append(Producer(len(self.producers), bump))
        self.init(0, False, False)
        if patient:
            self.markers_are_written()
            self.init(0, False, False)

    @rule(which=WHICH, lost=st.booleans(), again=st.booleans())
    def init(self, which: int, lost: bool, again: bool) -> None:
        producer = self._one(which)
        if producer.who is not None and producer.partitions:
            return  # a healthy client ends its transaction first
        said = self.stage.init(producer.who)
        if again and self._learn(producer, said, True):
            said = self.stage.init(producer.who)
        if self._learn(producer, said, lost):
            producer.next()

    @rule(which=WHICH, place=PLACE, late=st.booleans())
    def produce(self, which: int, place: int, late: bool) -> None:
        producer = self._one(which)
        if producer.who is None or producer.ending is not None:
            return
        if not producer.bump:
            if self.stage.add(producer.who, place) != "ok":
                return
            producer.partitions.add(place)
        if late:
            producer.late.append((producer.who, producer.label, place))
        else:
            self._arrive(producer, producer.who, producer.label, place)

    def _arrive(self, producer: Producer, who: Who, label: Label, place: int) -> None:
        """Produce: register or verify, and append in the same step."""
        if producer.bump and self.stage.add(who, place) != "ok":
            return
        if self.stage.verify(who, place) == "ok" and self.partitions[place].append(who, label):
            producer.acknowledged.setdefault(label, set()).add(place)
            if label == producer.label:
                producer.partitions.add(place)

    @rule(which=WHICH)
    def deliver(self, which: int) -> None:
        """A request arrives that was on its way for long."""
        producer = self._one(which)
        if not producer.late:
            return
        who, label, place = producer.late.pop(0)
        if not producer.bump and label != producer.label and place in producer.partitions:
            return  # of the older protocol: only sequence numbers help, and they are not in this model
        if label in self.committed or label in self.aborted:
            before = {known: set(places) for known, places in producer.acknowledged.items()}
            self._arrive(producer, who, label, place)
            assert producer.acknowledged == before, "nothing joins a transaction that its producer has ended"
        else:
            self._arrive(producer, who, label, place)

    @rule(which=WHICH, how=HOW, lost=st.booleans(), twice=st.booleans(), quick=st.booleans())
    def end(self, which: int, how: str, lost: bool, twice: bool, quick: bool) -> None:
        producer = self._one(which)
        if producer.who is None or not (producer.partitions or producer.ending):
            return
        how = producer.ending or how
        label, acknowledged = producer.label, set(producer.acknowledged.get(producer.label, ()))
        said = self.stage.end(producer.who, how, bump=producer.bump)
        if twice:
            again = self.stage.end(producer.who, how, bump=producer.bump)
            assert again == said or "/" not in again or said == "concurrent_transactions"
        if "/" in said and how == "commit":
            self.committed.setdefault(label, set()).update(acknowledged)
        elif "/" in said:
            self.aborted.add(label)
        if self._learn(producer, said, lost):
            producer.next()
        elif lost or said == "concurrent_transactions":
            producer.ending = how
        else:
            producer.ending = None  # fenced: it will try again, and fail, with its old epoch
        if quick:
            self.markers_are_written()

    @rule(which=WHICH, how=HOW, back=st.integers(1, 3), bump=st.booleans())
    def an_old_end_arrives(self, which: int, how: str, back: int, bump: bool) -> None:
        producer = self._one(which)
        if producer.who is not None and not producer.ending:
            state = self.stage.state()
            said = self.stage.end((producer.who[0], producer.who[1] - back), how, bump=bump)
            assert self.stage.state() == state, "an old epoch ends nothing"
            self._learn(producer, said, True)

    # -- the coordinator

    @rule(place=PLACE)
    def a_marker_is_written(self, place: int) -> None:
        for at, markers in enumerate(self.stage.markers):
            written = self.pending.setdefault(at, set())
            if (target := ("a", place)) in markers.partitions:
                self.partitions[place].mark(markers)
                written.add(target)

    @rule()
    def markers_are_written(self) -> None:
        for place in range(PARTITIONS):
            self.a_marker_is_written(place)
        done = [m for at, m in enumerate(self.stage.markers) if self.pending.get(at) == set(m.partitions)]
        self.stage.markers = [m for m in self.stage.markers if m not in done]
        self.pending = {}
        for markers in done:
            who = {"producer_id": markers.producer_id, "producer_epoch": markers.producer_epoch}
            self.stage.ask(MarkersWritten(transactional_id="t", **who))

    @rule(ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS, TIMEOUT_MS]), quick=st.booleans())
    def wait(self, ms: int, quick: bool) -> None:
        self.stage.wait(ms)
        if quick:
            self.markers_are_written()

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.pending = {}

    # -- promises

    @invariant()
    def transactions_are_whole_and_end_as_was_told(self) -> None:
        fate: dict[Label, bool] = {}
        for partition in getattr(self, "partitions", ()):
            for label, commit in partition.outcomes:
                assert fate.setdefault(label, commit) == commit, f"transaction {label} is torn"
        for label in getattr(self, "committed", ()):
            assert fate.get(label, True), f"{label} was told to be committed"
        for label in getattr(self, "aborted", ()):
            assert not fate.get(label, False), f"{label} was told to be aborted"

    @invariant()
    def epochs_do_not_go_back(self) -> None:
        known = self.stage.machine.get("t") if hasattr(self, "stage") else None
        if known is not None:
            who = (known.producer_id, known.producer_epoch)
            assert who >= self.newest
            self.newest = who

    @invariant()
    def the_log_and_a_snapshot_rebuild_the_state(self) -> None:
        if hasattr(self, "stage"):
            whole = list(self.stage.machine.snapshot())
            assert list(reload(self.stage.log, SETTINGS, self.stage.now).snapshot()) == whole
            assert list(reload(whole, SETTINGS, self.stage.now).snapshot()) == whole

    @invariant()
    def the_machine_wakes_in_time(self) -> None:
        known: Any = self.stage.machine.get("t") if hasattr(self, "stage") else None
        if known is not None and known.state is State.ONGOING:
            due = self.stage.machine.due()
            assert due is not None
            assert due <= self.stage.now.ms + known.timeout_ms

    def teardown(self) -> None:
        """When all clients fall silent, every transaction ends, and what was told to be committed is there."""
        if not hasattr(self, "stage"):
            return
        self.stage.wait(TIMEOUT_MS)
        self.markers_are_written()
        known = self.stage.machine.get("t")
        assert known is None or known.state in IDLE
        assert not self.stage.markers
        assert not any(partition.open for partition in self.partitions), "the last stable offset moves on"
        self.transactions_are_whole_and_end_as_was_told()
        for label, places in self.committed.items():
            for place in places:
                assert (label, True) in self.partitions[place].outcomes


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=300, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
