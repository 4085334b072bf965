"""Packets as bytes, and back: a version, a seal, a body.

    1 byte version | 1 byte seal (0 none, 1 HMAC-SHA256) | 16 bytes of the HMAC if sealed | MessagePack

Rules:
- With a secret every packet is sealed, and one that is not, or not with this secret, is refused before it is parsed.
  The seal covers all other bytes and is compared in constant time. It proves where a packet comes from; it hides
  nothing. A packet that is sent again by a stranger says nothing new: records only ever get newer.
- Without a secret everybody who can reach the port is trusted.
- A packet of another cluster, version, or shape is refused. What is refused leaves nothing behind but a count.
"""

from __future__ import annotations

import hmac
from enum import Enum
from typing import Final

import msgspec

from headrace.core.errors import ProtocolError
from headrace.swim.member import MAX_RECORD_BYTES, Member, State, record_bytes
from headrace.swim.messages import Packet, Sync, SyncReply

VERSION: Final = 1
MAX_PACKET_BYTES: Final = 9_000  # that is read; what is sent is bounded by `SwimOptions.packet_bytes`
MAX_CLUSTER_ID_BYTES: Final = 64
SEAL_BYTES: Final = 16

_OPEN: Final = bytes([VERSION, 0])
_SEALED: Final = bytes([VERSION, 1])
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Packet)


class Refusal(Enum):
    MALFORMED = "malformed"
    VERSION = "version"
    SEAL = "seal"
    CLUSTER = "cluster"


class RefusedPacket(ProtocolError):
    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class Codec:
    def __init__(self, cluster_id: str, secret: bytes | None) -> None:
        if len(cluster_id.encode()) > MAX_CLUSTER_ID_BYTES:
            raise ValueError(f"a cluster id has at most {MAX_CLUSTER_ID_BYTES} bytes")
        if secret is not None and not secret:
            raise ValueError("an empty secret protects nothing")
        self.cluster_id = cluster_id
        self._secret = secret
        self._overhead_bytes = 2 if secret is None else 2 + SEAL_BYTES

    def size_bytes(self, packet: Packet) -> int:
        return len(_ENCODER.encode(packet)) + self._overhead_bytes

    def encode(self, packet: Packet) -> bytes:
        body = _ENCODER.encode(packet)
        if self._secret is None:
            return _OPEN + body
        return _SEALED + self._seal(self._secret, body) + body

    def decode(self, raw: bytes) -> Packet:
        if not 2 < len(raw) <= MAX_PACKET_BYTES:
            raise RefusedPacket(Refusal.MALFORMED, f"a packet of {len(raw)} bytes")
        if raw[0] != VERSION:
            raise RefusedPacket(Refusal.VERSION, f"version {raw[0]}, where {VERSION} is spoken")
        try:
            packet = _DECODER.decode(self._opened(raw))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedPacket(Refusal.MALFORMED, f"not a packet: {error}") from error
        if packet.cluster != self.cluster_id:
            raise RefusedPacket(Refusal.CLUSTER, f"of cluster {packet.cluster[:MAX_CLUSTER_ID_BYTES]!r}")
        fault = _fault(packet)
        if fault:
            raise RefusedPacket(Refusal.MALFORMED, f"from node {packet.sender.node_id}: {fault}")
        return packet

    def _opened(self, raw: bytes) -> bytes:
        if self._secret is None:
            if raw[1] != _OPEN[1]:
                raise RefusedPacket(Refusal.SEAL, "sealed, and no secret is set here")
            return raw[2:]
        seal, body = raw[2 : 2 + SEAL_BYTES], raw[2 + SEAL_BYTES :]
        if raw[1] != _SEALED[1] or not hmac.compare_digest(seal, self._seal(self._secret, body)):
            raise RefusedPacket(Refusal.SEAL, "not sealed with the secret of this cluster")
        return body

    @staticmethod
    def _seal(secret: bytes, body: bytes) -> bytes:
        return hmac.digest(secret, _SEALED + body, "sha256")[:SEAL_BYTES]


def _fault(packet: Packet) -> str | None:
    if packet.sender.state not in (State.ALIVE, State.LEFT):
        return "nobody says of itself that it is suspect or dead"
    told = packet.body.members if isinstance(packet.body, Sync | SyncReply) else ()
    if any(map(_is_too_long, (packet.sender, *packet.news, *told))):
        return f"a record of more than {MAX_RECORD_BYTES} bytes"
    if isinstance(packet.body, Sync) and packet.body.lower >= packet.body.upper:
        return "a page of nothing"
    return None


def _is_too_long(record: Member) -> bool:
    # A character takes up to four bytes, all numbers together fewer than 40: most records need not be measured.
    most = 4 * (len(record.host) + len(record.rack)) + len(record.meta) + 40
    return most > MAX_RECORD_BYTES and len(record_bytes(record)) > MAX_RECORD_BYTES
