"""News: the newest record of each node, a bounded number of times, in the room that there is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from swim_stage import member

from headrace.swim.member import State, record_bytes
from headrace.swim.news import NewsQueue
from headrace.swim.options import SwimOptions, suspicion_s, transmissions


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(60, 700))
def test_every_record_goes_out_exactly_as_often_as_it_may_and_always_fits(count, limit, room_bytes) -> None:
    queue, went = NewsQueue(), Counter()
    for number in range(count):
        queue.put(member(number))
    while queue:
        taken = queue.take(room_bytes, limit)
        assert taken
        assert sum(len(record_bytes(record)) for record in taken) <= room_bytes
        assert len({record.node_id for record in taken}) == len(taken)
        went.update(record.node_id for record in taken)
    assert went == dict.fromkeys(range(count), limit)


def test_what_was_passed_on_least_goes_first() -> None:
    queue = NewsQueue()
    queue.put(member(1))
    size = len(record_bytes(member(1)))
    queue.take(size, 5)
    queue.put(member(2))
    assert [record.node_id for record in queue.take(size, 5)] == [2]


def test_newer_news_of_a_node_take_the_place_of_older_ones_and_begin_anew() -> None:
    queue = NewsQueue()
    queue.put(member(1))
    queue.take(1000, 2)
    queue.put(member(1, state=State.SUSPECT))
    assert len(queue) == 1
    assert [queue.take(1000, 2)[0].state for _ in range(2)] == [State.SUSPECT] * 2
    assert not queue


def test_retransmits_and_suspicion_grow_as_the_logarithm_of_the_cluster() -> None:
    options = SwimOptions(retransmit_mult=3, suspicion_mult=4, probe_interval_s=1.0)
    assert [transmissions(options, size) for size in (1, 3, 10, 100, 1000, 10_000)] == [3, 6, 9, 15, 21, 30]
    assert [suspicion_s(options, size) for size in (0, 1, 10, 100, 1000)] == [4, 4, 4, 8, 12]
