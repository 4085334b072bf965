"""Power cuts in the life of a log with transactions: what is remembered of them is what the log itself tells."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from headrace.core.errors import ApiError, StorageError
from headrace.storage.log import Log
from headrace.storage.snapshots import ABORTED
from headrace.storage.topic_config import TopicConfig
from headrace.storage.transactions import Marker, append_marker, read_marker
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.logs import append, make_batch, read_bytes, sync
from headrace.testing.transactions import make_transactional, read_committed
from headrace.wire import batch

PATH = "topics/orders-0"
SEEDS = int(os.environ.get("HEADRACE_SEEDS", "200"))
PRODUCERS = (1, 2, 3)


def told_by(log: Log) -> tuple[dict[int, int], set[int]]:
    """(first offset of each open transaction, offsets of aborted records), from the bytes of the whole log."""
    data = read_bytes(log)
    opened: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for header in batch.headers(data):
        offsets = range(header.base_offset, header.base_offset + header.last_offset_delta + 1)
        if batch.is_control(header):
            marker = read_marker(data, header)
            ended = opened.pop(header.producer_id, [])
            if marker is not None and not marker.commit:
                aborted.update(ended)
        elif batch.is_transactional(header):
            opened.setdefault(header.producer_id, []).extend(offsets)
    return {producer: offsets[0] for producer, offsets in opened.items()}, aborted


def check(log: Log) -> None:
    opened, aborted = told_by(log)
    known = {pid: one.first_offset for pid, one in log.producers.items() if one.first_offset >= 0}
    # What began before the start of the log is remembered, though its records are gone.
    assert opened.keys() <= known.keys()
    for pid, first in known.items():
        assert first == opened.get(pid) or first < log.start_offset, f"producer {pid}: {first}, {opened.get(pid)}"
    stable = max(min(known.values(), default=log.end_offset), log.start_offset)
    assert log.last_stable_offset(log.end_offset) == stable
    for offset in {log.start_offset, (log.start_offset + stable) // 2}:
        found = [at for at, _ in read_committed(log, offset, high_watermark=log.end_offset, max_bytes=400)]
        assert not aborted.intersection(found), "aborted records are seen"
        data = [at for at in _data_offsets(log) if offset <= at < stable]
        assert found == [at for at in data if at not in aborted], "committed records are not seen"


def _data_offsets(log: Log) -> list[int]:
    data = read_bytes(log)
    return [
        offset
        for header in batch.headers(data)
        if not batch.is_control(header)
        for offset in range(header.base_offset, header.base_offset + header.last_offset_delta + 1)
    ]


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.files = FaultyFiles()
        self.config = replace(
            TopicConfig(), segment_bytes=self.rng.choice((300, 900)), index_interval_bytes=self.rng.choice((0, 300))
        )
        self.steps = [self.write] * 8 + [self.end] * 4 + [self.plain] * 2 + [self.sync] * 3
        self.steps += [self.checkpoint, self.delete] + [self.truncate] * self.rng.randrange(2)

    def run(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            if self.rng.random() < 0.6:
                self.files.cut_power_at(self.files.operations + self.rng.randrange(80))
            try:
                log = Log.open(self.files, PATH, self.config, now_ms=1)
                check(log)
                for _ in range(self.rng.randrange(40)):
                    self.rng.choice(self.steps)(log)
                check(log)
                if self.rng.random() < 0.3:
                    log.close()
            except PowerCutError:
                pass
            self.files = self.files.killed() if self.rng.random() < 0.3 else self.files.power_cut(self.rng)
            if self.rng.random() < 0.2 and self.files.exists(f"{PATH}/{ABORTED}"):
                self.files.flip(f"{PATH}/{ABORTED}", self.rng.randrange(300))
        check(Log.open(self.files, PATH, self.config, now_ms=1))

    def write(self, log: Log) -> None:
        producer_id = self.rng.choice(PRODUCERS)
        known = log.producers.get(producer_id)
        epoch = 0 if known is None else known.epoch
        sequence = 0 if known is None else max(known.next_sequence, 0)
        values = [b"%d" % self.rng.randrange(1000)] * self.rng.randrange(1, 4)
        append(log, make_transactional(values, producer_id=producer_id, epoch=epoch, sequence=sequence))

    def end(self, log: Log) -> None:
        producer_id = self.rng.choice(PRODUCERS)
        known = log.producers.get(producer_id)
        epoch = (0 if known is None else known.epoch) + self.rng.randrange(2)
        marker = Marker(self.rng.random() < 0.5, 0)
        append_marker(log, producer_id, epoch, marker, leader_epoch=0, now_ms=1)

    def plain(self, log: Log) -> None:
        append(log, make_batch([b"p"]))

    def sync(self, log: Log) -> None:
        sync(log)

    def checkpoint(self, log: Log) -> None:
        log.checkpoint()

    def delete(self, log: Log) -> None:
        # What a client may delete is durable, and so is what it deletes before the log goes on.
        sync(log)
        log.delete_before(self.rng.randrange(log.start_offset, log.end_offset + 1))
        sync(log)

    def truncate(self, log: Log) -> None:
        try:
            log.truncate(self.rng.randrange(log.start_offset, log.end_offset + 1), now_ms=1)
        except (ApiError, StorageError) as error:
            raise AssertionError from error


@pytest.mark.parametrize("block", range(4))
def test_after_any_power_cut_readers_see_exactly_what_was_committed(block: int) -> None:
    for seed in range(block, SEEDS, 4):
        try:
            Life(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
