"""A coroutine that is begun at once behaves as its task would, only earlier."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.gateways.kafka.eager import begin


def run(scenario: Any) -> Any:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_soon(lambda: done.set_result(scenario(loop)))  # as a connection: outside of any task
        outcome = await done
        return await outcome if asyncio.isfuture(outcome) else outcome

    return asyncio.run(main())


def test_what_never_waits_is_finished_at_once():
    async def work() -> int:
        return 7

    assert run(lambda loop: (begin(loop, work()),)) == (7,)


def test_an_error_before_the_first_wait_comes_out_at_once():
    async def work() -> int:
        raise ValueError("no")

    def scenario(loop: Any) -> str:
        with pytest.raises(ValueError, match="no"):
            begin(loop, work())
        return "raised"

    assert run(scenario) == "raised"


def test_the_first_part_has_run_when_it_returns_and_the_rest_follows():
    lines: list[str] = []

    async def work() -> str:
        lines.append("begun")
        await asyncio.sleep(0)
        lines.append("ended")
        return "done"

    def scenario(loop: Any) -> Any:
        task = begin(loop, work())
        lines.append("returned")
        return task

    assert run(scenario) == "done"
    assert lines == ["begun", "returned", "ended"]


def test_timeouts_and_errors_work_across_the_first_wait():
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "in time"
        return "never"

    assert run(lambda loop: begin(loop, work())) == "in time"


def test_it_can_be_cancelled_before_and_after_it_goes_on():
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ends.append("ended")

    async def main(pause: int) -> None:
        task = begin(asyncio.get_running_loop(), work())
        assert isinstance(task, asyncio.Task)
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for pause in (0, 3):
        asyncio.run(main(pause))
    assert ends == ["ended", "ended"]


def test_it_may_be_begun_from_within_a_task():
    async def work() -> Any:
        first = asyncio.current_task()
        await asyncio.sleep(0)
        return first is asyncio.current_task()

    async def main() -> bool:
        outer = asyncio.current_task()
        task = begin(asyncio.get_running_loop(), work())
        assert asyncio.current_task() is outer
        return bool(await task)

    assert asyncio.run(main())
