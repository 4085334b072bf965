"""An event loop in virtual time: a second lasts as long as there is work in it, and the same seed is the same run.

Rules:
- No threads, no sockets, no waiting. Time moves to the next timer when nothing is ready.
- What is ready runs in the order in which it became ready; timers of the same moment in the order of their making.
- Whatever runs belongs to an `Owner`, the process that it would be part of: callbacks and tasks inherit it through
  their context. An owner can be paused (nothing of it runs, and nothing is lost) and killed (nothing of it ever runs
  again, not even its `finally`).
- A callback takes no time unless it says so (`spend`); then its owner is busy, as a process with one thread is.
- What the dead leave behind is kept until the loop is closed: a garbage collector must not run code of theirs.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(Exception):
    """Nothing is ready and no timer runs: everybody waits for ever."""


class Owner:
    """A process of the simulation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.held: list[events.Handle] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.busy_until = 0.0  # its processor is at work: nothing else of it runs before
        self.context = copy_context()
        self.context.run(OWNER.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class Turn(events.Handle):
    """A callback that is ready."""

    __slots__ = ()


class Timer(events.TimerHandle):
    """A callback that will be."""

    __slots__ = ()


class SimLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._now = 0.0
        self._spent_s = 0.0  # by the callback that runs
        self._ready: deque[events.Handle] = deque()
        self._timers: list[tuple[float, int, events.Handle]] = []
        self._count = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._graveyard: list[object] = []
        self.turns = 0

    # -- time and turns

    def time(self) -> float:
        return self._now + self._spent_s

    def spend(self, seconds: float) -> None:
        """Let the callback that runs take so long: what is ready of its owner waits for it, all others go on."""
        self._spent_s += seconds

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        turn = Turn(callback, args, self, context)
        if self._closed:
            _drop(turn)
        else:
            self._ready.append(turn)
        return turn

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = Timer(when, callback, args, self, context)
        if not self._closed:
            self._count += 1
            heapq.heappush(self._timers, (when, self._count, timer))
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """asyncio's timers tell when they are cancelled. They fall out when their time comes."""

    def _turn(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise StuckError("nothing will ever happen again")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            owner = handle._context.get(OWNER)  # type: ignore[attr-defined]
            if owner is not None:
                if not owner.alive:
                    _drop(handle)
                    continue
                if owner.paused:
                    owner.held.append(handle)
                    continue
                if owner.busy_until > self._now:
                    self._count += 1
                    heapq.heappush(timers, (owner.busy_until, self._count, handle))
                    continue
            self.turns += 1
            handle._run()
            if self._spent_s:
                if owner is not None:
                    owner.busy_until = self.time()
                self._spent_s = 0.0
            if self._stopping:
                break

    # -- owners

    def pause(self, owner: Owner) -> None:
        owner.paused = True

    def resume(self, owner: Owner) -> None:
        owner.paused = False
        held, owner.held = owner.held, []
        self._ready.extend(held)

    def kill(self, owner: Owner) -> None:
        owner.alive = False
        self._graveyard += [owner, *owner.held]
        for handle in owner.held:
            _drop(handle)
        owner.held = []

    def bury(self, what: object) -> None:
        """Keep it until the end."""
        self._graveyard.append(what)

    def forget_the_dead(self) -> None:
        self._graveyard.clear()

    # -- running

    def run_forever(self) -> None:
        self._running = True
        events._set_running_loop(self)
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._stopping = False
            self._running = False
            events._set_running_loop(None)

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        return task.result()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        for handle in (*self._ready, *(handle for *_, handle in sorted(self._timers))):
            _drop(handle)
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None: ...

    async def shutdown_default_executor(self) -> None: ...

    # -- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = (context or copy_context()).get(OWNER)
        if owner is not None:  # asyncio itself holds tasks weakly only
            owner.tasks[task] = None
            task.add_done_callback(lambda done: owner.tasks.pop(done, None))
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError("a simulation has no threads")

    # -- faults of ours

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None: ...

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is not None and not self._closed:
            self._handler(self, context)


def _drop(handle: events.Handle) -> None:
    """It will never run. A task that has not begun is closed, or Python would complain that nobody awaited it."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()
