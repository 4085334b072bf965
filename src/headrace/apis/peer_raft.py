"""PeerRaft (32001), version 0: messages of the metadata quorum from another node.

A list of Raft messages; the answer is empty and says only that they have arrived. A message that names another sender
than the node that brings it closes the connection.

Differs from Kafka: it has Vote, BeginQuorumEpoch, EndQuorumEpoch and Fetch of the metadata topic for this.
"""

from __future__ import annotations

from headrace.apis.api import Api, Context, Encoded
from headrace.broker.post import RAFT_KEY, unpack_from
from headrace.core.limits import FRAME_BYTES


def handle(ctx: Context, request: bytes) -> Encoded:
    assert ctx.peer is not None
    ctx.service.controller.quorum.receive(unpack_from(ctx.peer, request))
    return Encoded((b"",))


def decode(version: int, frame: bytes, offset: int) -> bytes:
    return frame[offset:]


API = Api(
    key=RAFT_KEY,
    name="PeerRaft",
    versions=(0, 0),
    handle=handle,
    decode=decode,
    hot=True,
    for_peers=True,
    max_request_bytes=FRAME_BYTES,
)
