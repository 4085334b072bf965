"""EndTxn, versions 0-5: commit or abort a transaction.

The answer goes out when the decision is durable; the markers follow. Version 5 is the newer protocol (KIP-890): every
end gives the producer a new epoch, and a new producer id when the epochs are used up, which the answer carries; an end
may be repeated by who did not get the answer. Versions below 2 get INVALID_PRODUCER_EPOCH for PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.apis.init_producer_id import fenced_as_known
from headrace.core.errors import ApiError

BUMP_FROM = 5
FENCED_FROM = 2


async def handle(ctx: Context, request: Any) -> Answer:
    answer = await ctx.service.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        commit=request.committed,
        bump=ctx.version >= BUMP_FROM,
    )
    return {
        "error_code": fenced_as_known(answer.error, ctx.version >= FENCED_FROM),
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def on_error(ctx: Context, request: Any, error: ApiError) -> Answer:
    return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}


API = Api(key=26, name="EndTxn", versions=(0, 5), handle=handle, on_error=on_error)
