"""PeerForward (32003), versions 0-1: a client's request for the controller, as another node has received it.

The answer carries the index of the metadata that it speaks of, and the answer's frame for the client. A node that is
not the controller answers with index -1, and the other looks again. From version 1 on there is a ticket, the same at
every attempt: a topic that an earlier attempt has made is not refused to a later one.

Differs from Kafka: it has Envelope (KIP-590) for this.
"""

from __future__ import annotations

from uuid import UUID

from headrace.apis import dispatch
from headrace.apis.api import Api, Context, Encoded
from headrace.broker.council import NOT_LEADING, forwarded_answer, read_forwarded
from headrace.broker.post import FORWARD_KEY
from headrace.core.errors import ProtocolError
from headrace.wire.headers import parse_request_header

Forwarded = tuple[str, bytes, UUID | None]


async def handle(ctx: Context, request: Forwarded) -> Encoded:
    from headrace.apis import TABLE

    host, frame, ticket = request
    api = TABLE.get(parse_request_header(frame).api_key)
    if api is None or not api.for_controller:
        raise ProtocolError("what is not for the controller is not handed on to it")
    if not ctx.service.controller.leads:
        return Encoded((forwarded_answer(NOT_LEADING, b""),))
    answer = await dispatch.answer(ctx.service, frame, host, ticket=ticket)
    return Encoded((forwarded_answer(ctx.service.controller.applied_index, answer),))


def decode(version: int, frame: bytes, offset: int) -> Forwarded:
    return read_forwarded(version, memoryview(frame)[offset:])


API = Api(key=FORWARD_KEY, name="PeerForward", versions=(0, 1), handle=handle, decode=decode, for_peers=True)
