"""Begins a coroutine at once: its first part runs before `begin` returns, as if it were a plain function.

A task of asyncio begins in the next pass of the loop, so that what is called after its making can overtake it. Python
3.12 has eager tasks; this does the same on 3.11.

Rules:
- What runs at once runs as part of its task: it may use timeouts and ask for the current task.
- A coroutine that never waits is finished when `begin` returns, and its outcome or its exception comes out of it.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def begin(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """The outcome if there is nothing to wait for, else the task that goes on. Raises what the first part raises."""
    begun = _Begun(work)
    task = loop.create_task(begun.rest())
    outer = asyncio.current_task(loop)
    if outer is not None:
        _leave_task(loop, outer)
    _enter_task(loop, task)
    try:
        begun.waits_for = work.send(None)
    except StopIteration as end:
        begun.is_finished = True
        outcome: T = end.value
        return outcome
    except BaseException:
        begun.is_finished = True
        raise
    finally:
        _leave_task(loop, task)
        if outer is not None:
            _enter_task(loop, outer)
    return task


class _Begun(Generic[T]):
    """A coroutine that has been driven to where it first waits."""

    __slots__ = ("_work", "is_finished", "waits_for")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.is_finished = False
        self.waits_for: Any = None

    async def rest(self) -> T:
        return await self

    def __await__(self) -> Generator[Any, Any, T]:
        if self.is_finished:
            return None  # type: ignore[return-value]  # nobody looks at it
        work, waits_for = self._work, self.waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
