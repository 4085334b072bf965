"""Compaction through random histories and power cuts: newest values stay, no offset moves, nothing comes back."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from headrace.storage.log import Log, verify
from headrace.storage.topic_config import TopicConfig
from headrace.storage.transactions import Marker, append_marker
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.logs import MAX_BATCH_BYTES, compact, read_bytes
from headrace.wire import batch

PATH = "topics/orders-0"
SEEDS = int(os.environ.get("HEADRACE_SEEDS", "150"))
IDEMPOTENT, TRANSACTIONAL = 7, 8


class Wrote(NamedTuple):
    """A record as it was appended; markers have no key."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    transaction: int = 0  # its number; 0 if it has none


class Life:
    """One seeded life of a compacted log, through several crashes."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = Random(seed)
        self.config = replace(
            TopicConfig(),
            cleanup_policy=rng.choice((("compact",), ("compact", "delete"))),
            retention_ms=-1,
            segment_bytes=rng.choice((250, 700, 3000)),
            index_interval_bytes=rng.choice((0, 200, 4096)),
            delete_retention_ms=rng.choice((0, 20, 200)),
            min_cleanable_dirty_ratio=rng.choice((0.0, 0.3)),
            min_compaction_lag_ms=rng.choice((0, 0, 15)),
            file_delete_delay_ms=rng.choice((0, 50)),
            timestamp_type="CreateTime",
        )
        self.map_bytes = rng.choice((1 << 20, 240 * 3))
        self.keys = [b"k%d" % n * rng.choice((1, 1, 20)) for n in range(rng.randrange(1, 9))]
        self.files = FaultyFiles()
        self.history: list[Wrote] = []
        self.acknowledged = 0
        self.now_ms = 1000
        self.number = 0
        self.sequence = 0
        self.transaction = 0
        self.open_transaction = False
        self.aborted: set[int] = set()
        self.started = 0

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            try:
                log = self.open_and_check()
                if self.rng.random() < 0.7:
                    self.files.cut_power_at(self.files.operations + self.rng.randrange(120))
                self.live(log)
            except PowerCutError:
                pass
            self.files = self.files.killed() if self.rng.random() < 0.3 else self.files.power_cut(self.rng)
        log = self.open_and_check()
        self.append(log)
        self.compact(log)
        self.check(log)
        assert verify(log) == []

    def live(self, log: Log) -> None:
        steps = (
            [self.append] * 8 + [self.send] * 3 + [self.transact] * 4 + [self.compact] * 3 + [self.sync, self.delete]
        )
        for _ in range(self.rng.randrange(50)):
            self.now_ms += self.rng.choice((0, 1, 1, 7, 30))
            self.rng.choice(steps)(log)
        self.check(log)
        if self.rng.random() < 0.2:
            log.close()
            self.acknowledged = len(self.history)

    # ------------------------------------------------------------------ steps

    def items(self, count: int) -> list[tuple[bytes, bytes | None]]:
        made = []
        for _ in range(count):
            self.number += 1
            value = None if self.rng.random() < 0.25 else b"v%d" % self.number * self.rng.choice((1, 10))
            made.append((self.rng.choice(self.keys), value))
        return made

    def put(self, log: Log, items: list[tuple[bytes, bytes | None]], transaction: int = 0, **producer: int) -> None:
        content = batch.build(
            items, timestamp_ms=self.now_ms, codec=self.rng.randrange(5), transactional=transaction > 0, **producer
        )
        headers = batch.check(content, max_batch_bytes=MAX_BATCH_BYTES)
        log.append(bytearray(content), headers, leader_epoch=0, now_ms=self.now_ms)
        self.history += [Wrote(key, value, self.now_ms, transaction) for key, value in items]
        assert log.end_offset == len(self.history)

    def append(self, log: Log) -> None:
        self.put(log, self.items(self.rng.randrange(1, 5)))

    def send(self, log: Log) -> None:
        items = self.items(self.rng.randrange(1, 3))
        self.put(
            log, items, producer_id=IDEMPOTENT, producer_epoch=0, base_sequence=self.next_sequence(log, IDEMPOTENT)
        )

    def transact(self, log: Log) -> None:
        known = log.producers.get(TRANSACTIONAL)
        if known is not None and known.first_offset >= 0 and self.rng.random() < 0.5:
            commit = self.rng.random() < 0.5
            if not commit:
                self.aborted.add(self.transaction)
            append_marker(log, TRANSACTIONAL, 0, Marker(commit, 0), leader_epoch=0, now_ms=self.now_ms)
            self.history.append(Wrote(None, None, self.now_ms, self.transaction))
            self.transaction += 1
            return
        self.transaction = max(self.transaction, 1)
        sequence = self.next_sequence(log, TRANSACTIONAL)
        items = self.items(self.rng.randrange(1, 3))
        self.put(log, items, self.transaction, producer_id=TRANSACTIONAL, producer_epoch=0, base_sequence=sequence)

    @staticmethod
    def next_sequence(log: Log, producer_id: int) -> int:
        known = log.producers.get(producer_id)
        return 0 if known is None else max(0, known.next_sequence)

    def compact(self, log: Log) -> None:
        stable_offset = log.producers.transactions.first_unstable(log.end_offset)
        work = compact(log, now_ms=self.now_ms, stable_offset=stable_offset, map_bytes=self.map_bytes)
        self.acknowledged = log.flushed_offset
        if work is not None:
            assert work.first_dirty_offset > log.start_offset
            self.check_compacted(log)

    def sync(self, log: Log) -> None:
        log.checkpoint()
        self.acknowledged = log.flushed_offset

    def delete(self, log: Log) -> None:
        if self.rng.random() < 0.2:
            self.started = self.rng.randrange(log.start_offset, log.flushed_offset + 1)
            log.delete_before(self.started)

    # ------------------------------------------------------------------ what must hold

    def open_and_check(self) -> Log:
        log = Log.open(self.files, PATH, self.config, now_ms=self.now_ms)
        assert log.end_offset >= self.acknowledged
        assert log.start_offset <= self.started
        del self.history[log.end_offset :]
        self.acknowledged = log.end_offset
        lost = [wrote.transaction for wrote in self.history if wrote.key is None]
        self.aborted &= set(lost)
        self.transaction = max([0, *lost]) + 1
        self.check(log)
        names = [path for path in self.files.paths() if path.endswith((".cleaned", ".swap"))]
        assert names == [], "nothing is left of a compaction that was cut short"
        return log

    def read(self, log: Log) -> dict[int, batch.Record]:
        found: dict[int, batch.Record] = {}
        data = read_bytes(log, cold=self.rng.random() < 0.5, max_bytes=self.rng.choice((1, 500, 1 << 20)))
        for header in batch.headers(data):
            assert batch.crc_matches(data, header)
            for record in batch.records(data, header):
                if record.offset >= log.start_offset:
                    assert record.offset not in found
                    found[record.offset] = record
        assert list(found) == sorted(found)
        return found

    def check(self, log: Log) -> None:
        found = self.read(log)
        dirty_from = max(log.mark.gaps_below, log.start_offset)
        assert [offset for offset in found if offset >= dirty_from] == list(range(dirty_from, log.end_offset))
        for offset, record in found.items():
            wrote = self.history[offset]
            if wrote.key is not None:
                assert (record.key, record.value, record.timestamp) == wrote[:3], (
                    f"offset {offset} holds another record"
                )
        newest: dict[bytes, int] = {}
        seen: dict[bytes, bytes | None] = {}
        for offset in range(log.start_offset, log.end_offset):
            wrote = self.history[offset]
            if wrote.key is not None and wrote.transaction not in self.aborted:
                newest[wrote.key] = offset
                if offset in found:
                    seen[wrote.key] = found[offset].value
        for key, offset in newest.items():
            wrote = self.history[offset]
            if wrote.value is not None or self.now_ms < wrote.time_ms + self.config.delete_retention_ms:
                assert offset in found, f"the newest record of {key!r} is gone"
            assert seen.get(key) == wrote.value, f"{key!r} came back"

    def check_compacted(self, log: Log) -> None:
        """Below the mark every key is there once at most, and nothing that was aborted."""
        found = self.read(log)
        keys = [record.key for offset, record in found.items() if offset < log.mark.first_dirty_offset]
        present = [offset for offset in found if offset < log.mark.first_dirty_offset]
        values = [self.history[offset] for offset in present]
        ends = {wrote.transaction: offset for offset, wrote in enumerate(self.history) if wrote.key is None}
        aborted = {number for number in self.aborted if ends.get(number, -1) >= self.started}
        assert not [wrote for wrote in values if wrote.key is not None and wrote.transaction in aborted]
        records = [key for key, wrote in zip(keys, values, strict=True) if wrote.key is not None]
        assert len(records) == len(set(records))
        self.check_markers(log, found, ends)
        self.check_producers(log)

    def check_markers(self, log: Log, found: dict[int, batch.Record], ends: dict[int, int]) -> None:
        """A marker is there as long as anything of its transaction is, and for a while longer."""
        for number, end in ends.items():
            if end < self.started:
                continue
            left = [offset for offset in found if self.history[offset].transaction == number and offset < end]
            if left or self.now_ms < self.history[end].time_ms + self.config.delete_retention_ms:
                assert end in found, f"the marker at {end} is gone"
        for first, end, _ in log.producers.transactions.aborted.entries():
            assert end in found or first < log.start_offset, "readers are told of a transaction that does not end"

    def check_producers(self, log: Log) -> None:
        """What is left of the log tells what the producers will send next."""
        if self.started:
            return
        files = self.files.copy()
        for path in files.paths():
            if path.endswith(".producers"):
                files.remove(path)
        again = Log.open(files, PATH, self.config, now_ms=self.now_ms)
        for producer_id in (IDEMPOTENT, TRANSACTIONAL):
            assert self.next_sequence(again, producer_id) == self.next_sequence(log, producer_id)
        assert len(again.producers.transactions) == len(log.producers.transactions)


@pytest.mark.parametrize("block", range(5))
def test_any_history_with_power_cuts_leaves_the_newest_of_each_key(block: int) -> None:
    for seed in range(block * SEEDS // 5, (block + 1) * SEEDS // 5):
        try:
            Life(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
