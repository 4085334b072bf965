"""A partition's append-only log.

Rules:
- One thread owns a log. Only `Span.read` and `Sync.run` may run in a worker thread.
- `append` leaves either the whole of its batches in the log, or nothing.
- `flushed_offset` moves only after a sync that covers it has succeeded. It never moves back except by `truncate`.
- Nothing below `flushed_offset` is ever cut by recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.ports import Files
    from headrace.storage.topic_config import TopicConfig
    from headrace.wire.batch import BatchHeader


@dataclass(slots=True)
class Appended:
    """Where an append landed."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic stamps LogAppendTime
    duplicate: bool = False  # the producer had sent this batch before; the offsets are those of the first time


class Span:
    """A run of whole batches that is ready to be read. `next_offset` follows its last record."""

    next_offset: int

    def read_now(self) -> bytes | None:
        """The batches, or None if a disk would have to be waited for."""
        raise NotImplementedError

    def read(self) -> bytes:
        """Blocking; for a worker thread."""
        raise NotImplementedError


class Sync:
    """What has to reach the disk so that everything below `end_offset` is durable."""

    end_offset: int

    def run(self) -> None:
        """Blocking; for a worker thread. Raises DiskFailedError."""
        raise NotImplementedError


class Log:
    """See the module."""

    start_offset: int
    end_offset: int
    flushed_offset: int
    size_bytes: int
    config: TopicConfig

    @classmethod
    def open(cls, files: Files, path: str, config: TopicConfig, *, now_ms: int) -> Log:
        """Create, or recover what is there. Blocking. Raises CorruptionError if durable bytes are damaged."""
        raise NotImplementedError

    def append(
        self, data: bytearray, headers: Sequence[BatchHeader], *, leader_epoch: int, now_ms: int, stamp: bool = True
    ) -> Appended:
        """Append checked batches (`wire.batch.check`), stamped with offsets and epoch unless `stamp` is false.

        Raises ApiError (sequence and epoch errors of idempotent producers, invalid_timestamp) or StorageError;
        in both cases nothing was appended.
        """
        raise NotImplementedError

    def locate(self, offset: int, max_bytes: int, limit_offset: int) -> Span | None:
        """The batches from the one that holds `offset`, below `limit_offset`, of about `max_bytes`, at least one.

        None when there is nothing between `offset` and `limit_offset`. Raises ApiError(offset_out_of_range).
        """
        raise NotImplementedError

    def begin_sync(self) -> Sync | None:
        """None if nothing is dirty."""
        raise NotImplementedError

    def end_sync(self, sync: Sync) -> None:
        """The sync succeeded: move `flushed_offset`."""
        raise NotImplementedError
