"""IncrementalAlterConfigs, versions 0-1: single configs are set (0), deleted (1), appended to (2), subtracted from (3).

Appending and subtracting are for lists such as `cleanup.policy`. A resource changes as a whole or not at all; one that
appears twice, and a config named twice, are refused with INVALID_REQUEST.

Differs from Kafka: log levels cannot be changed this way; groups and client metrics have no configs.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.alter_configs import answer, on_error
from headrace.apis.api import Answer, Api, Context
from headrace.broker.configs import Alteration


async def handle(ctx: Context, request: Any) -> Answer:
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    outcomes = await ctx.service.configs.alter(alterations, validate_only=request.validate_only)
    return answer(request, outcomes)


API = Api(
    key=44, name="IncrementalAlterConfigs", versions=(0, 1), handle=handle, on_error=on_error, for_controller=True
)
