"""Python's cyclic garbage collector, kept from looking at everything again and again.

A full collection looks at every object of the process and stops the loop meanwhile: a third of a second for the heap of
ten thousand topics. Nearly all of that lives for as long as the process does.

Rules:
- What has survived a full collection is set aside (`gc.freeze`), so that the next one looks at what is new only.
- Cycles among what was set aside are garbage that nobody finds, so when it has doubled since everything was last looked
  at, everything is looked at once more. Memory that is lost so is at most as much as is alive.
- It changes the whole process: for `headrace serve`, not for a broker that is embedded in somebody else's.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, Final

FULL: Final = 2
FEW: Final = 200_000  # objects that are not worth it: to look at them takes some hundredths of a second


class Keeper:
    """Sets aside what survives. One for a process."""

    def __init__(self, few: int = FEW) -> None:
        self._few = few
        self._looked_at = few  # objects that were alive when all were looked at

    def start(self) -> None:
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase != "stop" or info["generation"] != FULL:
            return
        if not gc.get_freeze_count():
            gc.freeze()
            self._looked_at = max(self._few, gc.get_freeze_count())
            return
        gc.freeze()
        if gc.get_freeze_count() > 2 * self._looked_at:
            gc.unfreeze()  # the next full collection looks at everything
