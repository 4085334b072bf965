"""How a node that belongs to no cluster yet comes to one: it asks any node of it.

Rules:
- It asks the seeds in turn, again and again, until one answers: they may not be there yet.
- What it was told is stored before anything else: a node that dies before it has the log must know, in its next life,
  that it belongs to a cluster, and whom to answer.
- A refusal that waiting cannot mend is a ConfigError, with the cluster's own sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from headrace.broker.commands import Join, Joined, Refused
from headrace.broker.council import AGAIN, command_frame, read_answer
from headrace.broker.levels import LEVEL
from headrace.core.errors import ConfigError, ErrorCode, LinkError

if TYPE_CHECKING:
    from headrace.core.ports import Address, Files

logger = logging.getLogger(__name__)

CALL_S: Final = 5.0
PAUSE_S: Final = 0.1
COMPLAIN_S: Final = 5.0
JOINED_PATH: Final = "joined"  # in the data directory of a node that did not found its cluster
PASSING: Final = AGAIN | {ErrorCode.request_timed_out, ErrorCode.kafka_storage_error}  # the controller's disk is full


class Doors(Protocol):
    """How to call whoever lives at an address."""

    async def call_address(self, address: Address, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        """The answer's frame. Raises LinkError."""


async def join(doors: Doors, seeds: Sequence[Address], command: Join) -> Joined:
    """Returns when the node is a member. Raises ConfigError if it never will be."""
    frame = command_frame(msgspec.structs.replace(command, level=LEVEL))
    loop = asyncio.get_running_loop()
    complain_at = loop.time() + 1.0
    while True:
        for seed in seeds:
            try:
                answer = read_answer(await doors.call_address(seed, frame, lane="control", timeout_s=CALL_S))
            except LinkError as error:
                reason = str(error)
            else:
                if isinstance(answer, Joined):
                    return answer
                assert isinstance(answer, Refused)
                if answer.code not in PASSING:
                    raise ConfigError(f"the cluster does not take this node: {answer.message}")
                reason = answer.message
            if loop.time() >= complain_at:
                complain_at = loop.time() + COMPLAIN_S
                logger.warning(
                    "still looking for the cluster", extra={"seed": f"{seed[0]}:{seed[1]}", "reason": reason}
                )
        await asyncio.sleep(PAUSE_S)


def remember(files: Files, joined: Joined) -> None:
    """Note in the data directory whose member this node is, and where the others are. Blocking."""
    files.store(JOINED_PATH, json.dumps({"cluster_id": joined.cluster_id, "nodes": joined.nodes}).encode())


def remembered(files: Files) -> dict[int, Address]:
    """Where the others were when this node joined; nobody, if it has founded its cluster. Blocking."""
    try:
        found = json.loads(files.load(JOINED_PATH) or b"")
        return {int(node): (str(host), int(port)) for node, (host, port) in found["nodes"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
