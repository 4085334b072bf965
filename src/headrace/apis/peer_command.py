"""PeerCommand (32002), version 0: another node asks something of the controller (`broker/commands.py`).

A node that does not decide hands the command on to the one that does, once; so a newcomer may ask anybody.

Differs from Kafka: it has BrokerRegistration, BrokerHeartbeat, AlterPartition and AllocateProducerIds for this.
"""

from __future__ import annotations

from headrace.apis.api import Api, Context, Encoded
from headrace.broker.post import COMMAND_KEY


async def handle(ctx: Context, request: bytes) -> Encoded:
    return Encoded((await ctx.service.council.answer(request),))


def decode(version: int, frame: bytes, offset: int) -> bytes:
    return frame[offset:]


API = Api(key=COMMAND_KEY, name="PeerCommand", versions=(0, 0), handle=handle, decode=decode, for_peers=True)
