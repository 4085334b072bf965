"""Headrace: a message broker that speaks Kafka and lives in a Python process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.embedded import Broker

__all__ = ["Broker", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the broker when it is first asked for: clients and the command line need not pay for it."""
    if name == "Broker":
        from headrace.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
