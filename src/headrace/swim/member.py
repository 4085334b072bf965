"""One node as gossip knows it, and which of two records about a node is the newer one.

Rules:
- A record is about one node. Only the node itself raises its incarnation; others copy it and may say worse of it.
- Records about a node are totally ordered: first by incarnation, then by state (alive, suspect, dead, left), then by
  the rest. Everybody keeps the greatest that it has heard. So the order and the number of times in which records arrive
  do not matter, and all who have heard the same records believe the same.
- Nothing but a higher incarnation brings a suspect or dead node back: its own word, never hearsay.
- `meta` is the driver's (ports of other doors, a version, the time of the start): small, and opaque here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec

MAX_RECORD_BYTES: Final = 400  # as encoded: host, rack and meta together. Two of them fit in the smallest packet
MAX_INCARNATION: Final = 2**62
ANYONE: Final = -1  # the node behind an address, whichever it is

NodeId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Incarnation = Annotated[int, msgspec.Meta(ge=0, le=MAX_INCARNATION)]
Address = tuple[str, int]


class State(IntEnum):
    """In the order of how they overrule each other within an incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Member(msgspec.Struct, frozen=True, array_like=True):
    node_id: NodeId
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: Port
    incarnation: Incarnation = 0
    state: State = State.ALIVE
    rack: Annotated[str, msgspec.Meta(max_length=255)] = ""
    meta: Annotated[bytes, msgspec.Meta(max_length=255)] = b""

    @property
    def address(self) -> Address:
        return self.host, self.port

    @property
    def is_living(self) -> bool:
        """Not known to be gone: a suspect counts until its time is up."""
        return self.state <= State.SUSPECT

    @property
    def details(self) -> tuple[str, int, str, bytes]:
        return self.host, self.port, self.rack, self.meta

    def supersedes(self, other: Member) -> bool:
        if self.incarnation != other.incarnation:
            return self.incarnation > other.incarnation
        if self.state != other.state:
            return self.state > other.state
        return self.details > other.details  # two lives used one incarnation: any order will do, if all agree on it

    def become(self, state: State) -> Member:
        return msgspec.structs.replace(self, state=state)


_ENCODER: Final = msgspec.msgpack.Encoder()


def record_bytes(member: Member) -> bytes:
    return _ENCODER.encode(member)
