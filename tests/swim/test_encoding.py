"""What is refused, and that nothing else comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swim_stage import CLUSTER, Solo, member

from headrace.core.errors import ProtocolError
from headrace.swim.encoding import MAX_PACKET_BYTES, Codec, Refusal, RefusedPacket
from headrace.swim.machine import Swim
from headrace.swim.member import MAX_RECORD_BYTES, Member, State
from headrace.swim.messages import END, Ack, News, Packet, Ping, PingRequest, Sync, SyncReply

SECRET = b"grain"
BODIES = [
    Ping(7),
    Ack(7, 2),
    PingRequest(7, 3),
    News(),
    Sync(7, 0, END, (member(2), member(3, 5, State.DEAD)), 99),
    SyncReply(7, END, (member(2),)),
]


def packet(body=None, sender: Member | None = None, cluster: str = CLUSTER, news=()) -> Packet:
    return Packet(cluster, sender or member(2, rack="r1", meta=b"m"), 1, 1000, 2000, body or Ping(7), tuple(news))


def refusal(codec: Codec, raw: bytes) -> Refusal:
    with pytest.raises(RefusedPacket) as caught:
        codec.decode(raw)
    return caught.value.refusal


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_kind_of_packet_comes_back_as_it_was(body, secret) -> None:
    codec, sent = Codec(CLUSTER, secret), packet(body, news=[member(5, 6, State.SUSPECT)])
    raw = codec.encode(sent)
    assert codec.decode(raw) == sent
    assert codec.size_bytes(sent) == len(raw)


def test_a_packet_of_another_cluster_is_refused() -> None:
    raw = Codec("other", SECRET).encode(packet(cluster="other"))
    assert refusal(Codec(CLUSTER, SECRET), raw) is Refusal.CLUSTER


def test_a_packet_of_another_version_is_refused() -> None:
    raw = Codec(CLUSTER, None).encode(packet())
    assert refusal(Codec(CLUSTER, None), b"\x02" + raw[1:]) is Refusal.VERSION


def test_a_packet_without_a_seal_is_refused_where_there_is_a_secret() -> None:
    assert refusal(Codec(CLUSTER, SECRET), Codec(CLUSTER, None).encode(packet())) is Refusal.SEAL


def test_a_sealed_packet_is_refused_where_there_is_no_secret() -> None:
    assert refusal(Codec(CLUSTER, None), Codec(CLUSTER, SECRET).encode(packet())) is Refusal.SEAL


def test_a_packet_with_another_secret_is_refused() -> None:
    assert refusal(Codec(CLUSTER, SECRET), Codec(CLUSTER, b"chaff").encode(packet())) is Refusal.SEAL


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_sealed_packet_can_be_changed(place, change) -> None:
    raw = bytearray(Codec(CLUSTER, SECRET).encode(packet()))
    raw[place % len(raw)] ^= change
    assert refusal(Codec(CLUSTER, SECRET), bytes(raw)) in (Refusal.SEAL, Refusal.VERSION)


@settings(deadline=None)
@given(st.integers(0, 400))
def test_a_packet_that_is_cut_short_is_refused(length) -> None:
    for secret in (None, SECRET):
        raw = Codec(CLUSTER, secret).encode(packet())
        if length < len(raw):
            refusal(Codec(CLUSTER, secret), raw[:length])


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_noise_is_refused_and_leaves_nothing_behind(noise) -> None:
    solo = Solo([2, 3])
    before = dict(solo.swim.members)
    for raw in (noise, b"\x01\x00" + noise, b"\x01\x01" + noise):
        assert solo.receive(raw) == []
    assert solo.swim.members == before
    assert solo.events == []
    assert sum(solo.swim.refused.values()) == 3


def test_a_packet_that_is_too_long_is_refused_unread() -> None:
    raw = Codec(CLUSTER, None).encode(packet(news=[member(9)] * 2000))
    assert len(raw) > MAX_PACKET_BYTES
    assert refusal(Codec(CLUSTER, None), raw) is Refusal.MALFORMED


@pytest.mark.parametrize(
    "bad",
    [
        packet(sender=member(2, state=State.DEAD)),
        packet(sender=member(2, state=State.SUSPECT)),
        packet(sender=member(-1)),
        packet(sender=member(2, port=0)),
        packet(sender=member(2, host="")),
        packet(sender=member(2, -1)),
        packet(news=[member(2, 2**63)]),
        packet(news=[member(2, host="ö" * 250)]),
        packet(Sync(7, 5, 5, ())),
        packet(Sync(7, 0, END + 1, ())),
        packet(SyncReply(7, END, (member(3, host="h" * 255, rack="r" * 255),))),
    ],
)
def test_records_and_pages_that_make_no_sense_are_refused(bad) -> None:
    assert refusal(Codec(CLUSTER, None), Codec(CLUSTER, None).encode(bad)) is Refusal.MALFORMED


def test_a_refusal_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        Codec(CLUSTER, None).decode(b"")


def test_a_node_whose_own_record_is_too_long_does_not_begin() -> None:
    with pytest.raises(ValueError, match=str(MAX_RECORD_BYTES)):
        Solo(me=member(1, host="h" * 255, meta=b"m" * 200))


@pytest.mark.parametrize("wrong", [{"cluster_id": "c" * 65}, {"cluster_id": "c", "secret": b""}])
def test_a_long_cluster_id_and_an_empty_secret_are_errors(wrong) -> None:
    solo = Solo()
    with pytest.raises(ValueError):
        Swim(member(1), solo.swim._options, None, **wrong)  # type: ignore[arg-type]
