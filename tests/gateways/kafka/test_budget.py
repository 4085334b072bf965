"""The pools: bounded, fair, and empty when everybody has gone. No sockets, no clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateways.kafka.account import Account, Memory
from headrace.gateways.kafka.budget import ALLOWANCE_BYTES, LEAST_ROOM_BYTES, STALL_SECONDS, Pool, Share, Standing

MIB = 1 << 20
LIMIT = 16 * MIB
LONGEST = 12 * MIB
READ = 256 * 1024  # bytes that one read of a socket brings at most


@pytest.fixture(autouse=True)
def calm() -> None:
    """No broker is needed here."""


class Sender:
    """A connection that sends frames of one size, and is read from unless it has to wait."""

    def __init__(self, pool: Pool, frame_bytes: int) -> None:
        self.share = Share(pool, self, self.woken)
        self.frame_bytes = frame_bytes
        self.came = 0
        self.paused = False
        self.finished = 0

    def woken(self) -> None:
        self.paused = False

    def note_progress(self, now: float) -> None:
        self.share.moved(self.came, now, excused=self.paused)

    def close_for(self, reason: str) -> None:
        self.share.leave()

    def read(self, size: int) -> None:
        if self.paused:
            return
        self.came = min(self.came + size, self.frame_bytes)
        if self.came == self.frame_bytes:
            self.came = 0
            self.finished += 1
            self.share.step_back()
        self.share.hold(self.came)
        if self.share.used and self.share.room <= 0:
            self.paused = True
            self.share.wait()


def senders(pool: Pool, sizes: list[int]) -> list[Sender]:
    return [Sender(pool, size) for size in sizes]


@given(
    st.lists(st.integers(1, LONGEST), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, READ), st.booleans()), max_size=300),
)
def test_a_pool_is_exceeded_by_one_frame_and_one_read_of_each_at_most(
    sizes: list[int], steps: list[tuple[int, int, bool]]
):
    pool = Pool(LIMIT, longest=LONGEST)
    everybody = senders(pool, sizes)
    for number, size, leaves in steps:
        sender = everybody[number % len(everybody)]
        if leaves and size % 7 == 0:
            sender.share.leave()
            everybody[number % len(everybody)] = Sender(pool, sender.frame_bytes)
        else:
            sender.read(size * 40 if not sender.paused and sender.share is pool.first else size)
        assert pool.total == sum(share.used for share in pool.holders) == sum(each.share.used for each in everybody)
        assert pool.total <= LIMIT + LONGEST + READ * len(everybody)
        assert pool.counters.waiting == len(pool.line)
    for sender in everybody:
        sender.share.leave()
    assert (pool.total, pool.line, pool.first, pool.holders) == (0, {}, None, {})


@given(st.lists(st.integers(ALLOWANCE_BYTES + 1, LONGEST), min_size=2, max_size=30))
def test_unfinished_frames_never_block_each_other(sizes: list[int]):
    pool = Pool(LIMIT, longest=LONGEST)
    everybody = senders(pool, sizes)
    for _ in range(sum(size // READ + 1 for size in sizes) * 2):
        for sender in everybody:
            if not sender.finished:
                sender.read(READ)
    assert all(sender.finished for sender in everybody)
    assert pool.total == 0


@given(st.lists(st.integers(0, 4 * LIMIT), max_size=20), st.integers(0, ALLOWANCE_BYTES))
def test_what_is_small_is_never_counted_and_never_waits(held: list[int], small: int):
    memory = Memory(2 * LIMIT, longest=LONGEST)
    owner: Any = None
    for size in held:
        Share(memory.requests, owner, lambda: None).hold(size)
        Share(memory.answers, owner, lambda: None).hold(size)
    account = Account(memory, owner, lambda: None)
    account.charge(small, small)
    assert not account.paused
    assert account.is_empty


@given(st.integers(1, 200))
def test_those_who_hold_much_leave_room_for_a_peer_that_has_proved_itself(greedy: int):
    async def scenario() -> None:
        memory = Memory(2 * LIMIT, longest=LONGEST)
        owner: Any = None
        proven = Account(memory, owner, lambda: None)
        proven.charge(0, MIB)
        proven.charge(0, 0)
        for _ in range(greedy):
            account = Account(memory, owner, lambda: None)
            while granted := account.grant():
                account.reserve(granted)
        assert proven.grant() >= LEAST_ROOM_BYTES // 4
        assert memory.answers.total <= LIMIT

    asyncio.run(scenario())


def test_one_may_have_half_and_two_a_third_each():
    pool = Pool(LIMIT)
    one, two = senders(pool, [LIMIT, LIMIT])
    while not one.paused:
        one.read(READ)
    assert LIMIT // 2 <= one.share.used <= LIMIT // 2 + READ
    one.share.leave()
    one = Sender(pool, LIMIT)
    while not (one.paused and two.paused):
        one.read(READ)
        two.read(READ)
    assert abs(one.share.used - LIMIT // 3) <= 2 * READ
    assert abs(two.share.used - LIMIT // 3) <= 2 * READ


def test_other_nodes_never_wait():
    memory = Memory(2 * LIMIT, longest=LONGEST)
    owner: Any = None
    Share(memory.answers, owner, lambda: None).hold(2 * LIMIT)
    Share(memory.requests, owner, lambda: None).hold(2 * LIMIT)
    account = Account(memory, owner, lambda: None)
    account.trust()
    account.charge(MIB, MIB)
    assert account.grant() > 0
    assert not account.paused


def test_the_first_in_line_that_holds_nothing_any_more_lets_the_next_one_go_first():
    pool = Pool(LIMIT, longest=LONGEST)
    answered, unfinished = senders(pool, [LIMIT, LONGEST])
    answered.share.hold(LIMIT)  # whole requests that are not answered yet
    answered.share.wait()
    assert pool.first is answered.share
    unfinished.read(READ)
    assert unfinished.paused
    answered.share.hold(0)
    assert pool.first is not answered.share
    assert not unfinished.paused


class Reader:
    """A connection that holds answers, and takes some of them now and then."""

    def __init__(self, pool: Pool, held: int) -> None:
        self.share = Share(pool, self, lambda: None)
        self.share.hold(held)
        self.taken = 0
        self.writable = False

    def note_progress(self, now: float) -> None:
        self.share.moved(self.taken, now, excused=self.writable)

    def close_for(self, reason: str) -> None:
        self.share.leave()


def test_while_somebody_waits_the_largest_that_do_not_move_are_closed():
    pool = Pool(LIMIT)
    large, small, slow, ours = (Reader(pool, size * MIB) for size in (6, 2, 5, 3))
    ours.writable = True  # its answers wait for us, not for its peer
    waiting = Reader(pool, 0)

    def look(now: float) -> list[Share]:
        for share in pool.holders:
            share.owner.note_progress(now)
        return pool.overdue(now)

    assert look(1.0) == []
    assert look(2.0 + STALL_SECONDS) == []  # nobody waits
    waiting.share.wait()
    slow.taken += MIB
    assert look(2.1 + STALL_SECONDS) == [large.share]
    large.close_for("it is overdue")
    assert waiting.share not in pool.line
    assert look(2.2 + STALL_SECONDS) == []
    assert small.share.used


def test_those_who_wait_only_for_what_they_block_themselves_are_left_alone():
    pool = Pool(LIMIT)
    hog = Reader(pool, 2 * LIMIT)
    hog.share.wait()
    for now in (1.0, 2.0 + STALL_SECONDS):
        hog.note_progress(now)
        assert pool.overdue(now) == []
    assert hog.share.standing is Standing.NEWCOMER
