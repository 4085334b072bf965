"""The virtual-time loop: time, order, and processes that are paused and killed."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings

import pytest

from headrace.testing.sim.loop import Owner, SimLoop, StuckError


def run(coroutine: object, loop: SimLoop | None = None) -> object:
    return (loop or SimLoop()).run_until_complete(coroutine)


def test_an_hour_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600


def test_timers_of_one_moment_run_in_the_order_of_their_making() -> None:
    async def main() -> list[int]:
        found: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_at(1.0, found.append, number)
        await asyncio.sleep(2)
        return found

    assert run(main()) == list(range(50))


def test_who_waits_for_ever_is_told() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError):
        run(main())


def test_a_killed_process_runs_nothing_any_more_not_even_its_finally() -> None:
    loop = SimLoop()
    found: list[str] = []

    async def work() -> None:
        try:
            while True:
                found.append("work")
                await asyncio.sleep(1)
        finally:
            found.append("finally")

    async def main() -> None:
        owner = Owner("process")
        owner.context.run(loop.create_task, work())
        await asyncio.sleep(2.5)
        loop.kill(owner)
        await asyncio.sleep(10)

    run(main(), loop)
    assert found == ["work"] * 3


def test_a_paused_process_goes_on_where_it_was() -> None:
    loop = SimLoop()
    found: list[float] = []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            found.append(loop.time())

    async def main() -> None:
        owner = Owner("process")
        owner.context.run(loop.create_task, work())
        await asyncio.sleep(1.5)
        loop.pause(owner)
        await asyncio.sleep(10)
        loop.resume(owner)
        await asyncio.sleep(10)

    run(main(), loop)
    assert found == [1.0, 11.5, 12.5]


def test_a_deadline_of_asyncio_works_in_virtual_time() -> None:
    async def main() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(6)

    with pytest.raises(TimeoutError):
        run(main())


@pytest.mark.parametrize("end", ["killed", "killed while paused", "before the end", "after the end"])
def test_a_task_that_never_begins_is_no_coroutine_that_was_forgotten(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop()
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    async def work() -> None:
        raise AssertionError("nothing of it runs")

    async def main() -> None:
        owner = Owner("process")
        if end == "killed while paused":
            loop.pause(owner)
        owner.context.run(loop.create_task, work())
        if end == "killed while paused":
            await asyncio.sleep(1)
        loop.kill(owner)
        await asyncio.sleep(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if end.startswith("killed"):
            run(main(), loop)
        elif end == "before the end":
            loop.create_task(work())
        loop.close()
        if end == "after the end":
            loop.create_task(work())
        loop.forget_the_dead()
        gc.collect()
    assert seen == []


def test_who_is_busy_keeps_its_own_waiting_and_nobody_else() -> None:
    loop = SimLoop()
    seen: list[tuple[str, float]] = []
    busy, other = Owner("busy"), Owner("other")

    def work() -> None:
        loop.spend(0.5)
        seen.append(("work", loop.time()))

    async def main() -> None:
        busy.context.run(loop.call_later, 1.0, work)
        other.context.run(loop.call_later, 1.0, lambda: seen.append(("other", loop.time())))
        busy.context.run(loop.call_later, 1.1, lambda: seen.append(("late", loop.time())))
        busy.context.run(loop.call_later, 1.2, lambda: seen.append(("later", loop.time())))
        await asyncio.sleep(3)

    run(main(), loop)
    assert seen == [("work", 1.5), ("other", 1.0), ("late", 1.5), ("later", 1.5)]
