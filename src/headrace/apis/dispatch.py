"""A request's frame in, its answer's frame out, without a connection: for requests that another node hands on.

Rules:
- It is what a connection does with one frame, without order, pace and hot paths.
- What would close a connection is a ProtocolError. A request without an answer (Produce with acks=0) answers b"".
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from headrace.apis.api import Api, Context, Encoded
from headrace.core.errors import ApiError, ProtocolError
from headrace.wire.headers import parse_request_header, response_header
from headrace.wire.messages import decode_request, encode_answer

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.service import Service


async def answer(
    service: Service, frame: bytes, host: str, peer: int | None = None, *, ticket: UUID | None = None
) -> bytes:
    """Raises ProtocolError."""
    from headrace.apis import TABLE

    header = parse_request_header(frame)
    key, version = header.api_key, header.api_version
    api = TABLE.get(key)
    if api is None or not api.versions[0] <= version <= api.versions[1]:
        raise ProtocolError(f"API {key} version {version} is not supported")
    if api.for_peers and peer is None:
        raise ProtocolError(f"{api.name} is for the nodes of the cluster")
    decode = api.decode
    request = (
        decode_request(key, version, frame, header.body_offset)
        if decode is None
        else decode(version, frame, header.body_offset)
    )
    outcome = await _outcome(api, Context(service, version, header.client_id, host, peer, ticket=ticket), request)
    if outcome is None:
        return b""
    head = response_header(key, version, header.correlation_id)
    if isinstance(outcome, Encoded):
        return b"".join((head, *outcome.parts))
    return head + encode_answer(key, version, outcome)


async def _outcome(api: Api, context: Context, request: Any) -> Any:
    try:
        outcome = api.handle(context, request)
        return await outcome if inspect.isawaitable(outcome) else outcome
    except ApiError as error:
        if api.on_error is None:
            raise ProtocolError(f"{api.name}: {error}") from error
        return api.on_error(context, request, error)
