"""ListConfigResources, versions 0-1: names of the resources that have configs.

Version 0 (then called ListClientMetricsResources) lists client metrics only: there are none. Version 1 names the types
that it wants; no types asks for all. A type that Kafka does not list is refused with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.configs import ResourceType
from headrace.core.errors import ApiError, ErrorCode

LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


def handle(ctx: Context, request: Any) -> Answer:
    if ctx.version == 0:
        return {"config_resources": []}
    wanted = request.resource_types or LISTED
    if any(kind not in LISTED for kind in wanted):
        raise ApiError(ErrorCode.unsupported_version)
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind in dict.fromkeys(wanted)
            for name in _names(ctx, kind)
        ]
    }


def _names(ctx: Context, kind: int) -> list[str]:
    image = ctx.service.image
    if kind == ResourceType.TOPIC:
        return list(image.topics)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id in image.brokers]
    return []


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "config_resources": []}


API = Api(key=74, name="ListConfigResources", versions=(0, 1), handle=handle, on_error=on_error)
