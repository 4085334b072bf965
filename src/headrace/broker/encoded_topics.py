"""Topics as they stand in answers, encoded once for as long as they stay as they are.

Rules:
- What is kept depends on the topic's image and on which nodes are up, and on nothing else. An image shares what a
  change did not touch, so that one changed topic costs one entry; when a node comes or goes, all are made anew.
- A kind is a form of the answer (its version and what was asked for). A few kinds are kept, and so many bytes; the one
  that was used least recently goes first.
- How an entry is encoded is for the caller to know.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from headrace.broker.image import BrokerRecord, Image, TopicImage
from headrace.wire.encoder import Joined

KINDS: Final = 4
KEPT_BYTES: Final = 32 * 1024 * 1024

Encode = Callable[[TopicImage], bytes]


class Entries:
    """The entries of one kind."""

    __slots__ = ("_found", "_whole", "size_bytes")

    def __init__(self) -> None:
        self._found: dict[str, tuple[TopicImage, bytes]] = {}
        self._whole: tuple[Mapping[str, TopicImage], Joined] | None = None
        self.size_bytes = 0

    def get(self, topic: TopicImage, encode: Encode) -> bytes:
        """One topic."""
        found = self._found.get(topic.name)
        if found is not None:
            if found[0] is topic:
                return found[1]
            self.size_bytes -= len(found[1])
        encoded = encode(topic)
        self._found[topic.name] = topic, encoded
        self.size_bytes += len(encoded)
        return encoded

    def whole(self, image: Image) -> Joined | None:
        """All topics of an image, if they were kept."""
        return self._whole[1] if self._whole is not None and self._whole[0] is image.topics else None

    def keep_whole(self, image: Image, joined: Joined) -> None:
        if self._whole is not None:
            self.size_bytes -= len(self._whole[1].encoded)
        self._whole = image.topics, joined
        self.size_bytes += len(joined.encoded)
        for name in [name for name in self._found if name not in image.topics]:
            self.size_bytes -= len(self._found.pop(name)[1])


class EncodedTopics:
    """The entries of all kinds."""

    def __init__(self, *, kinds: int = KINDS, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_kinds = kinds
        self._kept_bytes = kept_bytes
        self._kinds: OrderedDict[Hashable, Entries] = OrderedDict()
        self._brokers: Mapping[int, BrokerRecord] | None = None
        self._up: frozenset[int] = frozenset()

    @property
    def size_bytes(self) -> int:
        return sum(entries.size_bytes for entries in self._kinds.values())

    def of(self, kind: Hashable, image: Image) -> Entries:
        """The entries of a kind that are true of this image. What was kept too much goes now."""
        if self._brokers is not image.brokers:
            self._brokers = image.brokers
            up = frozenset(node.node_id for node in image.brokers.values() if not node.fenced)
            if up != self._up:
                self._up = up
                self._kinds.clear()
        while self._kinds and (len(self._kinds) > self._most_kinds or self.size_bytes > self._kept_bytes):
            self._kinds.popitem(last=False)
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = Entries()
        self._kinds.move_to_end(kind)
        return found
