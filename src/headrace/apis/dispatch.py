"""A request's frame in, its answer's frame out, without a connection: for requests that another node hands on.

Rules:
- It is what a connection does with one frame, without order, pace and hot paths.
- What would close a connection is a ProtocolError. A request without an answer (Produce with acks=0) answers b"".
- A large answer is encoded in slices (`in_slices`, for connections, too).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.apis.api import AT_ONCE, Api, Context, Encoded
from headrace.core.errors import ApiError, ProtocolError
from headrace.wire.headers import parse_request_header, response_header
from headrace.wire.messages import decode_request, encode_answer, encode_answer_in_steps

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.service import Service


LARGE: Final = 500  # elements of an answer: some milliseconds


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
        return await in_slices(api, context, outcome) if inspect.isawaitable(outcome) else outcome
    except ApiError as error:
        if api.on_error is None:
            raise ProtocolError(f"{api.name}: {error}") from error
        return api.on_error(context, request, error)


async def in_slices(api: Api, context: Context, work: Awaitable[Any]) -> Any:
    """What a handler answers; encoded, others having their turns meanwhile, if there is much of it. Raises ApiError."""
    outcome = await work
    if not isinstance(outcome, dict) or not _is_large(outcome):
        return outcome
    if code := outcome.get("error_code"):
        context.service.count_error(api.name, code)
    turns, out = context.service.turns, bytearray()
    for number, _ in enumerate(encode_answer_in_steps(api.key, context.version, outcome, out), 1):
        if number % AT_ONCE == 0 and turns.used_up:
            await turns.rest()
    return Encoded((out,))


def _is_large(answer: Mapping[str, Any]) -> bool:
    left = LARGE
    rows = [answer]
    while rows:
        for value in rows.pop().values():
            if isinstance(value, list):
                left -= len(value)
                if left < 0:
                    return True
                rows.extend(item for item in value if isinstance(item, dict))
    return False
