"""What is looked at in a producer's batch before it is appended (`headrace.record.validation`), and where.

Levels; header and CRC are checked in any case (`wire.batch.check`):
- `header`: nothing more. Whatever a producer says is believed.
- `ends`: a compressed batch is opened as a whole; the first and the last record must be right and in their places. The
  others are not looked at.
- `full`: every record is looked at, as in Kafka, timestamps included. Compacted topics have it whatever is configured,
  because each of their records needs a key.

Rules:
- Whatever takes long does not hold up the loop: `at_once` says so, and then `in_turns` opens the batch in a worker, and
  goes over its records in slices between which others have their turn.
- Batches of a usual size do not wait behind compression bombs: what opens to more than `USUAL_BYTES` is opened one at a
  time, and apart from the others. So memory is bounded, and so are the workers that are taken from the disk.
- The batch's largest timestamp is corrected if its records say otherwise, as Kafka does it. Nothing else is mended.
- `compression.type` is applied here, too: opening and compressing are the same kind of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.compressing import CODECS, in_codec
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import DECOMPRESSED_BYTES
from headrace.wire import batch
from headrace.wire.codecs import TooLargeToOpenError, room_for
from headrace.wire.layout import CODEC_MASK, HEADER_BYTES, NONE
from headrace.wire.validation import Opened, Scan, ends_are_right

if TYPE_CHECKING:
    from mmap import mmap

    from headrace.core.ports import Workers
    from headrace.storage.topic_config import TopicConfig
    from headrace.wire.batch import BatchHeader

Batches = tuple[bytes, list["BatchHeader"]]  # one batch, as it is appended
NowMs = Callable[[], int]

AT_ONCE_BYTES: Final = 32 * 1024  # a compressed batch up to this size is opened on the loop
AT_ONCE_OPENED_BYTES: Final = 256 * 1024
AT_ONCE_RECORDS: Final = 500  # that are looked at before others have their turn
USUAL_BYTES: Final = 4 * 1024 * 1024
OPENED_TOGETHER: Final = 2  # batches of a usual size
_LATEST_MS: Final = 1 << 62


class KeylessRecordError(ApiError):
    """A compacted topic got records without a key; the answer names the first of them."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(ErrorCode.invalid_record, "a compacted topic accepts only records that have a key")
        self.numbers = numbers


def at_once(records: bytes, headers: list[BatchHeader], config: TopicConfig, now_ms: NowMs) -> Batches | None:
    """The batch as it is to be appended; None: looking at it takes long, use `in_turns`. Raises ApiError."""
    header = headers[0]
    codec = header.attributes & CODEC_MASK
    level = config.record_validation
    recodes = _recodes(codec, config)
    looks_at_all = level == "full" or config.compacts
    if not looks_at_all and not recodes:
        if level == "header":
            return records, headers
        if codec == NONE and ends_are_right(records, HEADER_BYTES, header.size, header.count):
            return records, headers
    if header.size > AT_ONCE_BYTES and (codec != NONE or recodes):
        return None
    try:
        opened = Opened(records, header, AT_ONCE_OPENED_BYTES)
    except TooLargeToOpenError:
        return None
    if looks_at_all or not _ends(opened, header, level):
        if header.count > AT_ONCE_RECORDS:
            return None
        scan = Scan(opened, header, wants_keys=config.compacts)
        scan.step(header.count)
        records, headers = _settled(records, header, scan, config, now_ms)
    return in_codec(records, headers, config) if recodes else (records, headers)


class RecordValidation:
    """Looks at batches that take long. One for a node: it bounds what that takes."""

    def __init__(self) -> None:
        self._usual = asyncio.Semaphore(OPENED_TOGETHER)
        self._large = asyncio.Semaphore(1)
        self._rooms: list[mmap] = []  # that nobody uses now; at most one for each of `_usual`

    async def in_turns(
        self,
        records: bytes,
        headers: list[BatchHeader],
        config: TopicConfig,
        now_ms: NowMs,
        workers: Workers,
    ) -> Batches:
        """What `at_once` does, while others have their turn. Raises ApiError."""
        header = headers[0]
        if header.attributes & CODEC_MASK == NONE:
            opened = Opened(records, header, header.size)
            return await self._look(opened, records, headers, config, now_ms, workers)
        try:
            async with self._usual:
                room = self._rooms.pop() if self._rooms else room_for(USUAL_BYTES)
                try:
                    opened = await workers.run(partial(Opened, records, header, USUAL_BYTES, room))
                    found = await self._look(opened, records, headers, config, now_ms, workers)
                except ApiError:
                    self._rooms.append(room)
                    raise
                # Not `finally`: when we are cancelled, a worker may still be writing to the room.
                self._rooms.append(room)
                return found
        except TooLargeToOpenError:
            pass
        async with self._large:
            opened = await workers.run(partial(Opened, records, header, DECOMPRESSED_BYTES))
            return await self._look(opened, records, headers, config, now_ms, workers)

    async def _look(
        self,
        opened: Opened,
        records: bytes,
        headers: list[BatchHeader],
        config: TopicConfig,
        now_ms: NowMs,
        workers: Workers,
    ) -> Batches:
        header = headers[0]
        if config.record_validation == "full" or config.compacts or not _ends(opened, header, config.record_validation):
            scan = Scan(opened, header, wants_keys=config.compacts)
            while not scan.step(AT_ONCE_RECORDS) and not scan.keyless:
                await asyncio.sleep(0)
            records, headers = _settled(records, header, scan, config, now_ms)
        if _recodes(header.attributes & CODEC_MASK, config):
            return await workers.run(partial(in_codec, records, headers, config))
        return records, headers


def _recodes(codec: int, config: TopicConfig) -> bool:
    return config.compression_type != "producer" and CODECS[config.compression_type] != codec


def _ends(opened: Opened, header: BatchHeader, level: str) -> bool:
    return level == "header" or ends_are_right(opened.room, opened.start, opened.end, header.count)


def _settled(records: bytes, header: BatchHeader, scan: Scan, config: TopicConfig, now_ms: NowMs) -> Batches:
    """What the records say that only all of them can tell: keys and times. Raises ApiError."""
    if scan.keyless:
        raise KeylessRecordError(scan.keyless)
    if config.stamps_append_time:
        return records, [header]
    now = now_ms()
    oldest, newest = header.base_timestamp + scan.oldest, header.base_timestamp + scan.newest
    if oldest < -1 or newest > _LATEST_MS or -1 < oldest < now - config.timestamp_before_max_ms:
        raise ApiError(ErrorCode.invalid_timestamp, f"timestamps from {oldest} to {newest} are too far from {now}")
    if newest != header.max_timestamp:
        return batch.with_max_timestamp(records, header, newest)
    return records, [header]
