"""One connection's memory: its shares of both pools, and those of its requests that wait for some.

Rules:
- The connection says what it holds (`charge`) whenever that has changed; it reads no more while it is `paused`.
- An answer that may be large asks first (`grant`), and waits if nothing is granted (`granted`). What is granted is not
  held yet: whoever has read something and has to wait before it can be sent reserves it.
- Waiting requests of one connection are woken together, in their order; who comes too late waits again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.core import limits
from headrace.gateways.kafka.budget import ALLOWANCE_BYTES, FRACTION, LEAST_ROOM_BYTES, Pool, Share, Standing


class Memory:
    """Both pools of a server."""

    def __init__(self, limit: int, *, longest: int) -> None:
        """`longest`: bytes of the largest request."""
        half = limit // 2
        self.longest = min(longest, half)  # what cannot fit is refused when it is announced
        self.requests = Pool(half, longest=self.longest)
        self.answers = Pool(half, reserve=half // 4)
        self.most = min((half - half // 4) // FRACTION, limits.FETCH_BYTES)  # granted to one answer, if nothing is held

    @property
    def pools(self) -> dict[str, Pool]:
        return {"requests": self.requests, "answers": self.answers}


class Peer(Protocol):
    """The connection that an account is of."""

    stalled_since: float | None  # since when it has not taken its answers

    @property
    def half_frame(self) -> bool:
        """It has begun a frame and not finished it, though it is being listened to."""

    def close_for(self, reason: str) -> None: ...


class Account:
    """What one connection holds."""

    __slots__ = (
        "_closed",
        "_granting",
        "_made",
        "_most",
        "_peer",
        "_reserved",
        "_resume",
        "answers",
        "is_empty",
        "paused",
        "received_bytes",
        "requests",
        "transport",
        "unsent_bytes",
        "waiting_bytes",
    )

    def __init__(self, memory: Memory, peer: Peer, resume: Callable[[], None]) -> None:
        """`resume` is called, soon, when the connection may be read again."""
        self._peer = peer
        self.requests = Share(memory.requests, self, self._read_on)
        self.answers = Share(memory.answers, self, self._answer_on)
        self.transport: asyncio.Transport | None = None
        self.received_bytes = 0  # so far
        self.waiting_bytes = 0  # of requests that are not answered yet
        self.unsent_bytes = 0  # of answers that the transport was given and has not taken all of
        self.is_empty = True  # nothing is counted; then small things need not be charged at all
        self.paused = False
        self._resume = resume
        self._made = 0  # bytes of answers that the connection holds
        self._most = memory.most
        self._reserved = 0  # bytes of answers that are still being made
        self._closed = False
        self._granting: list[asyncio.Future[None]] = []

    def charge(self, requests: int, answers: int) -> None:
        """The connection, which is open, holds so many bytes of each, besides those that are noted here."""
        share, answers = self.requests, answers + self.unsent_bytes
        share.hold(requests + self.waiting_bytes)
        if not share.used:
            if self.paused:
                share.step_back()
                self.paused = False
        elif not self.paused and share.room <= 0:
            self.paused = True
            share.wait()
        if answers != self._made:
            self._made = answers
            self._hold_answers()
        self.is_empty = not (share.used or self.answers.used)

    def _hold_answers(self) -> None:
        share, size = self.answers, self._made + self._reserved
        if share.used and size <= ALLOWANCE_BYTES and share.standing is Standing.NEWCOMER:
            share.standing = Standing.PROVEN
        share.hold(size)
        self.is_empty = not (share.used or self.requests.used)

    @property
    def is_excessive(self) -> bool:
        return self.requests.pool.is_excess(self.requests)

    def frame_came(self) -> None:
        """A frame is whole: if it was this connection's turn, it is the next one's."""
        if self.requests.pool.first is self.requests:
            self.requests.step_back()
            self.paused = False

    def trust(self) -> None:
        """It is a node."""
        self.requests.standing = self.answers.standing = Standing.NODE

    def note_progress(self, now: float) -> None:
        """Say how far the peer has come, for whoever waits for the memory that it holds."""
        self.requests.moved(self.received_bytes, now, excused=not self._peer.half_frame)
        left = self.transport.get_write_buffer_size() if self.transport is not None else 0
        self.answers.moved(self.unsent_bytes - left, now, excused=self._peer.stalled_since is None)

    def close_for(self, reason: str) -> None:
        self._peer.close_for(reason)

    def close(self) -> None:
        """Everything is returned; what comes later is not counted."""
        self._closed = True
        self.transport = None
        self.requests.leave()
        self.answers.leave()

    # -- for answers

    def grant(self) -> int:
        """Bytes that an answer may have, which is made now; 0: none may be made now."""
        pool = self.answers.pool
        if not pool.total:
            return self._most
        room = pool.room(self.answers)
        return min(room // FRACTION, limits.FETCH_BYTES) if room >= LEAST_ROOM_BYTES else 0

    async def granted(self) -> int:
        """`grant`, when there is something to grant."""
        while not (granted := self.grant()):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._granting.append(future)
            self.answers.wait()
            await future
        return granted

    def reserve(self, size: int) -> None:
        """So many bytes were read for an answer that is not given to the connection yet. Negative: not any more."""
        if not self._closed:
            self._reserved += size
            self._hold_answers()

    # -- called by the pools

    def _read_on(self) -> None:
        self.paused = False
        asyncio.get_running_loop().call_soon(self._resume)

    def _answer_on(self) -> None:
        waiting, self._granting = self._granting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
