"""Producer ids that are handed out once and never again.

Rule: an id is given only out of a block that the metadata log has recorded as used, so a crash loses ids, never
repeats them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.image import ProducerIdsRecord

if TYPE_CHECKING:
    from headrace.broker.controller import Controller

BLOCK = 1000


class ProducerIds:
    """See the module."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._next = 0
        self._end = 0
        self._one_at_a_time = asyncio.Lock()

    async def next_id(self) -> int:
        async with self._one_at_a_time:
            if self._next == self._end:
                start = self._controller.proposed.next_producer_id
                await self._controller.propose([ProducerIdsRecord(start + BLOCK)])
                self._next, self._end = start, start + BLOCK
            given, self._next = self._next, self._next + 1
            return given
