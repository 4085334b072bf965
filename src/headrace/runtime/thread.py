"""A thread with an event loop of its own, for a broker that lives inside somebody else's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.runtime import loop as loops

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads until it is closed. A daemon: it never keeps a process alive."""

    def __init__(self, name: str) -> None:
        self._loop = loops.factory()()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run `work` there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
