"""What a node that starts has to say before it may lead: which of its replicas lost their logs.

Rules:
- It is said after the registration, while the node is fenced, and again until it is answered. Then none of these
  replicas is in sync, unless nobody else is; so none is elected with less than it had, and no follower is cut to it.
- A controller of an older release does not know the command. Then the node stays fenced until it has left the in-sync
  sets (`Partitions.is_fit`). What an operator has accepted to be older cannot be said to it at all.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.commands import Done, OfflineReplicas
from headrace.core.errors import ApiError, ConfigError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.commands import Quorum
    from headrace.broker.controller import Controller
    from headrace.broker.image import BrokerRecord
    from headrace.broker.partitions import Partitions

logger = logging.getLogger(__name__)

PASSING: Final = (ErrorCode.request_timed_out, ErrorCode.kafka_storage_error)
ASK_S: Final = 5.0
PAUSE_S: Final = 0.2


async def report_losses(partitions: Partitions, quorum: Quorum, controller: Controller, node: BrokerRecord) -> None:
    """Returns when nobody counts on what was lost. Raises ApiError, ConfigError."""
    while lost := partitions.lost_replicas():
        about = {"replicas": len(lost)}
        try:
            answer = await quorum.ask(OfflineReplicas(node.node_id, node.epoch, lost), timeout_s=ASK_S)
        except ApiError as error:
            if error.code is ErrorCode.unsupported_version:
                if partitions.known.unsure():
                    raise ConfigError(
                        "this data directory was restored, and the controller is of a release that cannot be told so: "
                        "upgrade the other nodes first"
                    ) from error
                return
            if error.code not in PASSING:
                raise
            logger.warning("lost replicas cannot be reported yet", extra={**about, "reason": str(error)})
            await asyncio.sleep(PAUSE_S)
            continue
        assert isinstance(answer, Done)
        await controller.applied(answer.index)
        logger.warning("replicas whose logs were lost are in sync no more", extra=about)
        break
    partitions.known.sure(partitions.known.unsure())
    await partitions.known.saved()
