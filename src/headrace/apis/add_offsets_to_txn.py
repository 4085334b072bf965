"""AddOffsetsToTxn, versions 0-4: a group's offsets will be committed in a producer's transaction.

What joins the transaction is the partition of the offsets topic that keeps the group. Versions below 2 get
INVALID_PRODUCER_EPOCH for PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.apis.init_producer_id import fenced_as_known
from headrace.core.errors import ApiError

FENCED_FROM = 2


async def handle(ctx: Context, request: Any) -> Answer:
    error = await ctx.service.transactions.add_offsets(
        request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
    )
    return {"error_code": fenced_as_known(error, ctx.version >= FENCED_FROM)}


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code}


API = Api(key=25, name="AddOffsetsToTxn", versions=(0, 4), handle=handle, on_error=on_error)
