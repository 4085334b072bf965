"""Keeps the catalog of segments in step with the logs, from time to time and never on the hot path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.catalog import Catalog, CatalogEntry, Key

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.core.ports import Workers


class Cataloguing:
    """Compares each log with what it last looked like; only those that moved are looked into."""

    def __init__(self, catalog: Catalog, partitions: Partitions, workers: Workers) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._workers = workers
        self._seen: dict[Partition, tuple[int, int, int]] = {}
        self._entries: dict[Partition, dict[Key, CatalogEntry]] = {}

    def start(self) -> None:
        """Begin a new catalog from the logs. Blocking."""
        self._look()
        self._catalog.take()
        self._catalog.rebuild(entry for entries in self._entries.values() for entry in entries.values())

    async def update(self) -> None:
        """One round."""
        self._look()
        changes = self._catalog.take()
        if changes is not None:
            await self._workers.run(changes.run)

    def _look(self) -> None:
        alive = {partition: None for partition in self._partitions if partition.log.config.storage == "disk"}
        for partition in [partition for partition in self._seen if partition not in alive]:
            del self._seen[partition]
            self._forget(self._entries.pop(partition))
        for partition in alive:
            log = partition.log
            place = (log.start_offset, log.end_offset, log.size_bytes)
            if self._seen.get(partition) != place:
                self._seen[partition] = place
                self._compare(partition)

    def _compare(self, partition: Partition) -> None:
        entries = {entry.key: entry for entry in entries_of(partition)}
        known = self._entries.get(partition, {})
        self._entries[partition] = entries
        self._forget({key: entry for key, entry in known.items() if key not in entries})
        for key, entry in entries.items():
            if known.get(key) != entry:
                self._catalog.note(entry)

    def _forget(self, entries: dict[Key, CatalogEntry]) -> None:
        for key in entries:
            self._catalog.forget(*key)


def entries_of(partition: Partition) -> list[CatalogEntry]:
    """What the catalog says of one partition."""
    return [
        CatalogEntry(
            partition.topic,
            partition.index,
            segment.base_offset,
            segment.end_offset,
            segment.min_timestamp,
            segment.max_timestamp,
            segment.size_bytes,
            "sealed" if segment.sealed else "active",
        )
        for segment in partition.log.segments()
    ]
