"""How much memory the requests and answers of all connections may take, and whose turn it is when that is short.

Rules:
- There are two pools: one for requests that are not whole or not answered, one for answers that are made and not taken.
  Each connection has a `Share` of both. Bytes are counted as they arrive or are made, never as they are promised.
- Up to `ALLOWANCE_BYTES` a share counts as nothing: small requests and small answers never wait for memory.
- A share may grow while it is smaller than what is free (dynamic thresholds: Choudhury and Hahne, 1998). So one may
  have half, two a third each, and those who hold little go before those who hold much. A reserve is kept for peers that
  have proved that they take their answers. Other nodes are counted and never wait.
- A share that may not grow waits in line. The first in the line of requests may go on until its frame is whole, so that
  unfinished frames cannot block each other: the pool is exceeded by one frame at most, besides what one read of each
  connection brings. Nobody but a node or the first in line brings it above twice its limit: whoever does is closed.
- While somebody waits, a share whose peer could move bytes and has not moved `PROGRESS_BYTES` in `STALL_SECONDS` is to
  be closed, the largest first. A peer that cannot move because of us is never blamed.
- Everything is returned when a connection goes.
- Pure: no clock, no sockets, no waiting. Times come in with the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from itertools import islice
from typing import Final, Protocol

from headrace.core.counters import PoolCounters
from headrace.core.limits import SMALL_BYTES

ALLOWANCE_BYTES: Final = SMALL_BYTES
LEAST_ROOM_BYTES: Final = 64 * 1024  # for less nobody is woken, and no answer is begun
FRACTION: Final = (
    4  # of its room that one answer may take; of a pool that closing one round of stalled peers shall free
)
STALL_SECONDS: Final = 2.0
PROGRESS_BYTES: Final = 256 * 1024
AT_ONCE: Final = 32  # of those in line that are looked at whenever something becomes free


class Standing(IntEnum):
    """How far a connection is trusted with memory."""

    NEWCOMER = 0
    PROVEN = 1  # it has taken a large answer before
    NODE = 2


NODE: Final = Standing.NODE  # the hot path looks at it


class Owner(Protocol):
    """The connection that a share belongs to."""

    def note_progress(self, now: float) -> None:
        """Call `Share.moved` for its shares."""

    def close_for(self, reason: str) -> None: ...


class Share:
    """What one connection holds of one pool."""

    __slots__ = ("_mark", "_since", "on_room", "owner", "pool", "standing", "used")

    def __init__(self, pool: Pool, owner: Owner, on_room: Callable[[], None]) -> None:
        self.pool = pool
        self.owner = owner
        self.on_room = on_room  # must not touch the pool
        self.standing = Standing.NEWCOMER
        self.used = 0  # 0, or more than the allowance
        self._since: float | None = None  # when it was first looked at, or has last moved
        self._mark = 0

    def hold(self, used: int) -> None:
        """It holds so many bytes now."""
        if used <= ALLOWANCE_BYTES:
            used = 0
        if used != self.used:
            self.pool.change(self, used)

    @property
    def room(self) -> int:
        """Bytes by which it may grow."""
        return self.pool.room(self)

    @property
    def waits(self) -> bool:
        return self in self.pool.line

    def wait(self) -> None:
        """Be told by `on_room`, once, when it may grow."""
        self.pool.queue(self)

    def step_back(self) -> None:
        """It does not want to grow any more, or its frame is whole: others may go first."""
        self.pool.unqueue(self)

    def moved(self, total: int, now: float, *, excused: bool) -> None:
        """Its peer has taken or brought `total` bytes so far. `excused`: it could not, because of us."""
        if excused or self._since is None or abs(total - self._mark) >= PROGRESS_BYTES:
            self._mark = total
            self._since = now

    def is_stalled(self, now: float) -> bool:
        return self._since is not None and now - self._since >= STALL_SECONDS and self.standing is not Standing.NODE

    def forget_progress(self) -> None:
        self._since = None

    def leave(self) -> None:
        """The connection is gone."""
        self.pool.unqueue(self)
        self.hold(0)


class Pool:
    """Bytes of one kind. `longest`: of a frame, that the first in line may reach; 0: being first gives no right."""

    def __init__(self, limit: int, *, reserve: int = 0, longest: int = 0) -> None:
        self.limit = limit
        self.reserve = reserve
        self.longest = longest
        self.counters = PoolCounters(limit_bytes=limit)
        self.total = 0
        self.peak = 0  # since somebody set it last
        self.line: dict[Share, None] = {}
        self.first: Share | None = None  # the one that may go on until its frame is whole
        self.holders: dict[Share, None] = {}
        self.on_pressure: Callable[[], None] | None = None  # told when somebody has to wait

    def change(self, share: Share, used: int) -> None:
        before, share.used = share.used, used
        self.total += used - before
        self.counters.used_bytes = self.total
        if self.total > self.peak:
            self.peak = self.total
        if not before:
            self.holders[share] = None
        elif not used:
            del self.holders[share]
            share.forget_progress()
            self._no_longer_first(share)
        if used < before and self.line:
            self.serve()

    def _no_longer_first(self, share: Share) -> None:
        """It holds nothing: nobody waits for its frame, and it need not wait to go on."""
        if self.first is share:
            self.first = None
        if self.longest and share in self.line:
            del self.line[share]
            share.on_room()

    def room(self, share: Share) -> int:
        free, standing = self.limit - self.total, share.standing
        if standing is NODE:
            return self.limit
        if share is self.first:
            return max(free, self.longest - share.used)
        return free - share.used - (0 if standing else self.reserve)

    def is_excess(self, share: Share) -> bool:
        """Whether a share has brought more than can be borne, whoever is to blame."""
        return self.total > 2 * self.limit and share is not self.first and share.standing is not Standing.NODE

    def queue(self, share: Share) -> None:
        self.line.setdefault(share)
        self.serve()
        if self.line and self.on_pressure is not None:
            self.on_pressure()

    def unqueue(self, share: Share) -> None:
        self.line.pop(share, None)
        self.counters.waiting = len(self.line)
        if self.first is share:
            self.first = None
            self.serve()

    def serve(self) -> None:
        """Wake those in line for whom there is room; what they are about to take is counted in advance."""
        line = self.line
        if self.longest and self.first is None and line:
            self.first = next(iter(line))
        if self.first is not None and self.first in line and self.first.room > 0:
            del line[self.first]
            self.first.on_room()
        left = self.limit - self.total
        for share in list(islice(line, AT_ONCE)) if left >= LEAST_ROOM_BYTES else ():
            del line[share]
            room = min(share.room, left - (self.reserve if share.standing is Standing.NEWCOMER else 0))
            if room >= LEAST_ROOM_BYTES:
                left -= max(room // FRACTION, LEAST_ROOM_BYTES)
                share.on_room()
            else:
                line[share] = None  # behind the others
        self.counters.waiting = len(line)

    def overdue(self, now: float) -> list[Share]:
        """Those to be closed, so that others need not wait for them any longer; the largest first."""
        stalled = {share: None for share in self.holders if share.is_stalled(now)}
        if all(share in stalled for share in self.line):
            return []
        freed, found = 0, []
        for share in sorted(stalled, key=lambda share: -share.used):
            if freed >= self.limit // FRACTION:
                break
            freed += share.used
            found.append(share)
        self.counters.closed += len(found)
        return found
