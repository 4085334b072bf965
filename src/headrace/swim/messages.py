"""What nodes say to each other: one packet with one body, and news that ride along.

Rules:
- Every packet carries its sender's own record (alive or left), its wall clock and its hybrid logical clock. Whoever
  gets one knows the sender, even if the body is not for it.
- `to` is the node that is meant. A node that has taken over an address does not answer for the one that had it before.
- A number is chosen by whoever asks and comes back in the answer; the asker remembers the rest.
- Structs are arrays; new fields go to the end and have defaults. A new kind of body needs a new version.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from headrace.swim.member import Member, NodeId

END: Final = 2**31  # after the last node id

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Bound = Annotated[int, msgspec.Meta(ge=0, le=END)]


class Ping(msgspec.Struct, array_like=True, tag=1):
    """Are you there?"""

    number: Number


class Ack(msgspec.Struct, array_like=True, tag=2):
    """`subject` is there: the sender itself, or whom it was asked to ping."""

    number: Number
    subject: NodeId


class PingRequest(msgspec.Struct, array_like=True, tag=3):
    """Ping `target` in my place."""

    number: Number
    target: NodeId


class News(msgspec.Struct, array_like=True, tag=4):
    """Nothing but what rides along."""


class Sync(msgspec.Struct, array_like=True, tag=5):
    """All that I know of nodes from `lower` up to, not including, `upper`. What do you know better there? The first of
    an exchange has a digest of all the living: whoever has the same has nothing to add."""

    number: Number
    lower: Bound
    upper: Bound
    members: tuple[Member, ...]
    digest: Number = 0


class SyncReply(msgspec.Struct, array_like=True, tag=6):
    """What I know better, up to `upper`: go on from there."""

    number: Number
    upper: Bound
    members: tuple[Member, ...]


Body = Ping | Ack | PingRequest | News | Sync | SyncReply


class Packet(msgspec.Struct, array_like=True):
    cluster: str
    sender: Member
    to: int
    wall_ms: Number
    stamp: Number
    body: Body
    news: tuple[Member, ...] = ()
