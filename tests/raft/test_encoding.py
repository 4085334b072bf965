"""Messages and durable records survive the wire and the disk; what is malformed does not get in."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import CorruptionError, ProtocolError
from headrace.raft.encoding import VERSION, decode, decode_saved, encode, encode_saved
from headrace.raft.messages import AppendEntries, Envelope, InstallSnapshot, Message, Stale, VoteReply
from headrace.raft.records import Entry, HardState, Membership, Snapshot

SNAPSHOT = Snapshot(5, 2, Membership((1, 2), (3,)), b"state")
ENTRIES = (Entry(4, 2, b"a"), Entry(5, 3), Entry(6, 3, membership=Membership((1, 2, 3))))


def example(kind: type[Envelope]) -> Message:
    values = {"entries": ENTRIES, "snapshot": SNAPSHOT, "granted": True, "transfer": True, "term": 3}
    values |= {"prev_index": 3, "prev_term": 1}
    return kind(**{field.name: values.get(field.name, 7) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", get_args(Message))
def test_every_message_survives_the_wire(kind):
    message = example(kind)
    assert decode(encode(message)) == message
    assert type(decode(encode(message))) is kind


@pytest.mark.parametrize("record", [HardState(3, None), HardState(3, 0), SNAPSHOT, *ENTRIES])
def test_every_record_survives_the_disk(record):
    assert decode_saved(encode_saved(record), type(record)) == record


def test_fields_that_a_reader_does_not_know_are_skipped():
    raw = bytes([VERSION]) + msgspec.msgpack.encode(["vote_reply", 1, 2, 3, True, "new"])
    assert decode(raw) == VoteReply(1, 2, 3, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes([VERSION + 1]) + encode(Stale(1, 2, 3))[1:],
        encode(Stale(1, 2, 3))[:-1],
        bytes([VERSION]) + msgspec.msgpack.encode(["unheard_of", 1, 2, 3]),
        bytes([VERSION]) + msgspec.msgpack.encode(["stale", 1, 2, -3]),
        bytes([VERSION]) + msgspec.msgpack.encode(["stale", 1, 2]),
        encode(AppendEntries(1, 2, 3, 3, 1, (Entry(5, 3),), 0)),
        encode(AppendEntries(1, 2, 3, 3, 2, (Entry(4, 1),), 0)),
        encode(AppendEntries(1, 2, 3, 3, 1, (Entry(4, 4),), 0)),
        encode(InstallSnapshot(1, 2, 3, Snapshot())),
    ],
)
def test_what_is_malformed_is_an_error_of_the_peer(raw):
    with pytest.raises(ProtocolError):
        decode(raw)


@given(st.binary(max_size=40))
def test_noise_is_an_error_of_the_peer(noise):
    with pytest.raises(ProtocolError):
        decode(bytes([VERSION]) + b"\xc1" + noise)


@pytest.mark.parametrize("raw", [b"", b"\x09", encode_saved(HardState(3))[:-1], bytes([VERSION, 0xC0])])
def test_a_record_that_cannot_be_read_is_corruption(raw):
    with pytest.raises(CorruptionError):
        decode_saved(raw, HardState)
