"""The part of a coordinator that this node has: a shard for each partition of an internal topic that it leads.

Rules:
- A name lives in one partition, chosen by Kafka's own formula, for ever. Whoever leads that partition coordinates it.
- A shard comes into being when this node begins to lead its partition, in every leader epoch anew: it is loaded from
  the log. It is gone when the node leads no more; who waits for it is told NOT_COORDINATOR.
- The topic is made when it is first needed, once for all who ask; a caller that goes away does not stop it. A node
  alone does not need it to look: what is not there has nothing in it. One of several cannot know that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.partition import Partition

START_SECONDS: Final = 60.0
NEW_SECONDS: Final = 1.0


class Shard(Protocol):
    """What is done to all shards alike."""

    def load(self) -> asyncio.Task[None]: ...

    def resign(self) -> None:
        """Another node leads the partition now."""

    async def stop(self) -> None: ...


class ShardedTopic(Protocol):
    """An internal topic."""

    @property
    def alone(self) -> bool:
        """Whether there is no other node."""

    def find(self) -> Sequence[Any]:
        """Its partitions in order, None for those that this node does not lead; none if there is no such topic yet."""

    async def ensure(self) -> Sequence[Any]:
        """The same, after making the topic if need be. Raises ApiError."""

    def absence(self, index: int) -> ApiError:
        """Why this node has no shard for a partition."""


S = TypeVar("S", bound=Shard)


def partition_for(name: str, partitions: int) -> int:
    """Where Kafka keeps a group or transactional id: Java's hash of its name, made positive, modulo the partitions."""
    utf16 = name.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(utf16), 2):
        value = (31 * value + (utf16[at] << 8 | utf16[at + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return (0 if value == -(1 << 31) else abs(value)) % partitions


class Shards(Generic[S]):
    """See the module. `make` gets a partition; `name` is the topic's."""

    def __init__(self, name: str, topic: ShardedTopic, make: Callable[[Any], S]) -> None:
        self._name = name
        self._topic = topic
        self._make_shard = make
        self._places: list[S | None] = []
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._opening: asyncio.Task[None] | None = None
        self._stopped = False

    def __iter__(self) -> Iterator[S]:
        """Those that are here."""
        return (shard for shard in self._places if shard is not None)

    def all_here(self) -> list[S]:
        """Those that should be here. Raises ApiError if one is not."""
        for index, shard in enumerate(self._places):
            if shard is None:
                absence = self._topic.absence(index)
                if absence.code is not ErrorCode.not_coordinator:
                    raise absence
        return list(self)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Load what there is; returns when it is loaded, or cannot be for now."""
        self._adopt(self._topic.find())
        await self._loaded(START_SECONDS)

    async def stop(self) -> None:
        self._stopped = True
        if self._opening is not None:
            self._opening.cancel()
        await asyncio.gather(*(shard.stop() for shard in self))

    def changed(self, partition: Partition) -> None:
        """This node leads a partition, or does so no more: one of the `watchers` of Partitions."""
        if partition.topic != self._name or self._stopped:
            return
        index = partition.index
        self._resize(max(index + 1, len(self._topic.find())))
        if (old := self._places[index]) is not None:
            self._places[index] = None
            old.resign()
        if partition.leads:
            self._put(index, partition)

    def _adopt(self, logs: Sequence[Any]) -> None:
        self._resize(len(logs))
        for index, log in enumerate(logs):
            if log is not None and self._places[index] is None:
                self._put(index, log)

    def _put(self, index: int, log: Any) -> None:
        shard = self._places[index] = self._make_shard(log)
        self._loading[index] = shard.load()

    def _resize(self, count: int) -> None:
        self._places += [None] * (count - len(self._places))

    async def _loaded(self, seconds: float) -> None:
        loading = [task for task in self._loading.values() if not task.done()]
        if loading:
            await asyncio.wait(loading, timeout=seconds)

    # ------------------------------------------------------------------ names

    def exist(self) -> bool:
        """Whether there is such a topic. Raises ApiError(not_coordinator) if only others can know."""
        if not self._places:
            self._resize(len(self._topic.find()))
        if not self._places and not self._topic.alone:
            raise ApiError(ErrorCode.not_coordinator, f"This node does not know {self._name}.")
        return bool(self._places)

    @property
    def are_open(self) -> bool:
        """Whether the topic is there, and is not being made."""
        return bool(self._places) and (self._opening is None or self._opening.done())

    def place_of(self, name: str) -> int:
        """The partition in which a name lives. The topic must be there."""
        return partition_for(name, len(self._places))

    def find(self, name: str) -> S:
        """The shard in which a name lives; the topic must be there. Raises ApiError if that is not ours."""
        index = self.place_of(name)
        shard = self._places[index]
        if shard is None:
            raise self._topic.absence(index)
        return shard

    async def whereabouts(self, name: str) -> int | None:
        """The partition in which a name lives; None if there is no topic, and a node that is alone needs none."""
        try:
            if not self.exist():
                return None
        except ApiError:
            await self.ensure()
        return self.place_of(name)

    async def ensure(self) -> None:
        """Have the topic made if need be. Raises ApiError."""
        if self._stopped:
            raise ApiError(ErrorCode.coordinator_not_available, "The coordinator is stopping.")
        if self._places:
            return
        opening = self._opening
        if opening is None or opening.done():
            opening = self._opening = asyncio.get_running_loop().create_task(self._make())
            opening.add_done_callback(_noticed)
        try:
            await asyncio.shield(opening)
        except ApiError as error:
            raise ApiError(ErrorCode.coordinator_not_available, f"{self._name} cannot be made: {error}") from error
        if not self._places:
            raise ApiError(ErrorCode.coordinator_not_available, f"{self._name} has no partitions.")

    async def _make(self) -> None:
        logs = await self._topic.ensure()
        if not self._stopped:
            self._adopt(logs)
            # A new topic is empty: clients need not be sent away while it is loaded.
            await self._loaded(NEW_SECONDS)


def _noticed(done: asyncio.Task[None]) -> None:
    """Whoever waited may have gone: an error that nobody is left to be told of is not worth a traceback."""
    if not done.cancelled():
        done.exception()
