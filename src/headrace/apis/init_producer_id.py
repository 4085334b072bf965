"""InitProducerId, versions 0-5.

An idempotent producer gets a producer id that nobody else ever had, with epoch 0. Ids come in blocks that the metadata
log records, so that a restart never hands one out twice. A producer that already has an id and asks to go on with a
higher epoch (KIP-360) gets a fresh id.

Differs from Kafka: transactional ids are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED until transactions exist.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ApiError, ErrorCode


async def handle(ctx: Context, request: Any) -> Answer:
    if request.transactional_id is not None:
        raise ApiError(ErrorCode.transactional_id_authorization_failed, "transactions are not supported yet")
    return {"producer_id": await ctx.service.producer_ids.next_id(), "producer_epoch": 0}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}


API = Api(key=22, name="InitProducerId", versions=(0, 5), handle=handle, on_error=on_error)
