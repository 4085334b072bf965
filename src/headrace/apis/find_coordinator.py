"""FindCoordinator, versions 0-6: which broker coordinates a group or a transactional id.

Versions 4 and newer ask for several keys at once.

Key types: 0 group, 1 transaction, 2 share group.

Differs from Kafka: the coordinator of everything is this node, and asking makes no topic. There are no share groups
yet: their key type gets INVALID_REQUEST with a sentence, so that clients fail at once. (With COORDINATOR_NOT_AVAILABLE
they would ask again for a minute and then report a timeout.)
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ErrorCode

GROUP, TRANSACTION, SHARE = 0, 1, 2
MISSING = {SHARE: "This broker does not have share groups yet."}


def handle(ctx: Context, request: Any) -> Answer:
    key_type = getattr(request, "key_type", GROUP)
    if ctx.version < 4:
        return _coordinator(ctx, key_type)
    keys = request.coordinator_keys
    return {"coordinators": [{"key": key, **_coordinator(ctx, key_type)} for key in keys]}


def _coordinator(ctx: Context, key_type: int) -> Answer:
    if key_type not in (GROUP, TRANSACTION):
        message = MISSING.get(key_type, f"Key type {key_type} has no meaning.")
        code = ErrorCode.invalid_request
        return {"node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message}
    node = ctx.service.node
    return {
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


API = Api(key=10, name="FindCoordinator", versions=(0, 6), handle=handle)
