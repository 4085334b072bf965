"""The metadata log: in a `storage.log.Log`, one record batch with one record per entry; or in memory, kept nowhere.

Rules:
- Every sync moves the recovery point, too: an entry that was ever believed is never taken for a torn tail and cut.
- One sync runs at a time; those who wait share the next one.
- A failed sync is final.
- It knows entries as bytes only; `controller` knows what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, CorruptionError, StorageError
from headrace.core.units import MIB
from headrace.storage.log import Log
from headrace.storage.topic_config import TopicConfig
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Files, Workers
    from headrace.storage.settings import StorageSettings

PATH: Final = "metadata"
READ_BYTES: Final = 8 * MIB
ENTRY_BYTES: Final = 2**31 - 1  # a snapshot is one entry, as large as the cluster
LEADER_EPOCH: Final = 0
# Small segments, so that a snapshot soon frees what it replaces. Nothing else ever deletes an entry.
CONFIGS: Final = {"segment.bytes": str(MIB), "retention.ms": "-1", "retention.bytes": "-1"}


class StoredMetadataLog:
    """A `MetadataLog` over a `Log` that nobody else touches."""

    def __init__(self, log: Log, workers: Workers, clock: Clock) -> None:
        self._log = log
        self._workers = workers
        self._clock = clock
        self._one_sync = asyncio.Lock()

    @classmethod
    def open(cls, files: Files, settings: StorageSettings, workers: Workers, clock: Clock) -> StoredMetadataLog:
        """Create, or recover what is there. Blocking. Raises StorageError."""
        log = Log.open(files, PATH, TopicConfig.of(CONFIGS, settings), now_ms=clock.now_ms())
        return cls(log, workers, clock)

    def append(self, entry: bytes) -> int:
        now_ms = self._clock.now_ms()
        data = bytearray(batch.build([(None, entry)], timestamp_ms=now_ms))
        headers = list(batch.headers(data))
        return self._log.append(data, headers, leader_epoch=LEADER_EPOCH, now_ms=now_ms).base_offset

    async def synced(self, offset: int) -> None:
        async with self._one_sync:
            if self._log.flushed_offset > offset:
                return
            sync = self._log.begin_sync(checkpoint=True)
            if sync is None:
                return
            try:
                await self._workers.run(sync.run)
            except StorageError as error:
                self._log.fail(error)
                raise
            self._log.end_sync(sync)

    def read_all(self) -> Iterator[tuple[int, bytes]]:
        log = self._log
        offset = log.start_offset
        while (span := log.locate(offset, READ_BYTES, log.end_offset)) is not None:
            for found, entry in _entries(span.read()):
                if found >= offset:
                    yield found, entry
            offset = span.next_offset

    def delete_before(self, offset: int) -> None:
        self._log.delete_before(offset)  # the next sync makes it durable and removes the files

    def close(self) -> None:
        """Blocking."""
        self._log.close()


def _entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    for header in batch.headers(data):
        if not batch.crc_matches(data, header):
            raise CorruptionError(f"the metadata log has a bad checksum at entry {header.base_offset}")
        try:
            for record in batch.records(data, header, max_bytes=ENTRY_BYTES):
                yield record.offset, record.value or b""
        except ApiError as error:
            raise CorruptionError(f"the metadata log is damaged at entry {header.base_offset}: {error}") from error


class MemoryMetadataLog:
    """A `MetadataLog` that lives as long as its process: for tests, and for brokers that keep nothing."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self._next_offset = 0

    def append(self, entry: bytes) -> int:
        offset = self._next_offset
        self.entries[offset] = entry
        self._next_offset += 1
        return offset

    async def synced(self, offset: int) -> None:
        return None

    def read_all(self) -> Iterator[tuple[int, bytes]]:
        return iter(list(self.entries.items()))

    def delete_before(self, offset: int) -> None:
        self.entries = {at: entry for at, entry in self.entries.items() if at >= offset}
