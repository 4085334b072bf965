"""What the coordinator writes to the offsets topic, and how it looks as bytes.

Rules:
- A key names one thing for ever: a group, or one partition's committed offset within a group. The same thing always
  encodes to the same key bytes, so that compaction by key keeps exactly the newest value of each.
- A value of None is a tombstone: the thing is gone.
- Keys and values are arrays; new fields go to the end and have defaults, so that old records stay readable.
- A key that this version does not know is skipped on load, never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.group.consumer_records import (
    ConsumerGroupKey,
    ConsumerKey,
    ConsumerMemberKey,
    ConsumerValue,
    Current,
    CurrentKey,
    Epochs,
    MemberFacts,
    Target,
    TargetKey,
)


class GroupKey(msgspec.Struct, frozen=True, tag="g", array_like=True):
    group: str


class OffsetKey(msgspec.Struct, frozen=True, tag="o", array_like=True):
    group: str
    topic: str
    partition: int


Key = GroupKey | OffsetKey | ConsumerKey


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """One member of a generation. `subscription` is its metadata for the protocol that was chosen."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(msgspec.Struct, frozen=True, array_like=True):
    """A generation as it was agreed. `changed_ms` is the wall time of the last change of state."""

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: int
    members: tuple[MemberRecord, ...]


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True):
    """One committed offset. `expires_ms` is set only by old clients that ask for a retention of their own."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expires_ms: int | None = None


Value = GroupMetadata | OffsetCommit | ConsumerValue
Record = tuple[bytes, bytes | None]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode  # equal sets are equal bytes, too
_decode_key: Callable[[bytes], Key] = msgspec.msgpack.Decoder(Key).decode
_VALUES: Mapping[type[Key], type[Value]] = {
    GroupKey: GroupMetadata,
    OffsetKey: OffsetCommit,
    ConsumerGroupKey: Epochs,
    ConsumerMemberKey: MemberFacts,
    TargetKey: Target,
    CurrentKey: Current,
}
_decode_value: Mapping[type[Key], Callable[[bytes], Value]] = {
    key: msgspec.msgpack.Decoder(value).decode for key, value in _VALUES.items()
}


def encode(key: Key, value: Value | None) -> Record:
    """A record, or a tombstone if there is no value."""
    return _encode(key), None if value is None else _encode(value)


def decode(key: bytes, value: bytes | None) -> tuple[Key, Value | None] | None:
    """What `encode` was given, or None if the key is of a kind that this version does not know."""
    try:
        known = _decode_key(key)
    except msgspec.DecodeError:
        return None
    if value is None:
        return known, None
    return known, _decode_value[type(known)](value)
