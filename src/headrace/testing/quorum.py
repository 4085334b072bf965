"""Several controllers in one loop, with links that can be cut: what tests of the quorum need. No time but ticks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from headrace.broker.controller import SNAPSHOT_AFTER, Controller
from headrace.broker.raft_storage import UnsavedStorage
from headrace.testing.metadata import InlineWorkers

if TYPE_CHECKING:
    from headrace.broker.raft_storage import DurableStorage
    from headrace.raft.messages import Message


class Assembly:
    """Controllers by node id. Messages wait in one queue until `settle` delivers them; time passes with `tick`."""

    def __init__(self, *, snapshot_after: int = SNAPSHOT_AFTER) -> None:
        self.nodes: dict[int, Controller] = {}
        self.storages: dict[int, DurableStorage] = {}
        self.down: set[int] = set()
        self._snapshot_after = snapshot_after
        self._queue: deque[tuple[int, int, Sequence[Message]]] = deque()

    def add(self, node_id: int, *, found: bool = False) -> Controller:
        """Start a node: a new one, or again with what it has saved."""
        storage = self.storages.setdefault(node_id, UnsavedStorage())
        controller = Controller(
            storage,
            workers=InlineWorkers(),
            dice=Random(node_id),
            node_id=node_id,
            snapshot_after=self._snapshot_after,
            tick_s=1e6,
            send=lambda to, messages: self._queue.append((node_id, to, messages)),
        )
        controller.load(found=found)
        controller.start()
        self.nodes[node_id] = controller
        self.down.discard(node_id)
        return controller

    @property
    def leader(self) -> Controller | None:
        """Who leads in the latest term, among those who are up."""
        leading = [node for n, node in self.nodes.items() if n not in self.down and node.leads]
        return max(leading, key=lambda node: node.quorum.term, default=None)

    async def settle(self) -> None:
        """Deliver until nothing is on its way and nobody has anything to do."""
        idle = 0
        while idle < 5:
            idle = 0 if self._queue else idle + 1
            while self._queue:
                sender, to, messages = self._queue.popleft()
                if to in self.nodes and not {sender, to} & self.down:
                    self.nodes[to].quorum.receive(messages)
            await asyncio.sleep(0)

    async def tick(self, times: int = 1) -> None:
        for _ in range(times):
            for node_id, node in self.nodes.items():
                if node_id not in self.down:
                    node.quorum.tick()
            await self.settle()

    async def elect(self) -> Controller:
        """Let time pass until somebody leads."""
        for _ in range(200):
            if (leader := self.leader) is not None:
                return leader
            await self.tick()
        raise AssertionError("nobody was elected")
