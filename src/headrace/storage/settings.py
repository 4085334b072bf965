"""How logs are kept: the section `storage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.config import at_least, between, not_empty, setting
from headrace.core.units import DAY_MS, GIB, MIB, SECOND_MS

Kind = Literal["disk", "memory"]
Flush = Literal["ack", "interval", "os"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
RecordValidation = Literal["full", "ends", "header"]

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StorageSettings:
    data_dir: str = setting(
        "headrace-data",
        help="Directory of all logs and metadata.",
        check=not_empty,
        kafka="log.dirs",
        flag="--data-dir",
    )
    kind: Kind = setting("disk", help="Where logs live. Memory is lost at the end of the process.")
    accept_restored: bool = setting(
        False,
        help="Start on a data directory that is a copy, or was put back from one, although it may lack what was "
        "written since. In a cluster the other replicas are believed; alone, what it lacks is lost.",
        flag="--accept-restored",
    )
    flush: Flush = setting(
        "ack",
        help="When bytes are forced to the disk: before each acknowledgement (grouped), at intervals, or when the "
        "system likes. A power cut can lose acknowledged records with the last two.",
        flag="--flush",
    )
    flush_interval_ms: int = setting(
        1000, help="Longest time between syncs with flush=interval.", unit="ms", check=at_least(1)
    )
    flush_interval_bytes: int = setting(
        64 * MIB, help="Most unsynced bytes of a log with flush=interval.", unit="bytes", check=at_least(1)
    )
    read: Literal["pread", "mmap"] = setting("pread", help="How segments are read.")
    segment_bytes: int = setting(
        GIB,
        help="A segment of this size is sealed and a new one begun.",
        unit="bytes",
        check=between(MIB, _INT_MAX),
        kafka="log.segment.bytes",
    )
    segment_ms: int = setting(
        7 * DAY_MS,
        help="A segment of this age is sealed and a new one begun.",
        unit="ms",
        check=at_least(1),
        kafka="log.roll.ms",
    )
    retention_ms: int = setting(
        7 * DAY_MS,
        help="Sealed segments whose newest record is older are deleted; -1 keeps them for ever.",
        unit="ms",
        check=at_least(-1),
        kafka="log.retention.ms",
    )
    retention_bytes: int = setting(
        -1,
        help="The oldest segments of a partition are deleted while it is larger; -1 sets no limit.",
        unit="bytes",
        check=at_least(-1),
        kafka="log.retention.bytes",
    )
    retention_check_interval_ms: int = setting(
        30 * SECOND_MS,
        help="Time between looks for segments to seal or delete.",
        unit="ms",
        check=at_least(1),
        kafka="log.retention.check.interval.ms",
    )
    cleaner_interval_ms: int = setting(
        1000,
        help="Time between looks for logs to compact.",
        unit="ms",
        check=at_least(1),
        kafka="log.cleaner.backoff.ms",
    )
    cleaner_bytes_per_second: int = setting(
        64 * MIB,
        help="Most that compaction reads and writes in a second.",
        unit="bytes_per_second",
        check=at_least(1),
        kafka="log.cleaner.io.max.bytes.per.second",
    )
    cleaner_map_bytes: int = setting(
        64 * MIB,
        help="Memory for the keys of one compaction, while it runs. Keys that do not fit are left to the next one.",
        unit="bytes",
        check=at_least(MIB),
        kafka="log.cleaner.dedupe.buffer.size",
    )
    index_interval_bytes: int = setting(
        4096,
        help="Bytes of log for each entry of the offset and time index.",
        unit="bytes",
        check=between(0, _INT_MAX),
        kafka="log.index.interval.bytes",
    )
    max_message_bytes: int = setting(
        MIB + 12,
        help="Largest record batch that is accepted.",
        unit="bytes",
        check=between(0, _INT_MAX),
        kafka="message.max.bytes",
    )
    timestamp_type: TimestampType = setting(
        "CreateTime",
        help="Whose time a record carries: the producer's, or the broker's at the append.",
        kafka="log.message.timestamp.type",
    )
    record_validation: RecordValidation = setting(
        "ends",
        help="What is looked at in a producer's batch besides its header and checksum: every record; the first and the "
        "last one, after opening what is compressed; or nothing. Compacted topics look at every record.",
    )
    producer_expiry_ms: int = setting(
        DAY_MS,
        help="An idempotent producer that was silent for so long is forgotten.",
        unit="ms",
        check=at_least(1),
        kafka="producer.id.expiration.ms",
    )
