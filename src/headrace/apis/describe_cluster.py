"""DescribeCluster, versions 0-2: the cluster's id, its controller and its brokers.

Version 1 asks for an endpoint type: this is a broker's port (1); controllers (2) have none of their own, and any other
is unsupported. Version 2 can include fenced brokers: those that are not heard any more, or stopped.
"""

from __future__ import annotations

from typing import Any

from headrace.apis import operations
from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError, ErrorCode

BROKERS = 1
CONTROLLERS = 2


def handle(ctx: Context, request: Any) -> Answer:
    endpoint_type = getattr(request, "endpoint_type", BROKERS)
    if endpoint_type == CONTROLLERS:
        raise ApiError(
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if endpoint_type != BROKERS:
        raise ApiError(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}")
    service = ctx.service
    asked = request.include_cluster_authorized_operations
    return {
        "endpoint_type": BROKERS,
        "cluster_id": service.cluster_id,
        "controller_id": service.controller_id,
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
            for broker in service.image.brokers.values()
            if not broker.fenced or getattr(request, "include_fenced_brokers", False)
        ],
        "cluster_authorized_operations": operations.ON_CLUSTER if asked else operations.NOT_ASKED,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "error_message": str(error), "cluster_id": "", "brokers": []}


API = Api(key=60, name="DescribeCluster", versions=(0, 2), handle=handle, on_error=on_error)
