"""Whose turn it is: the time of one event loop, dealt out in slices among those who have something to do.

Rules:
- A flow brings work in pieces: a connection and its requests. Flows with a backlog are served by the time that they
  have used, not by the number of their pieces: start-time fair queueing (Goyal, Vin, Cheng 1996). Sparse flows, which
  have no backlog and have used little lately, come before them, as in FQ-CoDel (RFC 8290): whoever wants little waits
  for the piece that is under way, and not for those who want much. Some flow with a backlog is served in every pass.
- All flows together get `TURN_SECONDS` of each pass of the loop; in between, timers, sockets and tasks have theirs.
  While nobody waits, work is done where it arrives, and only its time is noted here (`spend`).
- A piece that takes long by itself (a request that names thousands of things) looks at `used_up` now and then and
  `rest`s. In each pass one of those that rest goes on, in the order in which they began to.
- It reads a clock and asks to be called back (`soon`); it knows nothing of sockets and requests.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

TURN_SECONDS: Final = 0.005  # of a pass of the loop, for all flows together
QUANTUM_SECONDS: Final = 0.001  # that a flow may use before the next one is chosen
STRETCH_SECONDS: Final = 0.002  # that a long piece of work may take before it rests
CREDIT_SECONDS: Final = 0.010  # that a flow may use beyond the others and still count as sparse
FEW_PIECES: Final = 8  # more are a backlog
NOTICE_SECONDS: Final = 0.002  # less than this is not worth a call back


class Flow(Protocol):
    """Whoever takes turns."""

    used: float  # seconds, on the scale of all flows: at least where they were when this one was served last
    queued: bool  # whether it waits for its turn; both are for `Turns` to write

    def serve(self, seconds: float) -> bool:
        """Work for so long, or one piece if that takes longer. Whether there is more to do at once."""


class Turns:
    """Deals out the time of one event loop."""

    def __init__(self, now: Callable[[], float], soon: Callable[[Callable[[], None]], object] | None = None) -> None:
        """`soon` has something called in the next pass; unless given, the running loop does."""
        self.now = now
        self.crowded = False  # newcomers have to queue: somebody waits, or the time of this pass is used up
        self.began_at = 0.0  # when the stretch of work that is under way began; set by whoever begins one
        self._soon = soon or _in_the_next_pass
        self._sparse: deque[Flow] = deque()
        self._backlogged: list[tuple[float, int, Flow]] = []  # a heap: by the time used, then in the order of arrival
        self._count = 0
        self._virtual_time = 0.0  # what the flow with a backlog that was chosen last had used
        self._resting: deque[asyncio.Future[None]] = deque()
        self._spent = 0.0  # in this pass, without queueing
        self._is_called = False

    def spend(self, flow: Flow, seconds: float) -> None:
        """A flow was served without queueing."""
        used = flow.used
        flow.used = (used if used > self._virtual_time else self._virtual_time) + seconds  # `max` takes its time
        self._spent += seconds
        if self._spent >= NOTICE_SECONDS:
            if self._spent >= TURN_SECONDS:
                self.crowded = True
            self._call()

    def enter(self, flow: Flow, pieces: int = 1) -> None:
        """Have it served when its turn comes, with so many pieces of work. Without effect if it waits already."""
        if flow.queued:
            return
        flow.queued = True
        flow.used = max(flow.used, self._virtual_time)
        if pieces <= FEW_PIECES and flow.used <= self._virtual_time + CREDIT_SECONDS:
            self._sparse.append(flow)
        else:
            self._push(flow)
        self.crowded = True
        self._call()

    @property
    def used_up(self) -> bool:
        """Whether the stretch of work that is under way has taken long enough."""
        return self.now() - self.began_at >= STRETCH_SECONDS

    async def rest(self) -> None:
        """Let others go on; returns when a new stretch may begin."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(turn)
        self._call()
        await turn
        self.began_at = self.now()

    def run(self) -> None:
        """One pass: serve those who wait, while there is time, and wake one of those who rest."""
        self._is_called = False
        self._spent = 0.0
        end = self.now() + TURN_SECONDS
        while self._sparse and self.now() < end:
            self._serve(self._sparse.popleft(), end)
        is_due = True
        while self._backlogged and (is_due or self.now() < end):
            is_due = False
            self._virtual_time, _, flow = heapq.heappop(self._backlogged)
            self._serve(flow, end)
        if not self._backlogged:
            self._virtual_time += TURN_SECONDS  # nobody is behind: what was used is forgotten little by little
        while self._resting:
            turn = self._resting.popleft()
            if not turn.done():  # whoever was cancelled has no use for it
                turn.set_result(None)
                break
        self.crowded = bool(self._sparse or self._backlogged)
        if self.crowded or self._resting:
            self._call()

    def _serve(self, flow: Flow, end: float) -> None:
        begun = self.now()
        flow.queued = flow.serve(min(end - begun, QUANTUM_SECONDS))
        flow.used = max(flow.used, self._virtual_time) + self.now() - begun
        if flow.queued:
            self._push(flow)

    def _push(self, flow: Flow) -> None:
        self._count += 1
        heapq.heappush(self._backlogged, (flow.used, self._count, flow))

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._soon(self.run)


def _in_the_next_pass(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
