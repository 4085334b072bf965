"""librdkafka's producer as the sink uses it: configuration, waiting, errors in our words.

Rules:
- Only failures are reported per record; the first one is what is raised.
- Java's partitioner, so that a key lands where every other client puts it.
- What may pass by itself is a `PassingError`; the caller decides whether it can start over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from headrace.client.errors import ClientError, translate
from headrace.core.errors import ConfigError, HeadraceError
from headrace.spark.cluster import PassingError
from headrace.spark.sink_options import SinkOptions
from headrace.spark.sink_rows import Record

log = logging.getLogger(__name__)

QUEUE_MESSAGES: Final = 500_000
QUEUE_KBYTES: Final = 128 * 1024
SERVE_EVERY: Final = 20_000  # records between looks at what came back
_FULL_SECONDS: Final = 0.05
_CALL_SECONDS: Final = 20.0
_QUIET: Final = logging.getLogger("headrace.spark.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

# A record or a cluster that will not be better in a moment.
_FINAL: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


# Of another failure, which may still come.
_CONSEQUENCES: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL})


class FencedError(PassingError):
    """Another producer with the same transactional id has started since."""


TRANSACTION_TIMEOUT_MS: Final = 120_000
# When all brokers were away, "rebootstrap" forgets them, but not that one of them was a group's coordinator: whoever
# asks that one again, to commit offsets or to read them, hangs for ever (librdkafka 2.16).
_KNOWN_BROKERS: Final = {"metadata.recovery.strategy": "none"}


def configuration(
    options: SinkOptions, transactional_id: str = "", timeout_ms: int = TRANSACTION_TIMEOUT_MS
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "client.id": "headrace-spark",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "queue.buffering.max.messages": QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        **_KNOWN_BROKERS,
    }
    if options.client.get("acks", "all") not in ("all", "-1") or options.client.get("enable.idempotence") == "false":
        settings["enable.idempotence"] = False
    if transactional_id:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
    settings |= options.client
    return settings | {"bootstrap.servers": options.bootstrap, "delivery.report.only.error": True}


def client_settings(options: SinkOptions) -> dict[str, Any]:
    """The part of a user's settings that says how to reach and trust brokers: for clients that do not produce."""
    shared = ("security.", "sasl.", "ssl.", "enable.ssl", "client.id", "socket.", "broker.")
    reach = {name: value for name, value in options.client.items() if name.startswith(shared)}
    settings = {"client.id": "headrace-spark", **_KNOWN_BROKERS, **reach}
    return {**settings, "bootstrap.servers": options.bootstrap, "logger": _QUIET}


class Outlet:
    """One producer. With a transactional id everything goes through `begin` and `commit`."""

    def __init__(
        self, options: SinkOptions, transactional_id: str = "", timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self._error: KafkaError | None = None
        self._unserved = 0
        self._timeout_s = options.patience_ms / 1000
        self._client = make_producer(
            configuration(options, transactional_id, timeout_ms), on_delivery=self._on_delivery
        )

    def _on_delivery(self, error: KafkaError | None, _: object) -> None:
        if error is not None and (self._error is None or self._error.code() in _CONSEQUENCES):
            self._error = error

    def initialise(self) -> None:
        """Fence older producers of the same id, and end what they left open."""
        self._patiently("start transactions", lambda: self._client.init_transactions(_CALL_SECONDS))

    def begin(self) -> None:
        self._error = None
        self._call("begin a transaction", self._client.begin_transaction)

    def send(self, records: Iterable[Record]) -> None:
        """Queue records; blocks while the queue is full. Raises what has failed so far."""
        produce = self._client.produce
        for topic, partition, key, value, headers in records:
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, partition)
                    else:
                        produce(topic, value, key, partition, headers=headers)
                    break
                except BufferError:
                    self._serve(_FULL_SECONDS)
                    self._raise_failure()
                except KafkaException as error:
                    raise self._failure(error, f"write to topic {topic}") from None
            self._unserved += 1
            if self._unserved >= SERVE_EVERY:
                self._unserved = 0
                self._serve(0)
                self._raise_failure()

    def flush(self) -> None:
        """Wait until all is acknowledged."""
        left = self._call("write records", lambda: self._client.flush(self._timeout_s))
        self._raise_failure()
        if left:
            self._client.purge()
            raise PassingError(f"{left} records were not acknowledged in {self._timeout_s:.0f} s", "TIMED_OUT")

    def commit(self, marker: Iterable[TopicPartition], group: bytes) -> None:
        """End the transaction, with offsets that mark it as done."""
        places = list(marker)
        self.flush()  # first: librdkafka takes half a second for offsets while records wait for their first answer
        self._patiently(
            "mark the batch as written",
            lambda: self._client.send_offsets_to_transaction(places, group, _CALL_SECONDS),
        )
        self._patiently("commit a transaction", lambda: self._client.commit_transaction(_CALL_SECONDS))

    def abandon(self) -> None:
        """Abort what is open, as well as that can be done now: the next `initialise` of the id does it in any case."""
        try:
            self._client.purge()
            self._client.abort_transaction(5.0)
        except KafkaException as error:
            log.debug("a transaction was left to its successor: %s", error)

    def _patiently(self, doing: str, call: Callable[[], Any]) -> None:
        """librdkafka's calls may be repeated as long as their errors say so."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                call()
                return
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or time.monotonic() > deadline:
                    raise self._failure(error, doing) from None
            self._serve(_FULL_SECONDS)

    def _serve(self, timeout_s: float) -> None:
        """Let librdkafka call back."""
        self._call("write records", lambda: self._client.poll(timeout_s))

    def _call(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KafkaException as error:
            raise self._failure(error, doing) from None
        except SystemError as error:  # confluent-kafka stumbles over a fatal error that comes between callbacks
            raise self._fatal() or error from None

    def _failure(self, error: KafkaException, doing: str) -> HeadraceError:
        # A record's own failure says more than that of its transaction.
        if self._error is not None and self._error.code() in _FINAL:
            return of_error(self._error, "write records")
        vague = error.args[0].code() in _CONSEQUENCES
        return (self._fatal() if vague else None) or of_error(error, doing)

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._failure(KafkaException(self._error), "write records")

    def _fatal(self) -> HeadraceError | None:
        """The error that has ended this producer: librdkafka remembers it."""
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            return of_error(error, "write records") if error.args[0].fatal() else None
        return None


def of_error(error: KafkaError | KafkaException, doing: str) -> HeadraceError:
    """As one of ours: `FencedError`, `PassingError`, or what will not pass."""
    cause: Any = error.args[0] if isinstance(error, KafkaException) else error
    found = translate(error, doing)
    if not isinstance(cause, KafkaError) or not isinstance(found, ClientError):
        return found
    if cause.code() in _FENCED:
        return FencedError(str(found), found.code)
    if cause.code() in _FINAL:
        return found
    return PassingError(str(found), found.code)


def make_producer(settings: Mapping[str, Any], **callbacks: Callable[..., None]) -> Producer:
    """Raises ConfigError, which names the option, if librdkafka does not like a setting."""
    try:
        return Producer({"error_cb": _ignore, **settings, "logger": _QUIET, **callbacks})
    except KafkaException as error:
        raise ConfigError(f"{_culprit(settings)} is refused: {_reason(error)}") from None


def _culprit(settings: Mapping[str, Any]) -> str:
    """librdkafka may name a setting by another name than the user did: see which one it does not like alone."""
    for name, value in settings.items():
        try:
            Producer({name: value, "logger": _QUIET})
        except KafkaException:
            return f"option 'kafka.{name}'"
    return "a combination of options kafka.*"


def _reason(error: KafkaException) -> str:
    return str(error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else error)


def _ignore(_: KafkaError) -> None:
    """What is not fatal passes; what is fatal comes back from the next call."""
