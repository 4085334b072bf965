"""UpdateFeatures, versions 0-2: levels of features that all nodes have. The controller answers.

The levels are those of this release, and there is no other to go to: what asks for the level that is in force is
granted, anything else is INVALID_UPDATE_VERSION with a sentence. From version 2 on there is one outcome for the whole
request.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.apis.api_versions import finalized_features
from headrace.core.errors import ApiError, ErrorCode

ONE_OUTCOME_FROM = 2


def handle(ctx: Context, request: Any) -> Answer:
    levels = finalized_features(ctx.service.image)
    outcomes = [(update.feature, _fault(levels, update)) for update in request.feature_updates]
    faults = [fault for _, fault in outcomes if fault is not None]
    if faults and ctx.version >= ONE_OUTCOME_FROM:
        raise ApiError(ErrorCode.invalid_update_version, " ".join(faults))
    return {
        "error_message": None,
        "results": [
            {
                "feature": feature,
                "error_code": ErrorCode.none if fault is None else ErrorCode.invalid_update_version,
                "error_message": fault,
            }
            for feature, fault in outcomes
        ],
    }


def _fault(levels: dict[str, int], update: Any) -> str | None:
    level = levels.get(update.feature)
    if level is None:
        return f"Invalid update version {update.max_version_level} for feature {update.feature}: it is not known."
    if level != update.max_version_level:
        return (
            f"Invalid update version {update.max_version_level} for feature {update.feature}: "
            f"this release has level {level}, and no other."
        )
    return None


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {
        "error_code": error.code,
        "error_message": str(error),
        "results": [
            {"feature": update.feature, "error_code": error.code, "error_message": str(error)}
            for update in request.feature_updates
        ],
    }


API = Api(key=57, name="UpdateFeatures", versions=(0, 2), handle=handle, on_error=on_error, for_controller=True)
