"""Producer: send str, bytes or JSON-able values; get a future that knows where they landed.

Rules:
- A delivery is known only when librdkafka is polled: by `send`, by waiting on a `Delivery`, by `flush`.
- `close` (and the end of a `with` block) waits for everything that was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.client.connection import Connection, connection, open_client
from headrace.client.errors import ClientError, translate
from headrace.client.message import Headers, Payload, header_list, serialise
from headrace.core.errors import HeadraceError

DELIVERY_S = 30.0
POLL_INTERVAL_S = 0.005


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message landed. `offset` is -1 if no acknowledgement was asked for (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[HeadraceError | None, Receipt | None], None]


class Delivery(Future[Receipt]):
    """A future whose waiting moves its producer along."""

    def __init__(self, poll: Callable[[float], Any]) -> None:
        super().__init__()
        self._poll = poll

    def result(self, timeout: float | None = None) -> Receipt:
        self._drive(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._drive(timeout)
        return super().exception(0)

    def _drive(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if deadline is not None and time.monotonic() >= deadline:
                raise FutureTimeoutError(f"not delivered in {timeout:g} s")
            self._poll(0.05)


class Producer:
    """See the module. `properties` are librdkafka's own and win over everything else."""

    def __init__(
        self,
        bootstrap: str | Connection | None = None,
        *,
        acks: str = "all",
        compression: str = "none",
        linger_ms: float = 5,
        idempotent: bool = False,
        delivery_s: float = DELIVERY_S,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection(bootstrap, properties)
        self._connection.reach()
        config = self._connection.config(
            acks=acks,
            compression_type=compression,
            linger_ms=linger_ms,
            enable_idempotence=idempotent,
            message_timeout_ms=int(delivery_s * 1000),
        )
        self._producer = open_client(confluent_kafka.Producer, config)
        self._poll_due = 0.0

    def send(
        self,
        topic: str,
        value: Payload,
        *,
        key: Payload = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> Delivery:
        """Queue one message. Blocks only while the queue is full."""
        delivery = Delivery(self._producer.poll)

        def settle(error: HeadraceError | None, receipt: Receipt | None) -> None:
            if error is not None:
                delivery.set_exception(error)
            else:
                assert receipt is not None
                delivery.set_result(receipt)

        self.post(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms, on_delivery=settle
        )
        return delivery

    def send_and_wait(
        self, topic: str, value: Payload, *, key: Payload = None, headers: Headers | None = None, partition: int = -1
    ) -> Receipt:
        """Send one message and return when the broker has acknowledged it. Raises ClientError."""
        return self.send(topic, value, key=key, headers=headers, partition=partition).result()

    def post(
        self,
        topic: str,
        value: Payload,
        *,
        key: Payload = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Like `send`, with a callback in place of a future: cheaper for bulk. Raises ClientError."""

        def report(fault: KafkaError | None, raw: confluent_kafka.Message) -> None:
            if on_delivery is None:
                return
            if fault is not None:
                on_delivery(translate(fault, f"deliver to {topic}"), None)
            else:
                on_delivery(None, _receipt(topic, raw))

        while True:
            try:
                self._producer.produce(
                    topic,
                    serialise(value),
                    serialise(key),
                    partition=partition,
                    on_delivery=report,
                    timestamp=timestamp_ms,
                    headers=header_list(headers),
                )
                break
            except BufferError:  # the queue is full: let it drain
                self._producer.poll(0.1)
            except KafkaException as error:
                raise translate(error, f"send to {topic}") from None
        if (now := time.monotonic()) >= self._poll_due:
            self._poll_due = now + POLL_INTERVAL_S
            self._producer.poll(0)

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait for all deliveries; how many are still under way when the time is up."""
        return self._producer.flush(-1 if timeout_s is None else timeout_s)

    def poll(self, timeout_s: float = 0) -> None:
        """Let callbacks of finished deliveries run."""
        self._producer.poll(timeout_s)

    def __len__(self) -> int:
        """Messages that are not delivered yet."""
        return len(self._producer)

    def close(self) -> None:
        self.flush()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._producer.purge()
        self.close()


def _receipt(topic: str, raw: confluent_kafka.Message) -> Receipt:
    partition, offset = raw.partition(), raw.offset()
    return Receipt(
        topic, -1 if partition is None else partition, -1 if offset is None else max(offset, -1), raw.timestamp()[1]
    )


__all__ = ["ClientError", "Delivery", "Producer", "Receipt"]
