"""The loop and its probe."""

from __future__ import annotations

import asyncio
import time

from headrace.core.counters import Histogram
from headrace.runtime import loop


def test_run_returns_what_main_returns():
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert loop.run(main()) in ("uvloop", "asyncio.unix_events")


def test_the_probe_sees_a_blocked_loop():
    delays = Histogram((0.01, 0.05))
    swept = []

    async def main() -> None:
        task = asyncio.create_task(loop.probe(delays, seconds=0.001, each=lambda: swept.append(1)))
        await asyncio.sleep(0)
        end = time.monotonic() + 0.1
        while time.monotonic() < end:  # hold the loop
            pass
        while not swept:
            await asyncio.sleep(0.001)
        task.cancel()

    loop.run(main())
    assert delays.counts[-1] >= 1
    assert delays.total > 0.05
