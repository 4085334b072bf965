"""A log against a list: whatever is done to it, in whatever order, it holds what the list holds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.log import Log, verify
from headrace.storage.memory import MemoryFiles
from headrace.storage.topic_config import TopicConfig
from headrace.testing.logs import append, make_batch, records_in, sync

PATH = "topics/orders-0"


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.batches: list[tuple[int, list[bytes], int, int]] = []  # base offset, values, timestamp, epoch
        self.end_offset = 0
        self.start_offset = 0
        self.flushed_offset = 0
        self.now_ms = 1000
        self.epoch = 0
        self.readers = [0, 0]
        self.number = 0

    @initialize(
        segment_bytes=st.sampled_from((200, 500, 2000, 1 << 30)),
        interval_bytes=st.sampled_from((0, 150, 600, 4096)),
        retention_ms=st.sampled_from((-1, 20, 100)),
        retention_bytes=st.sampled_from((-1, 600, 3000)),
    )
    def begin(self, segment_bytes: int, interval_bytes: int, retention_ms: int, retention_bytes: int) -> None:
        self.config = replace(
            TopicConfig(),
            segment_bytes=segment_bytes,
            index_interval_bytes=interval_bytes,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            segment_ms=50,
        )
        self.open()

    def open(self) -> None:
        self.log = Log.open(self.files, PATH, self.config, now_ms=self.now_ms)

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=5), length=st.sampled_from((1, 30, 400)))
    def append(self, counts: list[int], length: int) -> None:
        for count in counts:
            values = []
            for _ in range(count):
                self.number += 1
                values.append(b"%d." % self.number * length)
            where = append(
                self.log, make_batch(values, timestamp_ms=self.now_ms), leader_epoch=self.epoch, now_ms=self.now_ms
            )
            assert (where.base_offset, where.last_offset) == (self.end_offset, self.end_offset + count - 1)
            self.batches.append((self.end_offset, values, self.now_ms, self.epoch))
            self.end_offset += count

    @rule(milliseconds=st.integers(1, 60))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def elect(self) -> None:
        self.epoch += 1

    @rule(checkpoint=st.booleans())
    def sync(self, checkpoint: bool) -> None:
        if checkpoint:
            self.log.checkpoint()
        else:
            sync(self.log)
        self.flushed_offset = self.end_offset

    @rule()
    def overtaken_sync(self) -> None:
        pending = self.log.begin_sync()
        covered = self.end_offset
        self.append([1, 2], 30)
        self.log.roll_if_due(self.now_ms + 100)
        if pending is not None:
            pending.run()
            self.log.end_sync(pending)
            self.flushed_offset = covered

    @rule(who=st.integers(0, 1), max_bytes=st.sampled_from((1, 300, 5000)), committed=st.booleans())
    def read_on(self, who: int, max_bytes: int, committed: bool) -> None:
        limit_offset = self.flushed_offset if committed else self.end_offset
        offset = self.readers[who] = min(max(self.readers[who], self.start_offset), self.end_offset)
        span = self.log.locate(offset, max_bytes, limit_offset)
        if offset >= limit_offset:
            assert span is None
            return
        assert span is not None
        data = span.read_now()
        if data is None:  # the index of a sealed segment was dropped
            data = span.read()
        assert data == span.read()
        self.check_records(data, offset, limit_offset)
        assert offset < span.next_offset <= limit_offset
        self.readers[who] = span.next_offset

    @rule(data=st.data())
    def read_anywhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(0, self.start_offset - 2), self.end_offset + 2))
        limit_offset = data.draw(st.integers(self.start_offset, self.end_offset))
        try:
            span = self.log.locate(offset, data.draw(st.sampled_from((1, 1000, 1 << 20))), limit_offset)
        except ApiError as error:
            assert error.code is ErrorCode.offset_out_of_range
            assert not self.start_offset <= offset <= self.end_offset
            return
        assert self.start_offset <= offset <= self.end_offset
        visible = [b for b in self.batches if b[0] + len(b[1]) > offset and b[0] + len(b[1]) <= limit_offset]
        if not visible:
            assert span is None or span.read() == b""
            return
        assert span is not None
        self.check_records(span.read(), offset, limit_offset)

    def check_records(self, data: bytes, offset: int, limit_offset: int) -> None:
        """Whole batches, from the one that holds `offset`, each record as it was appended."""
        expected = [
            (base_offset + delta, value)
            for base_offset, values, _, _ in self.batches
            if base_offset + len(values) > offset
            for delta, value in enumerate(values)
        ]
        found = records_in(data)
        assert found
        assert found == expected[: len(found)]
        assert found[-1][0] < limit_offset

    @rule(wanted=st.integers(900, 2500))
    def look_up_time(self, wanted: int) -> None:
        expected = None
        for base_offset, values, timestamp, epoch in self.batches:
            if timestamp >= wanted and base_offset + len(values) > self.start_offset:
                expected = (timestamp, max(base_offset, self.start_offset), epoch)
                break
        assert self.log.offset_for_timestamp(wanted) == expected

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, self.end_offset))
        self.log.truncate(offset, now_ms=self.now_ms)
        kept = [entry for entry in self.batches if entry[0] + len(entry[1]) <= offset]
        self.end_offset = self.log.end_offset
        assert self.end_offset <= offset
        if kept:
            assert self.end_offset == kept[-1][0] + len(kept[-1][1])
        self.batches = kept
        self.start_offset = min(self.start_offset, self.end_offset)
        assert min(self.flushed_offset, self.end_offset) <= self.log.flushed_offset <= self.end_offset
        self.flushed_offset = self.log.flushed_offset  # to cut may need a sync
        self.epoch += 1

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end_offset))
        self.log.delete_before(offset)
        self.start_offset = max(self.start_offset, offset)

    @rule()
    def retain(self) -> None:
        bases = [segment.base_offset for segment in self.log.segments()]
        removed = self.log.retain(self.now_ms)
        assert removed == bases[: len(removed)]
        if removed:
            self.start_offset = max(self.start_offset, self.log.segments()[0].base_offset)

    @rule()
    def roll(self) -> None:
        self.log.roll_if_due(self.now_ms)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if not clean:
            sync(self.log)  # else the start offset may go back, as it may in Kafka
        self.log.close(clean=clean)
        self.open()
        self.flushed_offset = self.end_offset

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.start_offset, log.end_offset) == (self.start_offset, self.end_offset)
        assert log.flushed_offset == self.flushed_offset
        assert log.recovery_point <= log.flushed_offset
        segments = log.segments()
        assert log.size_bytes == sum(segment.size_bytes for segment in segments)
        assert segments[0].base_offset <= log.start_offset
        assert [segment.end_offset for segment in segments[:-1]] == [segment.base_offset for segment in segments[1:]]
        assert segments[-1].end_offset == log.end_offset
        assert verify(log) == []


LogAgainstList.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_a_log_holds_what_a_list_holds = LogAgainstList.TestCase
