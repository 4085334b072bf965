"""Time is dealt out fairly, whatever flows want: measured with a clock that only the flows move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.turns import QUANTUM_SECONDS, STRETCH_SECONDS, TURN_SECONDS, Turns


class Loop:
    """A clock, and what is to be called in the next pass."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.passes = 0
        self.calls: list[Callable[[], None]] = []
        self.turns = Turns(lambda: self.seconds, self.calls.append)

    def run_pass(self) -> float:
        """One pass; returns how long it took."""
        begun, self.passes = self.seconds, self.passes + 1
        calls = self.calls[:]
        self.calls.clear()
        for call in calls:
            call()
        return self.seconds - begun


class Requests:
    """A connection whose requests take some seconds each."""

    def __init__(self, loop: Loop, *seconds: float) -> None:
        self.used = 0.0
        self.queued = False
        self.left = list(seconds)
        self.done_at: list[float] = []
        self._loop = loop

    def serve(self, seconds: float) -> bool:
        until = self._loop.seconds + seconds
        while self.left:
            self._loop.seconds += self.left.pop(0)
            self.done_at.append(self._loop.seconds)
            if self._loop.seconds >= until:
                break
        return bool(self.left)


def test_a_pass_takes_no_more_than_its_time_and_two_requests():
    loop = Loop()
    floods = [Requests(loop, *[0.002] * 100) for _ in range(20)]
    for flood in floods:
        loop.turns.enter(flood)
    while loop.calls:
        assert loop.run_pass() <= TURN_SECONDS + 2 * 0.002 + 1e-9
    assert all(not flood.left for flood in floods)


def test_whoever_wants_little_is_served_in_the_next_pass_whatever_others_want():
    loop = Loop()
    floods = [Requests(loop, *[0.001] * 200) for _ in range(200)]
    for flood in floods:
        loop.turns.enter(flood)
    small = Requests(loop)
    waits = []
    for _ in range(400):
        loop.run_pass()
    for _ in range(200):
        small.left.append(0.00005)
        loop.turns.enter(small)
        asked, passes = loop.seconds, loop.passes
        while small.left:
            loop.run_pass()
        waits.append((small.done_at[-1] - asked, loop.passes - passes))
        for _ in range(5):
            loop.run_pass()
    assert max(seconds for seconds, _ in waits) < 0.1
    assert sum(seconds for seconds, _ in waits) / len(waits) < 0.02


def test_equal_wants_get_equal_time():
    loop = Loop()
    quick, slow = Requests(loop, *[0.0001] * 10_000), Requests(loop, *[0.004] * 250)
    loop.turns.enter(quick)
    loop.turns.enter(slow)
    for _ in range(60):
        loop.run_pass()
    used = (len(quick.done_at) * 0.0001, len(slow.done_at) * 0.004)
    assert abs(used[0] - used[1]) <= 0.004 + QUANTUM_SECONDS


def test_what_was_used_while_nobody_waited_counts():
    loop = Loop()
    greedy, modest = Requests(loop, *[0.001] * 10), Requests(loop, 0.001)
    loop.turns.spend(greedy, 0.05)
    assert loop.turns.crowded, "who comes now queues: the time of this pass is used up"
    loop.turns.enter(greedy)
    loop.turns.enter(modest)
    loop.run_pass()
    assert modest.done_at[0] < greedy.done_at[0]


def test_many_who_want_little_do_not_keep_out_those_who_want_much():
    loop = Loop()
    flood = Requests(loop, *[0.001] * 50)
    loop.turns.enter(flood)
    modest = [Requests(loop) for _ in range(50)]  # they fill every pass
    for _ in range(60):
        for each in modest:
            each.left.append(0.0001)
            loop.turns.enter(each)
        loop.run_pass()
    assert not flood.left


def test_little_work_is_done_where_it_arrives():
    loop = Loop()
    flow = Requests(loop)
    loop.turns.spend(flow, 0.0002)
    assert not loop.turns.crowded
    assert loop.calls == [], "nothing is worth a call back"
    for _ in range(15):
        loop.turns.spend(flow, 0.0002)
    assert len(loop.calls) == 1
    loop.run_pass()
    assert loop.calls == []


def test_a_flow_that_waits_already_is_not_queued_twice():
    loop = Loop()
    flow = Requests(loop, 0.001, 0.001)
    for _ in range(3):
        loop.turns.enter(flow)
    while loop.calls:
        loop.run_pass()
    assert len(flow.done_at) == 2
    assert not flow.queued
    assert not loop.turns.crowded


@given(st.lists(st.lists(st.floats(0.00001, 0.01), min_size=1, max_size=20), min_size=1, max_size=20))
def test_everything_is_served_in_the_end_and_in_the_order_of_each_flow(wants: list[list[float]]):
    loop = Loop()
    flows = [Requests(loop, *seconds) for seconds in wants]
    for flow in flows:
        loop.turns.enter(flow)
    while loop.calls:
        assert loop.run_pass() <= TURN_SECONDS + 2 * 0.01 + 1e-9
    assert [len(flow.done_at) for flow in flows] == [len(seconds) for seconds in wants]


@pytest.mark.parametrize("number", [1, 2, 7])
def test_those_who_rest_go_on_one_after_the_other(number: int):
    async def scenario() -> list[int]:
        seconds = 0.0
        turns = Turns(lambda: seconds)
        order: list[int] = []

        async def work(name: int) -> None:
            nonlocal seconds
            turns.began_at = seconds
            for _ in range(3):
                order.append(name)
                seconds += STRETCH_SECONDS
                assert turns.used_up
                await turns.rest()
                assert not turns.used_up

        await asyncio.gather(*(work(name) for name in range(number)))
        return order

    assert asyncio.run(scenario()) == list(range(number)) * 3


def test_whoever_is_cancelled_while_it_rests_does_not_hold_up_the_next():
    async def scenario() -> Any:
        turns = Turns(lambda: 0.0)
        first, second = asyncio.create_task(turns.rest()), asyncio.create_task(turns.rest())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 60)

    asyncio.run(scenario())
