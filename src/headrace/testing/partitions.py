"""A partition over files in memory, for tests of what lies above."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.core.counters import Traffic
from headrace.storage.log import Log
from headrace.storage.memory import MemoryFiles
from headrace.storage.topic_config import TopicConfig
from headrace.testing.logs import sync
from headrace.testing.transactions import make_transactional
from headrace.wire import batch


class Clock:
    def now_ms(self) -> int:
        return 1000

    def monotonic(self) -> float:
        return 1.0


def open_partition(
    files: MemoryFiles | None = None, *, topic: str = "orders", index: int = 0, durable: bool = False, **config: Any
) -> Partition:
    """With `durable` the high watermark waits for `flush`."""
    settings = replace(TopicConfig(), flush="ack", storage="disk" if durable else "memory", **config)
    log = Log.open(files or MemoryFiles(), f"topics/{topic}-{index}", settings, now_ms=1000)
    return Partition(
        topic,
        UUID(int=1),
        index,
        log,
        leader_epoch=0,
        clock=Clock(),
        traffic=Traffic(),
        touched=lambda _: None,
    )


def flush(partition: Partition) -> None:
    sync(partition.log)
    partition.advance()


def write(partition: Partition, value: bytes, producer_id: int = -1, *, epoch: int = 0, sequence: int = 0) -> int:
    """Append one record, within a transaction if there is a producer; returns its offset."""
    if producer_id < 0:
        data = batch.build([(None, value)], timestamp_ms=1000)
    else:
        data = make_transactional([value], producer_id=producer_id, epoch=epoch, sequence=sequence, timestamp_ms=1000)
    return partition.append(bytearray(data), list(batch.headers(data))).base_offset
