"""Leaders at work: who is in sync with the partitions that this node leads, put to the controller.

Rules:
- A follower that has fallen behind is to leave the in-sync set, one that has caught up is to join it. Neither happens
  before the controller has said so, and the image with it has come; `isr.leader` knows what counts meanwhile.
- Wishes of all partitions go together, one request at a time. A follower that catches up is looked at soon, those that
  fall behind from time to time.
- A wish whose outcome is not known stays, and is put again. A refusal ends it; but after a silence only the second one,
  some time later, since what was silent may still be under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.broker.commands import AlterInSync, InSync, InSyncAltered
from headrace.core.errors import ApiError, ErrorCode
from headrace.isr.leader import UNKNOWN_EPOCH, LeaderReplicas

if TYPE_CHECKING:
    from headrace.broker.commands import Quorum
    from headrace.broker.image import Image
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.core.ports import Clock

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.1  # after a failure
LOOKS_PER_LAG: Final = 4
LATE_SECONDS: Final = 1.0  # by which everything that is under way has come or is lost


class Wish:
    """A change that was put to the controller and is not settled."""

    __slots__ = ("change", "refused_at", "replicas", "uncertain")

    def __init__(self, change: InSync, replicas: LeaderReplicas) -> None:
        self.change = change
        self.replicas = replicas
        self.uncertain = False
        self.refused_at: float | None = None


class InSyncSets:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        quorum: Quorum,
        *,
        image: Callable[[], Image],
        clock: Clock,
        lag_ms: int,
    ) -> None:
        self._node_id = node_id
        self._epoch = -1
        self._partitions = partitions
        self._quorum = quorum
        self._image = image
        self._clock = clock
        self._lag_s = lag_ms / 1000
        self._wishes: dict[Partition, Wish] = {}
        self._caught_up: dict[Partition, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, epoch: int) -> None:
        """We are registered, in this epoch."""
        self._epoch = epoch
        self._partitions.on_caught_up = self.caught_up
        self._task = asyncio.get_running_loop().create_task(self._run(), name="in-sync")

    async def stop(self) -> None:
        self._partitions.on_caught_up = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def caught_up(self, partition: Partition) -> None:
        """A follower that is not in sync could be."""
        if partition not in self._caught_up:
            self._caught_up[partition] = None
            self._news.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time()
        while True:
            try:
                now = loop.time()
                if now >= look_at:
                    look_at = now + self._lag_s / LOOKS_PER_LAG
                    for partition in self._partitions:
                        if partition.replicas is not None:
                            self._consider(partition)
                caught_up, self._caught_up = self._caught_up, {}
                for partition in caught_up:
                    self._consider(partition)
                self._news.clear()
                failed = bool(self._wishes) and not await self._put()
                await self._rest(AGAIN_SECONDS if failed else look_at - loop.time())
            except Exception:
                logger.exception("in-sync sets cannot be looked at")
                await asyncio.sleep(LATE_SECONDS)

    async def _rest(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    def _consider(self, partition: Partition) -> None:
        replicas = partition.replicas
        if replicas is None:
            return
        now_s = self._clock.monotonic()
        isr = replicas.to_shrink(now_s, self._lag_s)
        if isr is None:
            registered = {node.node_id: node.epoch for node in self._image().brokers.values() if not node.fenced}
            isr = replicas.to_expand(registered)
        partition.advance()  # somebody may be waited for no more
        if isr is None:
            return
        state = replicas.state
        change = InSync(
            partition.topic_id,
            partition.index,
            state.leader_epoch,
            state.partition_epoch,
            isr,
            tuple(self._epoch_of(replicas, node) for node in isr),
        )
        replicas.proposed(isr, state.partition_epoch)
        self._wishes[partition] = Wish(change, replicas)

    def _epoch_of(self, replicas: LeaderReplicas, node: int) -> int:
        follower = replicas.follower(node)
        return UNKNOWN_EPOCH if follower is None else follower.broker_epoch

    async def _put(self) -> bool:
        """Ask for everything that is not settled. False if some of it has to be asked for again."""
        self._wishes = {
            partition: wish
            for partition, wish in self._wishes.items()
            if partition.replicas is wish.replicas and wish.replicas.proposal is not None
        }
        asked = list(self._wishes.items())
        if not asked:
            return True
        command = AlterInSync(self._node_id, self._epoch, tuple(wish.change for _, wish in asked))
        try:
            answer = await self._quorum.ask(command, timeout_s=ASK_SECONDS)
        except ApiError as error:
            logger.info("the controller says nothing about in-sync sets", extra={"reason": str(error)})
            for _, wish in asked:
                wish.uncertain = True
            return False
        assert isinstance(answer, InSyncAltered)
        settled = [
            self._answered(partition, wish, error)
            for (partition, wish), error in zip(asked, answer.errors, strict=True)
        ]
        return all(settled)

    def _answered(self, partition: Partition, wish: Wish, error: int) -> bool:
        """False if it has to be put again."""
        if error in (ErrorCode.none, ErrorCode.invalid_update_version, ErrorCode.fenced_leader_epoch):
            # It is committed, or the state is a newer one: perhaps just because of this wish. The image will tell.
            self._wishes.pop(partition, None)
            return True
        now_s = self._clock.monotonic()
        if wish.uncertain and (wish.refused_at is None or now_s - wish.refused_at < LATE_SECONDS):
            wish.refused_at = now_s if wish.refused_at is None else wish.refused_at
            return False
        self._wishes.pop(partition, None)
        about = {"topic": partition.topic, "partition": partition.index, "isr": wish.change.isr, "error": error}
        logger.info("an in-sync set was refused", extra=about)
        if partition.replicas is wish.replicas and wish.replicas.proposal is not None:
            wish.replicas.refused()
            partition.advance()
        return True
