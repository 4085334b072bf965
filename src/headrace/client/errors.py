"""What a client can be refused, as one kind of error with the protocol's own name for it."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.core.errors import ConfigError, HeadraceError


class ClientError(HeadraceError):
    """A broker refused, or a call did not end in time. `code` is the protocol's name, such as TOPIC_ALREADY_EXISTS."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class UnreachableError(ClientError):
    """No broker answers at the address."""


_UNREACHABLE = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
_CONFIG = frozenset({KafkaError._INVALID_ARG, KafkaError._CONFLICT, KafkaError._INVALID_TYPE})


def translate(error: KafkaError | KafkaException, doing: str = "") -> HeadraceError:
    """librdkafka's error as one of ours. `doing` says what was attempted: "create topic orders"."""
    cause: Any = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if not isinstance(cause, KafkaError):
        return ClientError(_sentence(doing, str(cause)))
    reason = cause.str()
    if cause.code() in _UNREACHABLE:
        return UnreachableError(_sentence(doing, reason), cause.name())
    if cause.code() in _CONFIG and "onfiguration property" in reason:
        return ConfigError(reason)
    return ClientError(_sentence(doing, reason), cause.name())


def _sentence(doing: str, reason: str) -> str:
    reason = " ".join(reason.split()).rstrip(".")
    return f"cannot {doing}: {reason}" if doing else reason
