"""LocalView (32005), version 0: the cluster as the node sees it that was asked, whether or not there is a controller.

The request has no body. The answer's body is a JSON object: "error_code" (0), "cluster_id", "node_id" (who answers),
"leader" (the controller, or null if none is known), "last_leader" (who it was before that, or null), "term", "commit"
(the last metadata entry that is known to be committed), and "nodes": a list of node_id, host, port, voter, state
(alive, fenced, draining, as the controller said last; null if it said nothing) and gossip (alive, suspect, dead, left;
null if it knows nothing). It is answered before a node serves clients, too. It is not advertised.

Differs from Kafka: it has nothing like it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.apis.api import Answer, Api, Context, Encoded

KEY: Final = 32005


def handle(ctx: Context, request: None) -> Encoded:
    council, controller = ctx.service.council, ctx.service.controller
    quorum = controller.quorum
    image, addresses = controller.image, controller.known_addresses()
    nodes: list[Answer] = []
    for node_id in sorted({*quorum.membership.members, *image.brokers}):
        known = image.brokers.get(node_id)
        state = None if known is None else "fenced" if known.fenced else "draining" if known.draining else "alive"
        host, port = addresses.get(node_id, ("", 0))
        row = {"node_id": node_id, "host": host, "port": port, "state": state}
        belief = "alive" if node_id == quorum.node_id else council.belief_of(node_id)
        nodes.append({**row, "voter": node_id in quorum.membership.voters, "gossip": belief})
    found: dict[str, Any] = {
        "error_code": 0,
        "cluster_id": ctx.service.cluster_id,
        "node_id": quorum.node_id,
        "leader": quorum.leader,
        "last_leader": council.last_leader,
        "term": quorum.term,
        "commit": quorum.commit_index,
        "nodes": nodes,
    }
    return Encoded((msgspec.json.encode(found),))


def decode(version: int, frame: bytes, offset: int) -> None:
    """There is nothing in it."""


API = Api(key=KEY, name="LocalView", versions=(0, 0), handle=handle, decode=decode, private=True, always=True)
