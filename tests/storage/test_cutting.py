"""Cutting a log, and beginning it anew: what is left is what a shorter history would have left, at every crash."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.storage import cutting
from headrace.storage.copying import append_copied
from headrace.storage.log import Log, verify
from headrace.storage.swapping import Mark
from headrace.storage.topic_config import TopicConfig
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.logs import sync
from headrace.testing.transactions import make_transactional
from headrace.wire import batch

CONFIG = replace(TopicConfig(), segment_bytes=400)
PATH = "topics/orders-0"


def reopen(files: FaultyFiles) -> Log:
    return Log.open(files, PATH, CONFIG, now_ms=1)


def copied(base_offset: int, epoch: int, *values: bytes, producer_id: int = -1, sequence: int = 0) -> bytes:
    """A batch as a leader has it."""
    if producer_id < 0:
        data = bytearray(batch.build([(b"k", value) for value in values], timestamp_ms=1000))
    else:
        made = make_transactional(list(values), producer_id=producer_id, epoch=0, sequence=sequence, timestamp_ms=1000)
        data = bytearray(made)
    [header] = batch.headers(data)
    batch.stamp(data, header, base_offset=base_offset, leader_epoch=epoch)
    return bytes(data)


def fill(log: Log, count: int, epoch: int = 0) -> None:
    for number in range(count):
        append_copied(
            log, copied(log.end_offset, epoch, b"%d" % number), leader_epoch=epoch, high_watermark=100, now_ms=1
        )


@pytest.mark.parametrize("offset", [5, 100, 1000])
def test_a_log_that_begins_anew_is_empty_and_stays_so(offset: int) -> None:
    files = FaultyFiles()
    log = reopen(files)
    fill(log, 30)
    sync(log)
    cutting.restart(log, offset, now_ms=1)
    assert (log.start_offset, log.end_offset, log.flushed_offset, log.size_bytes) == (offset, offset, offset, 0)
    assert log.epochs.latest == -1
    fill(log, 3, epoch=4)
    sync(log)
    again = reopen(files.power_cut(Random(1)))
    assert (again.start_offset, again.end_offset) == (offset, offset + 3)
    assert again.epochs.entries == ((4, offset),)
    assert verify(again) == []


@pytest.mark.parametrize("anew", [False, True])
def test_power_may_go_at_every_step_of_a_cut(anew: bool) -> None:
    template = FaultyFiles()
    log = reopen(template)
    fill(log, 30)
    sync(log)
    log.close()
    for step in range(1, 200):
        files = template.copy()
        log = reopen(files)
        files.cut_power_at(step)
        try:
            if anew:
                cutting.restart(log, 100, now_ms=1)
            else:
                cutting.truncate(log, 11, now_ms=1)
            files.cut_power_at(10**9)
            done = True
        except PowerCutError:
            done = False
        after = reopen(files.power_cut(Random(step)))
        assert verify(after) == []
        if done:
            assert after.end_offset == (100 if anew else 11)
            return
        if anew:
            assert (after.start_offset, after.end_offset) == (100, 100) or after.start_offset == 0
        else:
            assert after.start_offset == 0 and 11 <= after.end_offset <= 30
    raise AssertionError("it never ended")


def test_compaction_looks_again_at_what_comes_after_a_cut() -> None:
    log = reopen(FaultyFiles())
    fill(log, 20)
    sync(log)
    log.mark = Mark(18, 18)
    log.truncate(7, now_ms=1)
    assert log.mark == Mark(7, 7)


def test_gaps_of_a_compacted_leader_are_kept_through_a_crash() -> None:
    files = FaultyFiles()
    log = reopen(files)
    append_copied(log, copied(0, 0, b"a"), leader_epoch=0, high_watermark=100, now_ms=1)
    append_copied(log, copied(10, 0, b"b") + copied(25, 1, b"c"), leader_epoch=1, high_watermark=100, now_ms=1)
    sync(log)
    after = reopen(files.killed())
    assert after.end_offset == 26
    assert after.epochs.entries == ((0, 0), (1, 25))
    assert verify(after) == []


def test_a_cut_takes_back_what_producers_have_done_since() -> None:
    log = reopen(FaultyFiles())
    append_copied(log, copied(0, 0, b"a"), leader_epoch=0, high_watermark=100, now_ms=1)
    append_copied(log, copied(1, 0, b"b", producer_id=7), leader_epoch=0, high_watermark=100, now_ms=1)
    sync(log)
    assert log.producers.is_open(7, 0)
    log.truncate(1, now_ms=1)
    assert not log.producers.is_open(7, 0)
    assert log.last_stable_offset(1) == 1
