"""FindCoordinator, versions 0-6: which broker coordinates a group or a transactional id.

Versions 4 and newer ask for several keys at once.

Key types: 0 group, 1 transaction, 2 share group.

The coordinator is the node that leads the partition in which a group or id is kept; COORDINATOR_NOT_AVAILABLE if none
does for now. If the internal topic is not there yet, it is made.

Differs from Kafka: a node that is alone coordinates everything, and asking it makes no topic. There are no share groups
yet: their key type gets INVALID_REQUEST with a sentence, so that clients fail at once. (With COORDINATOR_NOT_AVAILABLE
they would ask again for a minute and then report a timeout.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.broker.internal_topics import OFFSETS_TOPIC
from headrace.broker.transactions import TRANSACTION_TOPIC
from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.image import BrokerRecord

GROUP, TRANSACTION, SHARE = 0, 1, 2
MISSING = {SHARE: "This broker does not have share groups yet."}


async def handle(ctx: Context, request: Any) -> Answer:
    key_type = getattr(request, "key_type", GROUP)
    if ctx.version < 4:
        return await _coordinator(ctx, key_type, request.key)
    keys = in_turns(ctx, request.coordinator_keys)
    return {"coordinators": [{"key": key, **await _coordinator(ctx, key_type, key)} async for key in keys]}


async def _coordinator(ctx: Context, key_type: int, key: str) -> Answer:
    try:
        node = await _node(ctx, key_type, key)
    except ApiError as error:
        return {"node_id": -1, "host": "", "port": -1, "error_code": error.code, "error_message": error.message}
    return {
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


async def _node(ctx: Context, key_type: int, key: str) -> BrokerRecord:
    """Raises ApiError."""
    service = ctx.service
    if key_type not in (GROUP, TRANSACTION):
        raise ApiError(ErrorCode.invalid_request, MISSING.get(key_type, f"Key type {key_type} has no meaning."))
    coordinators, topic = (
        (service.groups, OFFSETS_TOPIC) if key_type == GROUP else (service.transactions, TRANSACTION_TOPIC)
    )
    index = await coordinators.coordinator(key)
    if index is None:
        return service.node
    record = service.image.partition(topic, index)
    node = None if record is None else service.image.brokers.get(record.leader)
    if node is None or node.fenced:
        raise ApiError(ErrorCode.coordinator_not_available, f"Nobody leads {topic}-{index} for now.")
    return node


API = Api(key=10, name="FindCoordinator", versions=(0, 6), handle=handle)
