"""Offsets within transactions: pending until the end, and never newer than what was written after them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ErrorCode
from headrace.group.commands import (
    Commit,
    Decision,
    Delete,
    DeleteOffsets,
    Fetch,
    FetchAnswer,
    ForgetTopics,
    Now,
    OffsetToCommit,
    Outcome,
    PartitionErrors,
)
from headrace.group.machine import Groups
from headrace.group.records import OffsetCommit, Record, decode
from headrace.group.settings import GroupSettings

SETTINGS = replace(GroupSettings(), offsets_retention_ms=60_000, offsets_check_interval_ms=1)
Entry = tuple[tuple[int, int] | None, Record] | tuple[int, bool]  # a record, or a marker


@dataclass
class Stage:
    """A machine and the log that it writes."""

    machine: Groups = field(default_factory=lambda: Groups(SETTINGS, Now(0, 0)))
    log: list[Entry] = field(default_factory=list)
    now: Now = Now(0, 0)

    def act(self, decision: Decision) -> object:
        self.log += [(decision.producer, record) for record in decision.records]
        return decision.answers[0][1] if decision.answers else None

    def commit(self, offset: int, *producer: int, partition: int = 0, group: str = "g", topic: str = "t") -> ErrorCode:
        self.now = Now(self.now.ms + 1, self.now.wall_ms + 1)
        command = Commit(
            token=1,
            group=group,
            offsets=(OffsetToCommit(topic, partition, offset, metadata=f"m{offset}"),),
            producer=(producer[0], producer[1] if len(producer) > 1 else 0) if producer else None,
        )
        answer = self.act(self.machine.decide(command, self.now))
        assert isinstance(answer, PartitionErrors)
        return answer.errors[0]

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.log.append((producer_id, commit))
        self.machine.end_transaction(producer_id, commit=commit, now=self.now)

    def fetch(self, partition: int = 0, group: str = "g", machine: Groups | None = None) -> tuple[int, bool]:
        """(offset, whether it may change)."""
        command = Fetch(token=1, group=group, partitions=(("t", partition),))
        (_, answer) = (machine or self.machine).decide(command, self.now).answers[0]
        assert isinstance(answer, FetchAnswer)
        return answer.offsets[0].offset, answer.offsets[0].unstable

    def delete(self, group: str = "g") -> ErrorCode:
        answer = self.act(self.machine.decide(Delete(token=1, group=group), self.now))
        assert isinstance(answer, Outcome)
        return answer.error

    def rewriting(self) -> list[Entry]:
        """What compaction appends."""
        found: list[Entry] = []
        for name in self.machine.names():
            found += [(None, record) for record in self.machine.snapshot((name,))]
            found += [(producer, record) for producer, records in self.machine.pending(name) for record in records]
        return found


def loaded(log: list[Entry], now: Now) -> Groups:
    machine = Groups(SETTINGS, now)
    for entry in log:
        if isinstance(entry[1], bool):
            assert isinstance(entry[0], int)
            machine.end_transaction(entry[0], commit=entry[1], now=now)
        elif entry[0] is None:
            machine.replay(*entry[1], now)
        else:
            assert isinstance(entry[0], tuple)
            machine.replay_pending(entry[0], *entry[1], now)
    return machine


def test_a_pending_offset_takes_effect_with_the_commit() -> None:
    stage = Stage()
    stage.commit(5)
    assert stage.commit(9, 7) is ErrorCode.none
    assert stage.fetch() == (5, True)
    stage.end(7, commit=True)
    assert stage.fetch() == (9, False)


def test_a_pending_offset_is_dropped_by_an_abort() -> None:
    stage = Stage()
    stage.commit(9, 7)
    assert stage.fetch() == (-1, True)
    stage.end(7, commit=False)
    assert stage.fetch() == (-1, False)
    assert stage.machine.names() == []


def test_a_marker_ends_only_its_own_producers_offsets() -> None:
    stage = Stage()
    stage.commit(1, 7)
    stage.commit(2, 8, partition=1)
    stage.end(8, commit=True)
    assert (stage.fetch(0), stage.fetch(1)) == ((-1, True), (2, False))


def test_of_two_commits_the_later_one_counts_whatever_ends_first() -> None:
    stage = Stage()
    stage.commit(9, 7)
    stage.commit(5)
    stage.end(7, commit=True)
    assert stage.fetch() == (5, False)
    stage.commit(1, 7)
    stage.commit(2, 8)
    stage.end(8, commit=True)
    stage.end(7, commit=True)
    assert stage.fetch() == (2, False)


def test_a_group_with_nothing_but_pending_offsets_is_a_group() -> None:
    stage = Stage()
    stage.commit(9, 7)
    assert stage.machine.names() == ["g"]
    assert loaded(stage.log, stage.now).names() == ["g"]


def test_a_deleted_group_loses_what_was_pending() -> None:
    stage = Stage()
    stage.commit(5)
    stage.commit(9, 7)
    stage.commit(3, 7, partition=1)
    assert stage.delete() is ErrorCode.none
    stage.end(7, commit=True)
    for machine in (stage.machine, loaded(stage.log, stage.now)):
        assert stage.fetch(machine=machine) == stage.fetch(1, machine=machine) == (-1, False)
        assert machine.names() == []


def test_deleted_offsets_and_topics_lose_what_was_pending() -> None:
    stage = Stage()
    stage.commit(9, 7)
    stage.act(stage.machine.decide(DeleteOffsets(token=1, group="g", partitions=(("t", 0),)), stage.now))
    stage.end(7, commit=True)
    assert stage.fetch() == (-1, False)
    stage.commit(9, 7)
    stage.act(stage.machine.decide(ForgetTopics(token=1, topics=frozenset({"t"})), stage.now))
    stage.end(7, commit=True)
    for machine in (stage.machine, loaded(stage.log, stage.now)):
        assert stage.fetch(machine=machine) == (-1, False)


def test_offsets_do_not_expire_while_a_transaction_may_change_them() -> None:
    stage = Stage()
    stage.commit(5)
    stage.commit(9, 7)
    later = Now(10**6, 10**6)
    stage.act(stage.machine.tick(later))
    assert stage.fetch() == (5, True)
    stage.end(7, commit=False)
    stage.act(stage.machine.tick(Now(10**7, 10**7)))
    assert stage.fetch() == (-1, False)


def test_groups_with_a_kept_prefix_never_expire() -> None:
    stage = Stage()
    for group in ("headrace-spark-1", "other"):
        stage.commit(5, group=group)
    stage.act(stage.machine.tick(Now(10**12, 10**12)))
    assert stage.machine.names() == ["headrace-spark-1"]
    assert stage.fetch(group="headrace-spark-1") == (5, False)


def test_a_commit_without_member_works_within_a_transaction_and_keeps_its_text() -> None:
    stage = Stage()
    assert stage.commit(5, 7) is ErrorCode.none
    stage.end(7, commit=True)
    answer = stage.machine.decide(Fetch(token=1, group="g", partitions=None), stage.now).answers[0][1]
    assert isinstance(answer, FetchAnswer)
    assert [(one.offset, one.metadata) for one in answer.offsets] == [(5, "m5")]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("pending"), st.integers(0, 1), st.integers(7, 9)),
        st.tuples(st.just("commit"), st.just(0), st.integers(7, 9)),
        st.tuples(st.just("abort"), st.just(0), st.integers(7, 9)),
        st.tuples(st.just("delete"), st.just(0), st.just(0)),
        st.tuples(st.just("rewrite"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@dataclass
class Model:
    """Kafka's rule: a pending offset takes effect if it was written after the committed one."""

    committed: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition -> (when written, offset)
    pending: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # (producer, partition) -> the same

    def end(self, producer_id: int, commit: bool) -> None:
        for who, partition in [key for key in self.pending if key[0] == producer_id]:
            written = self.pending.pop((who, partition))
            if commit and written > self.committed.get(partition, (-1, -1)):
                self.committed[partition] = written

    def offset(self, partition: int) -> int:
        return self.committed.get(partition, (-1, -1))[1]


@given(steps=STEPS, data=st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_happens_offsets_are_kafkas_and_so_after_every_restart(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    stage, model = Stage(), Model()
    for number, (what, partition, producer_id) in enumerate(steps):
        match what:
            case "plain":
                stage.commit(number, partition=partition)
                model.committed[partition] = (number, number)
            case "pending":
                stage.commit(number, producer_id, partition=partition)
                model.pending[producer_id, partition] = (number, number)
            case "commit" | "abort":
                stage.end(producer_id, commit=what == "commit")
                model.end(producer_id, what == "commit")
            case "delete":
                stage.delete()
                model = Model()
            case "rewrite":  # a part of it may reach the log before a crash; all of it lets go of what was before
                again = stage.rewriting()
                part = data.draw(st.integers(0, len(again)))
                stage.log = again if part == len(again) else [*stage.log, *again[:part]]
                stage.machine = loaded(stage.log, stage.now)
        for machine in (stage.machine, loaded(stage.log, stage.now)):
            for at in (0, 1):
                assert stage.fetch(at, machine=machine)[0] == model.offset(at)
    for producer_id in (7, 8, 9):
        stage.end(producer_id, commit=True)
        model.end(producer_id, True)
        for machine in (stage.machine, loaded(stage.log, stage.now)):
            assert [stage.fetch(at, machine=machine)[0] for at in (0, 1)] == [model.offset(0), model.offset(1)]
    assert not stage.fetch(0)[1]
    assert not stage.fetch(1)[1]


def test_what_is_pending_is_written_again_in_its_order() -> None:
    stage = Stage()
    stage.commit(1, 7)
    stage.commit(2, 8)
    stage.commit(3, 7, partition=1)
    batches = list(stage.machine.pending("g"))
    assert [producer for producer, _ in batches] == [(7, 0), (8, 0), (7, 0)]
    found = [decode(*record) for _, records in batches for record in records]
    assert [one[1].offset for one in found if one is not None and isinstance(one[1], OffsetCommit)] == [
        1,
        2,
        3,
    ]
