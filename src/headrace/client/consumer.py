"""Consumer: iterate over messages, alone or as a member of a group.

When a position is committed (only with a group):
- "after"  (default): when the loop asks for the next message, so after the body has run. At least once.
- "auto": as soon as a message is handed out. At most once.
- "manual": only by `commit`.

Rules:
- A body that raises leaves its message uncommitted; a `break` counts as done.
- Without a group every partition is read from `start`, and nothing is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.client.connection import QUEUE_BACKOFF_MS, Connection, connection, open_client
from headrace.client.errors import ClientError, translate
from headrace.client.message import Message, from_kafka
from headrace.core.errors import ConfigError

Commit = Literal["after", "auto", "manual"]
Start = Literal["earliest", "latest"]
POLL_S = 0.2
_PASSING = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._MAX_POLL_EXCEEDED})


class Consumer:
    """See the module. With `until_end`, iteration stops when every assigned partition has been read to its end."""

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap: str | Connection | None = None,
        start: Start = "earliest",
        commit: Commit = "after",
        until_end: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        self.group = group
        self._commit: Commit = commit
        self._until_end = until_end
        self._last: Message | None = None
        self._at_end: set[tuple[str, int]] = set()
        self._closed = False
        if commit not in ("after", "auto", "manual"):
            raise ConfigError(f'commit={commit!r}: choose "after", "auto" or "manual"')
        self._connection = connection(bootstrap, properties)
        self._connection.reach()
        config = self._connection.config(
            group_id=group or "headrace-without-group",
            auto_offset_reset=start,
            enable_auto_commit=group is not None and commit != "manual",
            enable_auto_offset_store=commit == "auto",
            enable_partition_eof=True,
            fetch_queue_backoff_ms=QUEUE_BACKOFF_MS,
        )
        self._consumer = open_client(confluent_kafka.Consumer, config)
        if group is not None:
            self._consumer.subscribe(self.topics, on_assign=self._forget_ends, on_revoke=self._forget_ends)
        else:
            self._assign_all(start)

    def poll(self, timeout_s: float = 1.0) -> Message | None:
        """The next message, or None if there was none in time. The message before it counts as done."""
        self._finish_last()
        deadline = time.monotonic() + timeout_s
        while True:
            raw = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if raw is None:
                return None
            fault = raw.error()
            if fault is None:
                break
            self._take_event(fault, raw)
            if self._until_end and self._everything_read():
                return None
        self._last = from_kafka(raw)
        if self._at_end:
            self._at_end.discard((self._last.topic, self._last.partition))
        return self._last

    def __iter__(self) -> Iterator[Message]:
        while not self._closed:
            message = self.poll(POLL_S)
            if message is not None:
                yield message
            elif self._until_end and self._everything_read():
                return

    def commit(self, message: Message | None = None) -> None:
        """Commit the position after `message` (by default the last one), and wait. Raises ClientError."""
        message = message or self._last
        if self.group is None:
            raise ConfigError("commit needs a consumer with a group")
        if message is None:
            return
        try:
            self._consumer.commit(
                offsets=[TopicPartition(message.topic, message.partition, message.offset + 1)], asynchronous=False
            )
        except KafkaException as error:
            raise translate(error, f"commit for group {self.group}") from None

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading an assigned partition at `offset`."""
        self._last = None
        self._at_end.discard((topic, partition))
        try:
            self._consumer.seek(TopicPartition(topic, partition, offset))
        except KafkaException as error:
            raise translate(error, f"seek in {topic}-{partition}") from None

    def assignment(self) -> list[tuple[str, int]]:
        return [(each.topic, each.partition) for each in self._consumer.assignment()]

    def close(self) -> None:
        """Commit what is done, leave the group."""
        if not self._closed:
            self._closed = True
            self._finish_last()
            self._consumer.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and kind is not GeneratorExit:  # a generator that is closed is a loop that was left
            self._last = None  # its handling failed: it is delivered again
        self.close()

    def _finish_last(self) -> None:
        last, self._last = self._last, None if self._commit != "manual" else self._last
        if last is None or self.group is None or self._commit != "after":
            return
        try:
            self._consumer.store_offsets(offsets=[TopicPartition(last.topic, last.partition, last.offset + 1)])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition moved to another member meanwhile
                raise translate(error, f"commit for group {self.group}") from None

    def _take_event(self, fault: KafkaError, raw: confluent_kafka.Message) -> None:
        if fault.code() == KafkaError._PARTITION_EOF:
            self._at_end.add((raw.topic() or "", raw.partition() or 0))
        elif fault.code() not in _PASSING and not fault.retriable():
            raise translate(fault, f"read {', '.join(self.topics)}")

    def _everything_read(self) -> bool:
        assigned = self.assignment()
        return bool(assigned) and all(each in self._at_end for each in assigned)

    def _forget_ends(self, _consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        self._at_end.difference_update((each.topic, each.partition) for each in partitions)

    def _assign_all(self, start: Start) -> None:
        offset = confluent_kafka.OFFSET_BEGINNING if start == "earliest" else confluent_kafka.OFFSET_END
        chosen = []
        for topic in self.topics:
            chosen += [TopicPartition(topic, index, offset) for index in self._partitions_of(topic)]
        self._consumer.assign(chosen)

    def _partitions_of(self, topic: str) -> list[int]:
        """Raises ClientError if there is no such topic."""
        try:
            found = self._consumer.list_topics(topic, timeout=self._connection.timeout_s).topics[topic]
        except KafkaException as error:
            raise translate(error, f"look up topic {topic}") from None
        if found.error is not None:
            raise ClientError(f"topic {topic} does not exist", found.error.name())
        return sorted(found.partitions)
