"""The two hot answers, encoded by hand: Produce v3-13 and Fetch v4-18.

Rules:
- An answer is a list of byte parts; record bytes are parts of their own and never copied.
- From v13 on both APIs name topics by id, before that by name; the caller gives both where it has both.
- Output is byte for byte what the schema says (a test compares it with kio for every version).
- The common case, one partition of one topic with nothing special to say, has a path of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from headrace.wire.guard import varint

Bytes = bytes | bytearray | memoryview

_PRODUCE_FLEXIBLE: Final = 9
_PRODUCE_LEADERS: Final = 10  # from here on answers may tell who leads (KIP-951)
_FETCH_FLEXIBLE: Final = 12
_FETCH_LEADERS: Final = 16
_TOPIC_IDS: Final = 13  # the same in both
_UNKNOWN_LEADER: Final = (-1, -1)
_NO_UUID: Final = bytes(16)

_int16 = struct.Struct(">h").pack
_int32 = struct.Struct(">i").pack
_leader = struct.Struct(">iiB").pack
_epoch_end = struct.Struct(">iqB").pack
_transaction = struct.Struct(">qq").pack
_fetch_head = struct.Struct(">ihi").pack
# index, error, base offset, append time, [start offset]
_produced_v3 = struct.Struct(">ihqq").pack
_produced_v5 = struct.Struct(">ihqqq").pack
# ... no record errors, no message, no tags of partition and topic, throttle, no tags
_produced_alone = struct.Struct(">ihqqqBBBBiB").pack
# index, error, high watermark, last stable offset, [start offset]
_fetched_v4 = struct.Struct(">ihqq").pack
_fetched_v5 = struct.Struct(">ihqqq").pack
# ... aborted transactions (null or none), preferred replica
_fetched_alone = struct.Struct(">ihqqqBi").pack

_NOTHING_MORE_PRODUCED: Final = (None, (), _UNKNOWN_LEADER)
_NOTHING_MORE_FETCHED: Final = (_UNKNOWN_LEADER, _UNKNOWN_LEADER)


class ProducedPartition(NamedTuple):
    """What became of one partition's batch."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    error_code: int
    base_offset: int
    append_time_ms: int = -1
    start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()  # (place in the batch, why)
    current_leader: tuple[int, int] = _UNKNOWN_LEADER  # (node, leader epoch)


class FetchedPartition(NamedTuple):
    """What a partition has to give."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    start_offset: int = -1
    records: Bytes = b""
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset)
    preferred_replica: int = -1
    diverging_epoch: tuple[int, int] = _UNKNOWN_LEADER  # (leader epoch, end offset), for followers
    current_leader: tuple[int, int] = _UNKNOWN_LEADER  # (node, leader epoch)


class Endpoint(NamedTuple):
    """Where a leader that an answer names is reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


ProducedTopic = tuple[str, UUID | None, Sequence[ProducedPartition]]
FetchedTopic = tuple[str, UUID | None, Sequence[FetchedPartition]]


def produce_answer(
    version: int, topics: Sequence[ProducedTopic], throttle_ms: int = 0, endpoints: Sequence[Endpoint] = ()
) -> list[bytes]:
    """The body of a Produce response."""
    assert 3 <= version <= 13, version
    if version >= _PRODUCE_FLEXIBLE and len(topics) == 1 and not endpoints:
        name, topic_id, partitions = topics[0]
        if len(partitions) == 1 and partitions[0][5:] == _NOTHING_MORE_PRODUCED:
            return [
                _only_topic(version, name, topic_id) + _produced_alone(*partitions[0][:5], 1, 0, 0, 0, throttle_ms, 0)
            ]
    out = bytearray()
    flexible = version >= _PRODUCE_FLEXIBLE
    _count(out, len(topics), flexible)
    for name, topic_id, partitions in topics:
        _topic(out, version, flexible, name, topic_id)
        _count(out, len(partitions), flexible)
        for partition in partitions:
            _produced(out, version, flexible, partition)
        if flexible:
            out.append(0)
    out += _int32(throttle_ms)
    if flexible:
        _endpoints(out, endpoints if version >= _PRODUCE_LEADERS else ())
    return [bytes(out)]


def fetch_answer(
    version: int,
    error: int,
    session_id: int,
    topics: Sequence[FetchedTopic],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> list[Bytes]:
    """The body of a Fetch response. `error` and `session_id` are left out before v7."""
    assert 4 <= version <= 18, version
    flexible = version >= _FETCH_FLEXIBLE
    if flexible and len(topics) == 1 and not endpoints:
        name, topic_id, partitions = topics[0]
        if len(partitions) == 1 and partitions[0][8:] == _NOTHING_MORE_FETCHED and not partitions[0].aborted:
            *numbers, records, aborted, preferred, _, _ = partitions[0]
            head = (
                _fetch_head(throttle_ms, error, session_id)
                + _only_topic(version, name, topic_id)
                + _fetched_alone(*numbers, 0 if aborted is None else 1, preferred)
                + varint(len(records) + 1)
            )
            return [head, records, b"\x00\x00\x00"]
    parts: list[Bytes] = []
    out = bytearray(_fetch_head(throttle_ms, error, session_id) if version >= 7 else _int32(throttle_ms))
    _count(out, len(topics), flexible)
    for name, topic_id, partitions in topics:
        _topic(out, version, flexible, name, topic_id)
        _count(out, len(partitions), flexible)
        for partition in partitions:
            _fetched(out, version, flexible, partition)
            if partition.records:
                parts += (bytes(out), partition.records)
                out.clear()
            if flexible:
                _fetched_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        _endpoints(out, endpoints if version >= _FETCH_LEADERS else ())
    parts.append(bytes(out))
    return parts


@lru_cache(maxsize=4096)
def _only_name(name: str) -> bytes:
    out = bytearray(b"\x02")
    _string(out, name, True)
    return bytes(out) + b"\x02"


def _only_topic(version: int, name: str, topic_id: UUID | None) -> bytes:
    """One topic, then one partition, of a flexible version."""
    if version >= _TOPIC_IDS:
        return b"\x02" + (_NO_UUID if topic_id is None else topic_id.bytes) + b"\x02"
    return _only_name(name)


def _topic(out: bytearray, version: int, flexible: bool, name: str, topic_id: UUID | None) -> None:
    if version >= _TOPIC_IDS:
        out += _NO_UUID if topic_id is None else topic_id.bytes
    else:
        _string(out, name, flexible)


def _count(out: bytearray, count: int, flexible: bool) -> None:
    out += varint(count + 1) if flexible else _int32(count)


def _string(out: bytearray, value: str | None, flexible: bool) -> None:
    if value is None:
        out += b"\x00" if flexible else b"\xff\xff"
        return
    encoded = value.encode()
    out += varint(len(encoded) + 1) if flexible else _int16(len(encoded))
    out += encoded


def _produced(out: bytearray, version: int, flexible: bool, partition: ProducedPartition) -> None:
    index, error_code, base_offset, append_time_ms, start_offset, error_message, record_errors, leader = partition
    if version < 5:
        out += _produced_v3(index, error_code, base_offset, append_time_ms)
        return
    out += _produced_v5(index, error_code, base_offset, append_time_ms, start_offset)
    if version < 8:
        return
    _count(out, len(record_errors), flexible)
    for place, why in record_errors:
        out += _int32(place)
        _string(out, why, flexible)
        if flexible:
            out.append(0)
    _string(out, error_message, flexible)
    if flexible:
        if version >= _PRODUCE_LEADERS and leader != _UNKNOWN_LEADER:
            out += b"\x01\x00\x09" + _leader(*leader, 0)
        else:
            out.append(0)


def _fetched(out: bytearray, version: int, flexible: bool, partition: FetchedPartition) -> None:
    """Everything up to the length of the records."""
    index, error_code, high_watermark, last_stable_offset, start_offset, records, aborted, preferred, *_ = partition
    if version < 5:
        out += _fetched_v4(index, error_code, high_watermark, last_stable_offset)
    else:
        out += _fetched_v5(index, error_code, high_watermark, last_stable_offset, start_offset)
    _count(out, -1 if aborted is None else len(aborted), flexible)
    for transaction in aborted or ():
        out += _transaction(*transaction)
        if flexible:
            out.append(0)
    if version >= 11:
        out += _int32(preferred)
    out += varint(len(records) + 1) if flexible else _int32(len(records))


def _fetched_tags(out: bytearray, partition: FetchedPartition) -> None:
    tags = 0
    fields = bytearray()
    if partition.diverging_epoch != _UNKNOWN_LEADER:
        tags += 1
        fields += b"\x00\x0d" + _epoch_end(*partition.diverging_epoch, 0)
    if partition.current_leader != _UNKNOWN_LEADER:
        tags += 1
        fields += b"\x01\x09" + _leader(*partition.current_leader, 0)
    out.append(tags)
    out += fields


def _endpoints(out: bytearray, endpoints: Sequence[Endpoint]) -> None:
    """The last tagged fields of the answer."""
    if not endpoints:
        out.append(0)
        return
    field = bytearray(varint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        field += _int32(node_id)
        _string(field, host, True)
        field += _int32(port)
        _string(field, rack, True)
        field.append(0)
    out += b"\x01\x00" + varint(len(field))
    out += field
