"""This node's place in the cluster: it registers when it starts, beats while it lives, and says when it leaves.

Rules:
- A registration is asked for until it is granted: a node without one leads nothing.
- Starts are counted in the data directory. If the cluster has seen this one, or a later one, before it was registered,
  the directory is an older copy, and lacks what was acknowledged since: the node refuses to start.
- A beat tells how much metadata this node has applied. That no beat is answered is no reason to stop: the controller
  will fence this node, or another controller will hear it.
- A node whose disk has failed lives, but is of no use: it asks to be fenced, beat after beat, so that others lead.
- A node whose epoch was replaced, or that was removed, stops beating: there is another one in its place.
- Leaving is bounded in time. A node that leads the quorum hands that over, too.
- A node that is alone has nobody to tell.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.commands import Beat, Beaten, Register, Registered
from headrace.broker.levels import LEVEL
from headrace.core.errors import ApiError, ConfigError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.cluster_settings import ClusterSettings
    from headrace.broker.controller import Controller
    from headrace.broker.council import Council

logger = logging.getLogger(__name__)

REPLACED: Final = (ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered)
REGISTER_S: Final = 5.0
REGISTER_PAUSE_S: Final = 0.2
HAND_OVER_POLL_S: Final = 0.01
CATCH_UP_PAUSE_S: Final = 0.02
COMPLAIN_S: Final = 5.0


class Attendance:
    """See the module."""

    def __init__(self, council: Council, controller: Controller, settings: ClusterSettings) -> None:
        self._council = council
        self._controller = controller
        self._settings = settings
        self._node_id = controller.quorum.node_id
        self._task: asyncio.Task[None] | None = None
        self.epoch = 0
        self.index = 0  # of the registration: this node leads only what an image from there on says
        self.replaced: str | None = None  # why this node belongs to the cluster no more
        self.is_fit: Callable[[], bool] = lambda: True

    @property
    def _is_replaced(self) -> bool:
        return self.replaced is not None

    async def register(self, command: Register) -> None:
        """Returns when the registration is applied here. Once per start.

        Raises ApiError if the node is refused, ConfigError if its directory is an older copy.
        """
        self._check_age(command.start)
        command = msgspec.structs.replace(command, level=LEVEL)
        answer = None
        while answer is None:
            led = self._controller.leads
            try:
                answer = await self._council.ask(command, timeout_s=REGISTER_S)
            except ApiError as error:
                ours = led and self._controller.leads  # whoever came to lead meanwhile has heard of another's disk
                if error.code is ErrorCode.kafka_storage_error and not ours:
                    await asyncio.sleep(REGISTER_PAUSE_S)  # the controller's disk is full, not ours
                elif error.code is not ErrorCode.request_timed_out:
                    raise
                logger.warning("this node cannot register yet", extra={"reason": str(error)})
        assert isinstance(answer, Registered)
        self.epoch, self.index = answer.epoch, answer.index
        await self._controller.applied(answer.index)

    def _check_age(self, start: int) -> None:
        known = self._controller.image.brokers.get(self._node_id)
        if known is not None and known.epoch > 0 and known.start >= start > 0:
            raise ConfigError(
                f"the data directory of node {self._node_id} is an older copy: the cluster has seen its start "
                f"{known.start}, and this would be start {start}; put the newest directory back, or remove the node "
                f"(headrace cluster remove {self._node_id}) and let it join with an empty one"
            )

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="attendance")

    async def admitted(self) -> None:
        """Wait until this node is unfenced: clients are told of it then. Not for ever: it serves what it can."""
        deadline = asyncio.get_running_loop().time() + REGISTER_S
        while self._is_fenced() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(CATCH_UP_PAUSE_S)

    def _is_fenced(self) -> bool:
        return not self._controller.image.is_up(self._node_id)

    async def beat(self, *, leaving: bool = False, within_s: float = math.inf) -> Beaten | None:
        """One beat; None if nobody answered, or nobody wants this node any more."""
        command = Beat(self._node_id, self.epoch, self._controller.applied_index, leaving, LEVEL)
        try:
            answer = await self._council.ask(command, timeout_s=min(self._settings.session_ms / 1000, within_s))
        except ApiError as error:
            if error.code in REPLACED:
                self.replaced = str(error)
                logger.critical("this node has lost its place in the cluster", extra={"reason": str(error)})
            return None
        assert isinstance(answer, Beaten)
        return answer

    async def leave(self) -> None:
        """Stop beating, and give everything away, as far as that is possible in time."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._controller.quorum.is_alone or self._controller.fault is not None or self._is_replaced:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.leave_ms / 1000
        while (left_s := deadline - loop.time()) > 0:
            answer = await self.beat(leaving=True, within_s=left_s)
            if (answer is not None and answer.may_leave) or self._is_replaced:
                break
            if self._council.leader is None:
                return  # nobody is left to decide: the others stop, too
            await asyncio.sleep(CATCH_UP_PAUSE_S)  # refused, by a full disk for example
        await self._hand_over(deadline)

    async def _hand_over(self, deadline: float) -> None:
        """The quorum shall not wait for an election timeout."""
        quorum, loop = self._controller.quorum, asyncio.get_running_loop()
        tried: dict[int, None] = {}
        while quorum.leads and loop.time() < deadline:
            heirs = {
                node: progress.match
                for node, progress in quorum.followers.items()
                if node in quorum.membership.voters and progress.is_active and node not in tried
            }
            if not heirs:
                return
            heir = max(heirs, key=lambda node: heirs[node])
            tried[heir] = None
            quorum.transfer(heir)
            until = min(deadline, loop.time() + self._settings.election_ms / 1000)
            while loop.time() < until and quorum.leads:
                await asyncio.sleep(HAND_OVER_POLL_S)

    async def _run(self) -> None:
        interval_s = self._settings.heartbeat_ms / 1000
        while not self._is_replaced:
            begun = asyncio.get_running_loop().time()
            try:
                is_fit = self.is_fit()
                if not self._controller.quorum.is_alone:
                    await self.beat(leaving=not is_fit)
            except Exception:
                logger.exception("a beat failed in an unexpected way")
            took = asyncio.get_running_loop().time() - begun
            await asyncio.sleep(max(0.0, interval_s - took))


async def caught_up(controller: Controller) -> None:
    """Wait until this node has applied all that was decided before: until a majority is there, however long."""
    loop = asyncio.get_running_loop()
    complain_at = loop.time() + COMPLAIN_S
    while True:
        try:
            await controller.quorum.read()
            return
        except ApiError as error:
            if error.code is ErrorCode.kafka_storage_error:
                raise
            if loop.time() >= complain_at:
                complain_at = loop.time() + COMPLAIN_S
                logger.warning("waiting for the other nodes", extra={"reason": str(error)})
        await asyncio.sleep(CATCH_UP_PAUSE_S)
