"""What the data directory's manifest knows of this node's logs, kept in step with them while the broker runs.

Rules:
- The loop's thread notes; workers write, one write at a time. Whoever waits for `saved` shares the next one.
- Known ends follow by and by (`checkpoint`) and are exact after a clean stop. Before a log is cut, its end is unknown,
  durably: `careful` workers see to that. The high watermark stays: what was committed stays committed.
- A full disk passes: what was noted is written with the next save. A failed one is `on_failure`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import msgspec

from headrace.core.errors import DiskFailedError, StorageError
from headrace.storage.identity import Trust
from headrace.storage.manifest import Known, Manifest, Place

if TYPE_CHECKING:
    from headrace.broker.log_opening import Opening
    from headrace.broker.partition import Partition
    from headrace.core.ports import Workers

logger = logging.getLogger(__name__)

T = TypeVar("T")
DurablePlace = Callable[[], tuple[int, int] | None]


class KnownLogs:
    """The manifest of the data directory, for the parts of a broker."""

    def __init__(self, manifest: Manifest, workers: Workers) -> None:
        self._manifest = manifest
        self._workers = workers
        self._turn = asyncio.Lock()
        self.trust = Trust(manifest.is_damaged, manifest.adopts)
        self._durable_place: DurablePlace = lambda: None
        self._on_failure: Callable[[StorageError], None] | None = None

    def serve(self, durable_place: DurablePlace, *, on_failure: Callable[[StorageError], None]) -> None:
        """`durable_place`: index and term of metadata that was applied and is durable; see `Controller`."""
        self._durable_place, self._on_failure = durable_place, on_failure

    def get(self, topic: str, index: int) -> Known | None:
        return self._manifest[topic, index]

    def unsure(self) -> list[Place]:
        """Logs that may lack records, as an operator has accepted: the cluster is to be told."""
        return [place for place, known in self._manifest.entries.items() if known.unsure]

    def sure(self, places: Iterable[Place]) -> None:
        """The cluster has been told."""
        for place in places:
            if (known := self._manifest[place]) is not None:
                self._manifest.note(place, msgspec.structs.replace(known, unsure=False))

    def opened(self, wanted: Opening, fingerprint: int) -> None:
        """A log is open, and its directory's name is durable."""
        place, known = (wanted.topic, wanted.index), wanted.known
        if known is None or known.topic_id != wanted.topic_id:
            known = Known(wanted.topic_id)
        elif wanted.anew:
            known = Known(wanted.topic_id, high_watermark=known.high_watermark)
        self._manifest.note(place, msgspec.structs.replace(known, fingerprint=fingerprint, is_exact=False))

    def missed(self, wanted: Opening) -> None:
        """A log is not there, and should be: later starts must know that, too."""
        place = wanted.topic, wanted.index
        if self._manifest[place] is None:
            self._manifest.note(place, Known(wanted.topic_id))

    def removed(self, topic: str, index: int, topic_id: UUID) -> None:
        """A log was removed, since this node has no replica any more."""
        if (known := self._manifest[topic, index]) is not None and known.topic_id == topic_id:
            self._manifest.forget((topic, index))

    def keep(self, ours: Mapping[Place, UUID]) -> None:
        """Forget logs that belong to no topic any more."""
        for place, known in list(self._manifest.entries.items()):
            if ours.get(place) != known.topic_id:
                self._manifest.forget(place)

    def note(self, partition: Partition, *, is_exact: bool = False) -> None:
        """What is durable of a partition's log now. `is_exact`: it is closed."""
        log, place = partition.log, (partition.topic, partition.index)
        known = self._manifest[place]
        if known is None or known.topic_id != partition.topic_id or log.config.storage == "memory":
            return
        end_offset, high_watermark = log.flushed_offset, max(known.high_watermark, partition.high_watermark)
        if (end_offset, high_watermark, is_exact) != (known.end_offset, known.high_watermark, known.is_exact):
            self._manifest.note(
                place,
                msgspec.structs.replace(
                    known,
                    end_offset=end_offset,
                    leader_epoch=log.epochs.epoch_at(end_offset - 1),
                    high_watermark=high_watermark,
                    is_exact=is_exact,
                ),
            )

    async def checkpoint(self, partitions: Iterable[Partition]) -> None:
        """Note and save what has moved."""
        for partition in partitions:
            if partition.log.failed is None and not partition.log.cutting:
                self.note(partition)
        self.note_metadata()
        try:
            await self.saved()
        except StorageError as error:
            logger.warning("the manifest of the data directory cannot be written", extra={"reason": str(error)})

    def note_metadata(self) -> None:
        if (place := self._durable_place()) is not None:
            self._manifest.note_applied(*place)

    async def saved(self) -> None:
        """Wait until all that was noted is durable. Raises StorageError."""
        await asyncio.shield(asyncio.ensure_future(self._save()))  # whatever becomes of the one who waits

    async def _save(self) -> None:
        async with self._turn:
            write = self._manifest.begin_write()
            if write is None:
                return
            try:
                await self._workers.run(write.run)
            except StorageError as error:
                self._manifest.put_back(write)
                if isinstance(error, DiskFailedError) and self._on_failure is not None:
                    self._on_failure(error)
                raise
            self._manifest.end_write(write)

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        async with self._turn:
            return

    def save(self) -> None:
        """The same at start-up and at the very end, when nothing else runs. Blocking."""
        self._manifest.save()

    def careful(self, partition: Partition) -> Workers:
        """Workers that may cut a partition's log: its end is unknown before they begin."""
        return _Careful(self, partition)

    async def cut(self, partition: Partition, work: Callable[[], T]) -> T:
        """Raises StorageError."""
        place = partition.topic, partition.index
        known = self._manifest[place]
        if known is not None and known.topic_id == partition.topic_id and known.end_offset:
            self._manifest.note(place, msgspec.structs.replace(known, end_offset=0, leader_epoch=-1))
            await self.saved()
        return await self._workers.run(work)


class _Careful:
    """See `KnownLogs.careful`."""

    def __init__(self, known: KnownLogs, partition: Partition) -> None:
        self._known = known
        self._partition = partition

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._known.cut(self._partition, work)
