"""Reader: read chosen ranges of partitions, without a group. Nothing is committed.

Rules:
- A range ends before `stop`, or never. A reader whose ranges have all ended is exhausted.
- Offsets may have gaps (compaction, transaction markers): a range has also ended when the log has no more below `stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from headrace.client.connection import QUEUE_BACKOFF_MS, Connection, connection, open_client
from headrace.client.errors import translate
from headrace.client.message import Message, from_kafka

BATCH = 500
_PASSING = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `start` (inclusive) to `stop` (exclusive; None: follow for ever)."""

    topic: str
    partition: int
    start: int
    stop: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.stop is not None and self.start >= self.stop


class Reader:
    """See the module. `on_trouble` hears of lost connections, which are mended by themselves."""

    def __init__(
        self,
        ranges: Iterable[Range],
        *,
        bootstrap: str | Connection | None = None,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        self._open = {(each.topic, each.partition): each for each in ranges if not each.is_empty}
        self._connection = connection(bootstrap)
        config = self._connection.config(
            group_id="headrace-without-group",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            fetch_queue_backoff_ms=QUEUE_BACKOFF_MS,
        )
        if on_trouble is not None:
            config["error_cb"] = lambda error: on_trouble(error.str())
        self._consumer = open_client(confluent_kafka.Consumer, config)
        self._consumer.assign([TopicPartition(each.topic, each.partition, each.start) for each in self._open.values()])

    @property
    def exhausted(self) -> bool:
        return not self._open

    def batch(self, timeout_s: float = 0.2) -> list[Message]:
        """Messages that are ready, at most 500; none if nothing came in time."""
        if not self._open:
            return []
        wanted = []
        first = self._consumer.consume(1, timeout_s)  # asked for more, it would wait for all of them
        for raw in first + self._consumer.consume(BATCH - 1, 0) if first else ():
            fault = raw.error()
            if fault is not None:
                self._take_event(fault, raw)
            elif self._wants(raw):
                wanted.append(from_kafka(raw))
        return wanted

    def __iter__(self) -> Iterator[Message]:
        while self._open:
            yield from self.batch()

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wants(self, raw: confluent_kafka.Message) -> bool:
        where = (raw.topic() or "", raw.partition() or 0)
        offset = raw.offset() or 0
        span = self._open.get(where)
        if span is None:
            return False
        if span.stop is None:
            return True
        if offset + 1 >= span.stop:
            self._end(where)
        return offset < span.stop

    def _take_event(self, fault: KafkaError, raw: confluent_kafka.Message) -> None:
        where = (raw.topic() or "", raw.partition() or 0)
        if fault.code() == KafkaError._PARTITION_EOF:
            span = self._open.get(where)
            if span is not None and span.stop is not None:
                self._end(where)
        elif fault.code() not in _PASSING and not fault.retriable():
            raise translate(fault, f"read {where[0]}-{where[1]}")

    def _end(self, where: tuple[str, int]) -> None:
        del self._open[where]
        self._consumer.incremental_unassign([TopicPartition(*where)])
