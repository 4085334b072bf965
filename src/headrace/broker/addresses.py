"""Where the other nodes are: what the image says, and until then whatever is known.

Rules:
- What somebody has told lately (gossip, the node itself) goes before the image, until the image says something new of
  that node: a node that came back elsewhere must be found before its registration can be committed.
- What an older log says is better than nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.image import Image
    from headrace.core.ports import Address


class AddressBook:
    """See the module. `changed` is subscribed to the controller."""

    def __init__(self) -> None:
        self._told: dict[int, Address] = {}
        self._hints: dict[int, Address] = {}
        self._image: Image | None = None

    def hint(self, addresses: Mapping[int, Address]) -> None:
        """What was true once."""
        self._hints.update(addresses)

    def told(self, node_id: int, address: Address) -> None:
        """Somebody says that a node is there now."""
        self._told[node_id] = address

    def changed(self, old: Image, new: Image) -> None:
        self._image = new
        for node_id, node in new.brokers.items():
            before = old.brokers.get(node_id)
            if before is None or (before.host, before.port) != (node.host, node.port):
                self._told.pop(node_id, None)

    def others(self, node_id: int) -> list[Address]:
        """Where all but one node are, or were."""
        known = {*self._hints, *self._told, *(self._image.brokers if self._image is not None else ())} - {node_id}
        return [address for other in sorted(known) if (address := self.get(other)) is not None]

    def get(self, node_id: int) -> Address | None:
        told = self._told.get(node_id)
        if told is not None:
            return told
        known = self._image.brokers.get(node_id) if self._image is not None else None
        return (known.host, known.port) if known is not None else self._hints.get(node_id)
