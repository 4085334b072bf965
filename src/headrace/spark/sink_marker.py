"""How far a query has been written: an offset that a group commits in the same transaction as the rows.

Rules:
- The group is called like the transactional id, after a prefix that makes Headrace keep it for ever. Its offset is the
  number of batches written, in partition 0 of every topic that the batch wrote to: the highest one counts, so that a
  topic may be deleted.
- It is read only after the transactional id was initialised: no transaction of a predecessor is open then.
- A note (metadata of the offset) may say what was written.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.client.errors import ClientError
from headrace.spark.sink_options import SinkOptions
from headrace.spark.sink_producer import client_settings, of_error

_PAUSE_SECONDS: Final = 0.1
_CALL_SECONDS: Final = 10.0

_admins: dict[str, AdminClient] = {}  # by settings


class ReplayError(ClientError):
    """What was written and what is to be written do not go together: trying again cannot help."""


class Marker(NamedTuple):
    next_batch: int  # all batches before this one are written
    note: str


NOTHING: Final = Marker(0, "")


class Markers:
    """The markers of one cluster."""

    def __init__(self, options: SinkOptions) -> None:
        self._settings = client_settings(options)
        self._key = repr(sorted((name, value) for name, value in self._settings.items() if name != "logger"))
        self._timeout_s = options.patience_ms / 1000

    def read(self, group: str) -> Marker:
        """What was written last; `NOTHING` if nothing was."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                asked = ConsumerGroupTopicPartitions(group)
                futures = self._admin().list_consumer_group_offsets(
                    [asked], require_stable=True, request_timeout=_CALL_SECONDS
                )
                return self._highest(futures[group].result(_CALL_SECONDS + 1), group)
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, KafkaException):
                    code = error.args[0].code()
                    if code == KafkaError.GROUP_ID_NOT_FOUND:
                        return NOTHING
                    found = of_error(error, f"read how far {group} is")
                else:
                    found = ClientError(f"cannot read how far {group} is: no answer in time", "TIMED_OUT")
                if time.monotonic() > deadline:
                    raise found from None
            _admins.pop(self._key, None)
            time.sleep(_PAUSE_SECONDS)

    def _highest(self, found: Any, group: str) -> Marker:
        best = NOTHING
        for place in found.topic_partitions:
            if place.error is not None:
                raise KafkaException(place.error)
            if place.offset > best.next_batch:
                best = Marker(place.offset, place.metadata or "")
        return best

    def group(self, name: str) -> bytes:
        """A group without members, as `send_offsets_to_transaction` takes it."""
        consumer = Consumer({**self._settings, "group.id": name})
        try:
            metadata: bytes = consumer.consumer_group_metadata()
            return metadata
        finally:
            consumer.close()

    def _admin(self) -> AdminClient:
        if self._key not in _admins:
            _admins[self._key] = AdminClient(self._settings)
        return _admins[self._key]


def places(topics: set[str], next_batch: int, note: str = "") -> list[TopicPartition]:
    return [TopicPartition(topic, 0, next_batch, metadata=note) for topic in sorted(topics)]
