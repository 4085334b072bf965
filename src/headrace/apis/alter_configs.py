"""AlterConfigs, versions 0-2: a resource gets exactly the configs that are named; all others lose their value.

Kept for older clients; newer ones use IncrementalAlterConfigs. Topics and brokers can be altered, and of a broker only
what gives topics their defaults. Anything else is refused with INVALID_REQUEST, unknown names with INVALID_CONFIG.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.configs import Alteration, Op
from headrace.core.errors import ApiError


async def handle(ctx: Context, request: Any) -> Answer:
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [(config.name, Op.SET, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    outcomes = await ctx.service.configs.alter(alterations, replace=True, validate_only=request.validate_only)
    return answer(request, outcomes)


def answer(request: Any, outcomes: list[ApiError | None]) -> Answer:
    return {
        "responses": [
            {
                "error_code": 0 if error is None else error.code,
                "error_message": None if error is None else str(error),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource, error in zip(request.resources, outcomes, strict=True)
        ]
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return answer(request, [error] * len(request.resources))


API = Api(key=33, name="AlterConfigs", versions=(0, 2), handle=handle, on_error=on_error, for_controller=True)
