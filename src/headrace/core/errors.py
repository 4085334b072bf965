"""Every kind of error that Headrace raises on purpose.

Rules:
- An `ApiError` is an outcome: part of the protocol, answered to the client, never logged as a fault.
- A `ProtocolError` means that the peer broke the wire: the connection is closed.
- A `StorageError` means that a disk did not do what it was told: the log or the directory goes offline.
- A `ConfigError` ends start-up with one line and exit code 2.
- Anything else that escapes is our bug.
"""

from __future__ import annotations

import sys

# kio imports Hypothesis whenever it is installed (a quarter of a second of start-up). Hide it while kio loads.
_HIDDEN = "hypothesis" not in sys.modules
if _HIDDEN:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
try:
    from kio.schema.errors import ErrorCode
finally:
    if _HIDDEN:
        del sys.modules["hypothesis"]

__all__ = [
    "ApiError",
    "ConfigError",
    "CorruptionError",
    "DiskFailedError",
    "DiskFullError",
    "ErrorCode",
    "HeadraceError",
    "LinkError",
    "PassingError",
    "ProtocolError",
    "StorageError",
]


class HeadraceError(Exception):
    """Root of all deliberate errors."""


MESSAGE_LENGTH = 1000  # a sentence may quote what a peer sent, and older versions have no room for more than 32 KiB


class ApiError(HeadraceError):
    """An outcome that the protocol knows: an error code and a sentence for people."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        if len(message) > MESSAGE_LENGTH:
            half = MESSAGE_LENGTH // 2  # the sentence's ends say what is wrong, the middle is the quotation
            message = f"{message[:half]} … {message[-half:]}"
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class ProtocolError(HeadraceError):
    """The peer sent bytes that break the protocol; the connection must be closed."""


class StorageError(HeadraceError):
    """A disk operation failed."""


class PassingError(StorageError):
    """Out of space, file descriptors or memory. Nothing was done; it may be tried again later."""


class DiskFullError(PassingError):
    """No space left. Nothing was written; writing may be tried again when there is space."""


class DiskFailedError(StorageError):
    """EIO, a failed fsync, a vanished directory. Final: the directory is offline until restart."""


class CorruptionError(StorageError):
    """Bytes that were once durable do not match their checksum. Never cut, never served."""


class LinkError(HeadraceError):
    """A peer broker does not answer."""


class ConfigError(HeadraceError):
    """A setting is unknown or bad. The message names the setting, the value and where it came from."""
