"""A log with transactions against lists: a reader of committed records gets exactly those, in order, always."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.storage.log import Log
from headrace.storage.memory import MemoryFiles
from headrace.storage.snapshots import ABORTED
from headrace.storage.topic_config import TopicConfig
from headrace.storage.transactions import Marker, append_marker
from headrace.testing.logs import append, make_batch, sync
from headrace.testing.transactions import make_transactional, read_committed

PATH = "topics/orders-0"
IDLE = -1


@dataclass
class Writer:
    producer_id: int
    epoch: int = 0
    sequence: int = 0
    first_offset: int = IDLE
    offsets: list[int] = field(default_factory=list)  # of the transaction that is open


class CommittedReader(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.writers = [Writer(producer_id) for producer_id in (1, 2, 3)]
        self.records: dict[int, bytes] = {}  # everything that is not a marker, by offset
        self.hidden: set[int] = set()  # offsets that are aborted
        self.number = 0

    @initialize(segment_bytes=st.sampled_from((250, 700, 1 << 30)), interval_bytes=st.sampled_from((0, 300)))
    def begin(self, segment_bytes: int, interval_bytes: int) -> None:
        self.config = replace(TopicConfig(), segment_bytes=segment_bytes, index_interval_bytes=interval_bytes)
        self.open()

    def open(self) -> None:
        self.log = Log.open(self.files, PATH, self.config, now_ms=1)

    def fresh(self, count: int) -> list[bytes]:
        self.number += 1
        return [b"%d.%d" % (self.number, place) for place in range(count)]

    @rule(who=st.integers(0, 2), count=st.integers(1, 3))
    def write(self, who: int, count: int) -> None:
        writer, values = self.writers[who], self.fresh(count)
        data = make_transactional(values, producer_id=writer.producer_id, epoch=writer.epoch, sequence=writer.sequence)
        base_offset = append(self.log, data).base_offset
        writer.sequence += count
        if writer.first_offset == IDLE:
            writer.first_offset = base_offset
        for delta, value in enumerate(values):
            self.records[base_offset + delta] = value
            writer.offsets.append(base_offset + delta)
        assert append(self.log, data).duplicate

    @rule(count=st.integers(1, 3))
    def write_plainly(self, count: int) -> None:
        values = self.fresh(count)
        base_offset = append(self.log, make_batch(values)).base_offset
        self.records.update({base_offset + delta: value for delta, value in enumerate(values)})

    @rule(who=st.integers(0, 2), commit=st.booleans(), bump=st.booleans(), times=st.integers(1, 2))
    def end(self, who: int, commit: bool, bump: bool, times: int) -> None:
        """With or without a new epoch; a coordinator that was restarted writes its marker again."""
        writer = self.writers[who]
        if bump:
            writer.epoch += 1
            writer.sequence = 0
        for _ in range(times):
            append_marker(self.log, writer.producer_id, writer.epoch, Marker(commit, 0), leader_epoch=0, now_ms=1)
        if not commit:
            self.hidden.update(writer.offsets)
        writer.first_offset = IDLE
        writer.offsets = []

    @rule()
    def sync(self) -> None:
        sync(self.log)

    @rule(clean=st.booleans(), lost=st.sampled_from(("", "newest", "snapshots", "aborted", "all")))
    def restart(self, clean: bool, lost: str) -> None:
        sync(self.log)
        self.log.close(clean=clean)
        snapshots = sorted(name for name in self.files.names(PATH) if name.endswith(".producers"))
        doomed = {"newest": snapshots[-1:], "snapshots": snapshots, "aborted": [ABORTED], "all": [*snapshots, ABORTED]}
        for name in doomed.get(lost, []) if self.log.start_offset == 0 or lost == "aborted" else []:
            self.files.remove(f"{PATH}/{name}")
        self.open()

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        self.log.delete_before(data.draw(st.integers(self.log.start_offset, self.log.end_offset)))

    @rule(data=st.data(), max_bytes=st.sampled_from((1, 200, 1 << 20)))
    def read_from_anywhere(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.log.start_offset, self.log.end_offset))
        high_watermark = data.draw(st.integers(self.log.start_offset, self.log.end_offset))
        limit = self.log.last_stable_offset(high_watermark)
        limit = min(limit, self.log.last_stable_offset(self.log.end_offset))
        found = [entry for entry in self.read(offset, max_bytes) if entry[0] < limit]
        assert found == self.expected(offset, limit)

    def read(self, offset: int, max_bytes: int) -> list[tuple[int, bytes | None]]:
        return read_committed(self.log, offset, high_watermark=self.log.end_offset, max_bytes=max_bytes)

    def expected(self, offset: int, limit: int) -> list[tuple[int, bytes | None]]:
        return [
            (at, value) for at, value in sorted(self.records.items()) if offset <= at < limit and at not in self.hidden
        ]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        opened = [writer.first_offset for writer in self.writers if writer.first_offset != IDLE]
        stable = max(min(opened, default=log.end_offset), log.start_offset)
        assert log.last_stable_offset(log.end_offset) == stable
        assert log.producers.transactions.unstable == bool(opened)
        for writer in self.writers:
            assert log.producers.is_open(writer.producer_id, writer.epoch) == (writer.first_offset != IDLE)
        assert self.read(log.start_offset, 1 << 20) == self.expected(log.start_offset, stable)


CommittedReader.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_a_reader_of_committed_records_gets_exactly_those = CommittedReader.TestCase
