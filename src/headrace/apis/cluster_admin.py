"""ClusterAdmin (32004), version 0: what `headrace cluster` asks that Kafka has no API for. The controller answers.

The request's body is a JSON object with "do" and its fields; so is the answer, with "error_code" (Kafka's, 0 if all is
well) and "error_message". It is not advertised.

- describe: "cluster_id", "leader", "term", "commit", "nodes": a list of node_id, host, port, rack, state (alive,
  fenced, draining), voter, applied, seen_ms_ago (-1: never), skew_ms, replicas, leaders
- drain: "node", "on" (true unless said otherwise)
- remove: "node"
- rebalance: "dry_run", "fewer" (topics may lose replicas; both false unless said otherwise), "leaving" (nodes to be
  taken for draining, too); answers "moves", a list of [topic, partition, before, after]. A bounded number of them
  begins; ask again for the rest
- reassign: "moves", a list of [topic, partition, replicas, or null to cancel]; answers "outcomes", a list of [topic,
  partition, error code, message]
- elect: "partitions", a list of [topic, partition], or null for all; "unclean" (false unless said otherwise); answers
  "outcomes" likewise. Whatever changes something (drain, remove, rebalance, reassign, elect) is for operators: who has
  proved with PeerHello that it knows the cluster's secret; without one, from the same machine. Others get
  CLUSTER_AUTHORIZATION_FAILED
- reassignments: answers "moving", a list of [topic, partition, replicas, adding, removing, in sync]

Differs from Kafka: it has nothing like it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from headrace.apis.api import Answer, Api, Context, Encoded
from headrace.broker import reassigning
from headrace.broker.commands import Command, Describe, Described, Drain, Moves, Rebalance, Remove
from headrace.core.errors import ApiError, ErrorCode, ProtocolError

KEY: Final = 32004


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """All that can be asked, in one shape."""

    do: str
    node: int = -1
    on: bool = True
    dry_run: bool = False
    fewer: bool = False
    leaving: tuple[int, ...] = ()
    unclean: bool = False
    moves: list[tuple[str, int, list[int] | None]] = []
    partitions: list[tuple[str, int]] | None = None


async def handle(ctx: Context, request: Wish) -> Encoded:
    do = _DOINGS.get(request.do)
    try:
        if do is None:
            raise ApiError(ErrorCode.invalid_request, f"there is no {request.do!r}; there are {', '.join(_DOINGS)}")
        found: Mapping[str, Any] = {"error_code": 0, "error_message": "", **await do(ctx, request)}
    except ApiError as error:
        return on_error(ctx, request, error)
    return Encoded((msgspec.json.encode(found),))


def admit(ctx: Context, request: Wish) -> None:
    """Raises ApiError."""
    if request.do not in _FOR_EVERYBODY and not ctx.operator:
        raise ApiError(
            ErrorCode.cluster_authorization_failed, f"{request.do} is for operators: who knows the cluster's secret"
        )


def on_error(ctx: Context, request: Wish, error: ApiError) -> Encoded:
    return Encoded((msgspec.json.encode({"error_code": int(error.code), "error_message": str(error)}),))


def decode(version: int, frame: bytes, offset: int) -> Wish:
    try:
        return msgspec.json.decode(memoryview(frame)[offset:], type=Wish)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"ClusterAdmin cannot be read: {error}") from None


async def _decided(ctx: Context, command: Command) -> Any:
    return await ctx.service.council.decide(command)


async def _describe(ctx: Context, wish: Wish) -> Answer:
    described: Described = await _decided(ctx, Describe())
    image = ctx.service.image
    replicas: dict[int, int] = {}
    leaders: dict[int, int] = {}
    for topic in image.topics.values():
        for record in topic.partitions:
            leaders[record.leader] = leaders.get(record.leader, 0) + 1
            for node in record.replicas:
                replicas[node] = replicas.get(node, 0) + 1
    return {
        "cluster_id": described.cluster_id,
        "leader": described.leader,
        "term": described.term,
        "commit": described.commit,
        "nodes": [
            {
                **msgspec.structs.asdict(node),
                "replicas": replicas.get(node.node_id, 0),
                "leaders": leaders.get(node.node_id, 0),
            }
            for node in described.nodes
        ],
    }


async def _drain(ctx: Context, wish: Wish) -> Answer:
    await _decided(ctx, Drain(wish.node, wish.on))
    return {}


async def _remove(ctx: Context, wish: Wish) -> Answer:
    await _decided(ctx, Remove(wish.node))
    return {}


async def _rebalance(ctx: Context, wish: Wish) -> Answer:
    planned: Moves = await _decided(ctx, Rebalance(wish.dry_run, wish.fewer, wish.leaving))
    return {"moves": planned.moves}


async def _reassign(ctx: Context, wish: Wish) -> Answer:
    return _outcomes(await reassigning.reassign(ctx.service.controller, wish.moves, ctx.service.configs))


async def _elect(ctx: Context, wish: Wish) -> Answer:
    kind = reassigning.UNCLEAN if wish.unclean else reassigning.PREFERRED
    places = wish.partitions
    if places is None:
        topics = ctx.service.controller.proposed.topics.values()
        places = [(topic.name, record.index) for topic in topics for record in topic.partitions]
    outcomes = await reassigning.elect(ctx.service.controller, places, kind, ctx.service.configs)
    if wish.partitions is None:
        needless = ErrorCode.election_not_needed
        outcomes = {place: error for place, error in outcomes.items() if error is None or error.code is not needless}
    return _outcomes(outcomes)


async def _reassignments(ctx: Context, wish: Wish) -> Answer:
    return {
        "moving": [
            (record.topic, record.index, record.replicas, record.adding, record.removing, record.isr)
            for topic in ctx.service.image.topics.values()
            for record in topic.partitions
            if record.adding or record.removing
        ]
    }


def _outcomes(outcomes: Mapping[tuple[str, int], ApiError | None]) -> Answer:
    return {
        "outcomes": [
            (topic, index, 0 if error is None else int(error.code), "" if error is None else str(error))
            for (topic, index), error in outcomes.items()
        ]
    }


_DOINGS: Final[dict[str, Callable[[Context, Wish], Awaitable[Answer]]]] = {
    "describe": _describe,
    "drain": _drain,
    "remove": _remove,
    "rebalance": _rebalance,
    "reassign": _reassign,
    "elect": _elect,
    "reassignments": _reassignments,
}
_FOR_EVERYBODY: Final = frozenset({"describe", "reassignments"})


API = Api(
    key=KEY,
    name="ClusterAdmin",
    versions=(0, 0),
    handle=handle,
    on_error=on_error,
    admit=admit,
    decode=decode,
    private=True,
    for_controller=True,
)
