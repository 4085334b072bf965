"""Blocking work leaves the loop's thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace.runtime.clock import SystemClock
from headrace.runtime.workers import ThreadWorkers


def test_work_runs_in_a_named_thread_and_answers_on_the_loop() -> None:
    async def main() -> tuple[str, str]:
        workers = ThreadWorkers(2, name="disk")
        try:
            return await workers.run(lambda: threading.current_thread().name), threading.current_thread().name
        finally:
            workers.close()

    there, here = asyncio.run(main())
    assert there.startswith("disk")
    assert there != here


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    async def main() -> None:
        workers = ThreadWorkers(1)
        try:
            await workers.run(lambda: 1 // 0)
        finally:
            workers.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_close_waits_for_what_has_begun() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    async def main() -> None:
        workers = ThreadWorkers(1)
        under_way = workers.run(work)
        begun.wait(60)
        may_end.set()
        workers.close()
        assert ended.is_set()
        await under_way

    asyncio.run(main())


def test_the_clock_counts_milliseconds() -> None:
    assert SystemClock().now_ms() > 1_700_000_000_000
