"""Nodes that have just gone, or seem to, and what clients are told meanwhile.

Rules:
- A node is doubted when it ends a connection, or when its machine says that nobody listens there, until a connection is
  made again or the cluster has fenced it. Doubt decides nothing. A refusal is passed on to those who look and vote.
- Metadata that would name a doubted leader waits until somebody else leads, but never longer than `PATIENCE_S` from
  the first doubt: a client that is told of a dead leader asks again only after a second or so.
- A node that was fenced a moment ago is still told to clients. librdkafka (2.10 and later) forgets a broker that is not
  told any more, and with it the new leader of every partition that was there, until it asks the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.ports import Contact

if TYPE_CHECKING:
    from headrace.broker.image import Image

PATIENCE_S: Final = 1.0
LINGER_S: Final = 5.0


class Departures:
    """See the module. `contact` hears from the links, `changed` is subscribed to the controller."""

    def __init__(self, on_refusal: Sequence[Callable[[int], None]] = ()) -> None:
        self.on_refusal = on_refusal
        self._fenced_at: dict[int, float] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._doubted: dict[int, float] = {}  # since when

    @property
    def is_in_doubt(self) -> bool:
        """Whether there is anything that `settled` might wait for."""
        return self._patience_s(self._doubted) > 0

    def contact(self, node: int, contact: Contact) -> None:
        if contact is Contact.MADE:
            if self._doubted.pop(node, None) is not None:
                self._wake()
            return
        if node not in self._fenced_at:
            self._doubted.setdefault(node, self._now())
        if contact is Contact.REFUSED:
            for tell in self.on_refusal:
                tell(node)

    def changed(self, old: Image, new: Image) -> None:
        if new.brokers is not old.brokers:
            for node in new.brokers.values():
                known = old.brokers.get(node.node_id)
                if not node.fenced:
                    self._fenced_at.pop(node.node_id, None)
                elif known is not None and not known.fenced:
                    self._fenced_at[node.node_id] = self._now()
                    self._doubted.pop(node.node_id, None)
            for gone in [node for node in self._doubted if node not in new.brokers]:
                del self._doubted[gone]
        self._wake()

    def lingers(self, node: int) -> bool:
        """Whether a fenced node is one that clients should still be told of."""
        since = self._fenced_at.get(node)
        return since is not None and self._now() < since + LINGER_S

    async def settled(self, leaders: Callable[[], Collection[int]]) -> None:
        """Wait until none of these leaders is doubted, or has been for long."""
        while (patience_s := self._patience_s(leaders())) > 0:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiting] = None
            try:
                async with asyncio.timeout(patience_s):
                    await waiting
            except TimeoutError:
                return
            finally:
                self._waiting.pop(waiting, None)

    def _patience_s(self, leaders: Collection[int]) -> float:
        since = [at for node, at in self._doubted.items() if node in leaders]
        return max(since) + PATIENCE_S - self._now() if since else 0.0

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
