"""Producer ids that are handed out once and never again.

Rule: an id is given only out of a block that the metadata log has recorded as used, so a crash loses ids, never
repeats them. Each node has its own block.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.commands import ProducerIdsTaken, TakeProducerIds

if TYPE_CHECKING:
    from headrace.broker.commands import Quorum

BLOCK = 1000


class ProducerIds:
    """See the module."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._next = 0
        self._end = 0
        self._one_at_a_time = asyncio.Lock()

    async def next_id(self) -> int:
        """Raises ApiError."""
        async with self._one_at_a_time:
            if self._next == self._end:
                block = await self._quorum.ask(TakeProducerIds(BLOCK))
                assert isinstance(block, ProducerIdsTaken)
                self._next, self._end = block.first, block.first + BLOCK
            given, self._next = self._next, self._next + 1
            return given
