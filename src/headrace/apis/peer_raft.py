"""PeerRaft (32001), version 0: messages of the metadata quorum from another node.

A list of Raft messages; the answer is empty and says only that they have arrived. A message that names another sender
than the node that brings it closes the connection.

Differs from Kafka: it has Vote, BeginQuorumEpoch, EndQuorumEpoch and Fetch of the metadata topic for this.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.apis.api import Api, Context, Encoded
from headrace.broker.post import RAFT_KEY, unpack
from headrace.core.errors import ProtocolError
from headrace.core.limits import FRAME_BYTES
from headrace.raft.messages import Message


def handle(ctx: Context, request: Sequence[Message]) -> Encoded:
    if any(message.sender != ctx.peer for message in request):
        raise ProtocolError(f"node {ctx.peer} speaks for another node")
    ctx.service.controller.quorum.receive(request)
    return Encoded((b"",))


def decode(version: int, frame: bytes, offset: int) -> Sequence[Message]:
    return unpack(memoryview(frame)[offset:])


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
