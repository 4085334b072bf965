"""Messages and durable records as bytes, and back.

Rules:
- The first byte is the version of the layout. Within a version, structs only grow at the end, by fields with defaults:
  an older reader skips what it does not know. A kind of message that a reader does not know is a `ProtocolError`; a new
  kind may be sent only to a peer that has said that it knows it.
- What `decode` lets through is well formed: numbers are not negative, entries follow each other, none of a later term.
- Bytes from a disk that cannot be read are a `CorruptionError`: checksums are the storage's affair.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from headrace.core.errors import CorruptionError, ProtocolError
from headrace.raft.messages import AppendEntries, InstallSnapshot, Message
from headrace.raft.records import Entry, HardState, Snapshot

VERSION: Final = 1

_PREFIX: Final = bytes([VERSION])
_ENCODER: Final = msgspec.msgpack.Encoder()
_MESSAGES: Final = msgspec.msgpack.Decoder(Message)

Saved = TypeVar("Saved", Entry, HardState, Snapshot)


def encode(message: Message) -> bytes:
    return _PREFIX + _ENCODER.encode(message)


def decode(raw: bytes | memoryview) -> Message:
    if not raw or raw[0] != VERSION:
        raise ProtocolError(f"a Raft message of version {VERSION} was expected, not {raw[0] if raw else 'nothing'}")
    try:
        message: Message = _MESSAGES.decode(raw[1:])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a Raft message: {error}") from error
    fault = _fault(message)
    if fault:
        raise ProtocolError(f"{type(message).__name__} from node {message.sender}: {fault}")
    return message


def encode_saved(record: Entry | HardState | Snapshot) -> bytes:
    return _PREFIX + _ENCODER.encode(record)


def decode_saved(raw: bytes | memoryview, kind: type[Saved]) -> Saved:
    if not raw or raw[0] != VERSION:
        raise CorruptionError(f"a {kind.__name__} of version {VERSION} was expected")
    try:
        return msgspec.msgpack.decode(raw[1:], type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"not a {kind.__name__}: {error}") from error


def _fault(message: Message) -> str | None:
    if isinstance(message, AppendEntries):
        index, term = message.prev_index, message.prev_term
        for entry in message.entries:
            if entry.index != index + 1 or not term <= entry.term <= message.term:
                return f"entry {entry.index} of term {entry.term} cannot follow entry {index} of term {term}"
            index, term = entry.index, entry.term
    elif isinstance(message, InstallSnapshot) and not (message.snapshot.index and message.snapshot.membership.voters):
        return "a snapshot of nothing"
    return None
