"""Logs in which a read has found damage, or that cannot be read: looked at again, told of, and given up for others.

Rules:
- What a read has found is looked at again, in a worker: what is gone then was nothing.
- If it is still there and other replicas are in sync, ours is given up at once: it serves nothing, the controller is
  told (`OfflineReplicas`), another replica leads, and ours is set aside and copied from it.
- If nobody else is in sync, ours stays, and what is whole is served. It is looked at every few seconds: until it can be
  read again, or others are in sync.
- Each of this is in the log once, and as long as it lasts among the faults that make a broker not ready.
- A disk that fails to read several logs is not trusted with any: the data directory goes offline.
- The controller is told until it has answered. One of an older release does not know the word; then this node asks to
  be fenced (`Partitions.is_fit`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.broker.commands import OfflineReplicas
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, ErrorCode, StorageError

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.commands import Quorum
    from headrace.broker.partition import Partition
    from headrace.core.ports import Workers

logger = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS: Final = 5.0
UNREADABLE_LOGS: Final = 3
ASK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.5
REPLACED: Final = (ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered)

Check = Callable[[], object]  # blocking; raises StorageError if what was found is still there


class LogFaults:
    """What is wrong with logs that are open here."""

    def __init__(
        self,
        workers: Workers,
        *,
        others_have: Callable[[Partition], bool],
        give_up: Callable[[Partition, StorageError], None],
        fail_disk: Callable[[StorageError], None],
    ) -> None:
        """`others_have`: whether ours is not the only replica that could lead."""
        self._workers = workers
        self._others_have = others_have
        self._give_up = give_up
        self._fail_disk = fail_disk
        self._looking: dict[Partition, asyncio.Task[None]] = {}
        self._lasting: dict[Partition, str] = {}
        self._unreadable: dict[tuple[str, int], None] = {}  # logs that were given up because reads failed

    @property
    def sentences(self) -> list[str]:
        """What is wrong now, for people."""
        return [f"{partition.topic}-{partition.index}: {why}" for partition, why in self._lasting.items()]

    def found(self, partition: Partition, check: Check, error: StorageError) -> bool:
        """A read has found damage, or failed. Whether others have what it did not get."""
        if partition not in self._looking:
            damaged = isinstance(error, CorruptionError)
            about = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
            logger.error("a log is damaged" if damaged else "a log cannot be read", extra=about)
            looking = asyncio.get_running_loop().create_task(self._look_again(partition, check), name="log-fault")
            self._looking[partition] = looking
        return self._others_have(partition)

    def forget(self, partition: Partition) -> None:
        """It is not ours any more."""
        looking = self._looking.pop(partition, None)
        if looking is not None and looking is not asyncio.current_task():
            looking.cancel()
        self._lasting.pop(partition, None)

    def stop(self) -> None:
        for partition in list(self._looking):
            self.forget(partition)

    async def _look_again(self, partition: Partition, check: Check) -> None:
        try:
            while partition.log.failed is None:
                try:
                    await self._workers.run(check)
                    if partition in self._lasting:
                        about = {"topic": partition.topic, "partition": partition.index}
                        logger.warning("a log can be read again", extra=about)
                    return
                except ApiError:
                    return  # the records were removed meanwhile
                except StorageError as error:
                    if isinstance(error, CorruptionError | DiskFailedError) and self._others_have(partition):
                        self._lose(partition, error)
                        return
                    self._lasting[partition] = str(error)
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        finally:
            self.forget(partition)

    def _lose(self, partition: Partition, error: StorageError) -> None:
        self._give_up(partition, error)
        if isinstance(error, DiskFailedError):
            self._unreadable[partition.topic, partition.index] = None
            if len(self._unreadable) >= UNREADABLE_LOGS:
                self._fail_disk(error)


class OfflineReports:
    """Tells the controller of replicas that this node has lost, until it has heard."""

    def __init__(self, node_id: int, epoch: int, quorum: Quorum) -> None:
        """`epoch`: of this node's registration."""
        self._node_id = node_id
        self._epoch = epoch
        self._quorum = quorum
        self._waiting: dict[tuple[UUID, int], None] = {}
        self._telling: asyncio.Task[None] | None = None
        self.is_understood = True  # the controller knows the word

    def lost(self, topic_id: UUID, index: int) -> None:
        self._waiting[topic_id, index] = None
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="offline-replicas")

    def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        try:
            while self._waiting:
                replicas = tuple(self._waiting)
                try:
                    await self._quorum.ask(OfflineReplicas(self._node_id, self._epoch, replicas), timeout_s=ASK_SECONDS)
                except ApiError as error:
                    self.is_understood = error.code is not ErrorCode.unsupported_version
                    logger.warning("the controller does not hear of lost replicas", extra={"reason": str(error)})
                    if not self.is_understood or error.code in REPLACED:
                        self._waiting.clear()
                        return
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                self.is_understood = True
                for replica in replicas:
                    self._waiting.pop(replica, None)
        finally:
            self._telling = None
