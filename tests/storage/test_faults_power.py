"""Power cuts at any point of any history: nothing acknowledged is lost, what is left is a prefix, and it goes on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from headrace.core.errors import HeadraceError
from headrace.storage.log import Log
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.logs import append, make_batch, read_bytes, records_in
from headrace.wire import batch

PATH = "topics/orders-0"
PRODUCER = 7
SEEDS = int(os.environ.get("HEADRACE_SEEDS", "250"))


class Wrote(NamedTuple):
    """A record as it was appended."""

    value: bytes
    epoch: int
    sequence: int = -1  # of the idempotent producer, if it sent the record


History = list[Wrote]  # by offset


class Life:
    """One seeded life of a log, through several crashes.

    `histories` are the contents that a crash may leave, each of them or a prefix that holds all that was acknowledged.
    There is more than one only after a truncation that was not synced yet: it may be undone.
    """

    def __init__(self, seed: int, *, truncates: bool) -> None:
        self.rng = Random(seed)
        self.config = replace(
            TopicConfig(),
            segment_bytes=self.rng.choice((300, 1000, 5000, 1 << 30)),
            index_interval_bytes=self.rng.choice((0, 200, 4096)),
        )
        self.steps = [self.append] * 6 + [self.send] * 3 + [self.sync, self.overtaken_sync] * 2
        self.steps += [self.elect, self.delete, self.retain]
        self.truncates = truncates
        if truncates:
            self.steps += [self.truncate]
        self.files = FaultyFiles()
        self.histories: list[History] = [[]]
        self.acknowledged = 0
        self.started = 0  # records below were deleted on purpose, or may have been
        self.was_killed = False
        self.now_ms = 1000
        self.epoch = 0
        self.number = 0

    @property
    def history(self) -> History:
        return self.histories[-1]

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            if self.rng.random() < 0.6:
                self.files.cut_power_at(self.files.operations + self.rng.randrange(60))
            try:
                self.live(self.open_and_check())
            except PowerCutError:
                pass
            self.was_killed = self.rng.random() < 0.2
            self.files = self.files.killed() if self.was_killed else self.files.power_cut(self.rng)
        log = self.open_and_check()
        self.epoch += 1
        self.append(log)
        self.sync(log)

    def live(self, log: Log) -> None:
        for _ in range(self.rng.randrange(30)):
            self.now_ms += 1
            self.rng.choice(self.steps)(log)
        if self.rng.random() < 0.2:
            end_offset = log.end_offset
            log.close()
            self.acknowledged = end_offset
            self.histories = [self.history]

    # ------------------------------------------------------------------ what must hold

    def open_and_check(self) -> Log:
        log = Log.open(self.files, PATH, self.config, now_ms=self.now_ms)
        assert log.end_offset >= self.acknowledged, f"ends at {log.end_offset}, {self.acknowledged} acknowledged"
        assert log.start_offset <= self.started, "records were forgotten that nobody deleted"
        found = read_bytes(log, cold=self.rng.random() < 0.5)
        records = [(offset, value) for offset, value in records_in(found) if offset >= log.start_offset]
        assert [offset for offset, _ in records] == list(range(log.start_offset, log.end_offset))
        fitting = [history for history in self.histories if fits(records, history, log.end_offset)]
        assert fitting, "what is there was never the content of the log"
        # What the kernel has kept after kill -9 may still be lost: until the next sync, the others remain possible.
        self.histories = [*(self.histories if self.was_killed else []), fitting[-1][: log.end_offset]]
        self.acknowledged = log.flushed_offset
        assert log.flushed_offset == log.end_offset, "recovery syncs what it keeps"
        self.check_epochs(log, found)
        self.check_producer(log)
        return log

    def check_epochs(self, log: Log, found: bytes) -> None:
        for header in batch.headers(found):
            if header.base_offset >= log.start_offset:
                written = self.history[header.base_offset].epoch
                assert header.leader_epoch == log.epochs.epoch_at(header.base_offset) == written

    def check_producer(self, log: Log) -> None:
        """What the producer sent last is known, so that it is not taken twice."""
        if self.truncates:
            return
        there = [record.sequence for record in self.history[log.start_offset :] if record.sequence >= 0]
        if there:
            again = make_batch([b"again"], producer_id=PRODUCER, sequence=there[-1])
            assert append(log, again, leader_epoch=self.epoch, now_ms=self.now_ms).duplicate

    # ------------------------------------------------------------------ what may happen

    def write(self, log: Log, records: Sequence[Wrote], content: bytes) -> None:
        before = log.end_offset
        assert before == len(self.history)
        # Told before it happens: a record may survive although the power went before the append returned.
        self.history.extend(records)
        where = append(log, content, leader_epoch=self.epoch, now_ms=self.now_ms)
        assert (where.base_offset, where.last_offset, where.duplicate) == (before, len(self.history) - 1, False)

    def append(self, log: Log) -> None:
        records = []
        for _ in range(self.rng.randrange(1, 4)):
            self.number += 1
            records.append(Wrote(b"%d " % self.number * self.rng.choice((1, 5, 60)), self.epoch))
        self.write(log, records, make_batch([record.value for record in records], timestamp_ms=self.now_ms))

    def send(self, log: Log) -> None:
        """One record of an idempotent producer."""
        known = log.producers.get(PRODUCER)
        sent = [record.sequence for record in self.history if record.sequence >= 0]
        sequence = sent[-1] + 1 if sent and known is not None else 0
        if self.truncates and known is not None:
            # Where the records before a cut are deleted already, the producers can be as old as the last snapshot.
            sequence = known.next_sequence
        self.number += 1
        value = b"sent %d" % self.number
        content = make_batch([value], timestamp_ms=self.now_ms, producer_id=PRODUCER, sequence=sequence)
        self.write(log, [Wrote(value, self.epoch, sequence)], content)

    def sync(self, log: Log) -> None:
        pending = log.begin_sync()
        if pending is not None:
            pending.run()
            log.end_sync(pending)
        self.synced(log, len(self.history))

    def overtaken_sync(self, log: Log) -> None:
        """Appends, perhaps a roll, between the parts of a sync."""
        pending = log.begin_sync()
        end_offset = log.end_offset
        self.append(log)
        if pending is not None:
            pending.run()
        self.append(log)
        if pending is not None:
            log.end_sync(pending)
        self.synced(log, end_offset)

    def synced(self, log: Log, end_offset: int) -> None:
        assert end_offset <= log.flushed_offset <= log.end_offset
        self.acknowledged = log.flushed_offset
        self.histories = [self.history]

    def elect(self, log: Log) -> None:
        self.epoch += 1

    def delete(self, log: Log) -> None:
        offset = self.rng.randint(log.start_offset, max(log.start_offset, log.flushed_offset))
        self.started = max(self.started, offset)
        log.delete_before(offset)
        assert log.start_offset == offset

    def retain(self, log: Log) -> None:
        log.config = replace(self.config, retention_bytes=self.rng.choice((-1, 0, 500, 3000)))
        self.started = max(self.started, log.flushed_offset)
        log.retain(self.now_ms, limit_offset=log.flushed_offset)
        log.config = self.config

    def truncate(self, log: Log) -> None:
        """A follower gives up what its new leader does not have."""
        offset = self.rng.randint(log.start_offset, log.end_offset)
        self.epoch += 1
        self.acknowledged = 0  # from now on, until the next sync, what is cut may be there or not
        log.truncate(offset, now_ms=self.now_ms)
        assert log.end_offset <= offset
        self.histories.append(self.history[: log.end_offset])


def fits(records: list[tuple[int, bytes | None]], history: History, end_offset: int) -> bool:
    return end_offset <= len(history) and all(history[offset].value == value for offset, value in records)


def live_through(seeds: range, *, truncates: bool) -> None:
    for seed in seeds:
        try:
            Life(seed, truncates=truncates).run()
        except (AssertionError, HeadraceError) as error:
            raise AssertionError(f"replay with: Life({seed}, truncates={truncates}).run()") from error


@pytest.mark.parametrize("block", range(4))
def test_acknowledged_records_survive_power_cuts_at_any_point(block: int) -> None:
    live_through(range(block * SEEDS, (block + 1) * SEEDS), truncates=False)


@pytest.mark.parametrize("block", range(2))
def test_a_truncated_log_is_the_old_one_or_the_new_one_after_a_power_cut(block: int) -> None:
    live_through(range(block * SEEDS, (block + 1) * SEEDS), truncates=True)


# (seed, truncates) of lives that once ended badly.
ONCE_BROKEN = [
    (336, False), (399, False), (443, False), (450, False), (7037, False), (8165, False),
    (231, True), (335, True), (590, True), (745, True), (930, True), (1437, True), (11100, True),
    (2732, True), (3950, True), (4676, True), (4967, True),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "truncates"), ONCE_BROKEN)
def test_a_life_that_once_ended_badly_ends_well(seed: int, truncates: bool) -> None:
    Life(seed, truncates=truncates).run()


def test_names_that_a_killed_process_never_synced_are_synced_by_the_next() -> None:
    """Kill -9 after a roll, a recovery that acknowledges, then a power cut: the new segment must still be there."""
    config = replace(TopicConfig(), segment_bytes=300)
    for seed in range(20):
        files = FaultyFiles()
        log = Log.open(files, PATH, config, now_ms=1)
        append(log, make_batch([b"a" * 250]))
        append(log, make_batch([b"b" * 250]))
        files = files.killed()
        flushed = Log.open(files, PATH, config, now_ms=1).flushed_offset
        assert flushed == 2
        assert Log.open(files.power_cut(Random(seed)), PATH, config, now_ms=1).end_offset == 2
