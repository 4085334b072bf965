"""All partitions that this broker leads, kept in step with the image.

Rules:
- A partition exists here if, and only if, the image says that this node leads it and its log could be opened.
- Logs are opened and removed in workers, in the order of the images; `settled` waits for that.
- A log that cannot be opened is offline: its partition answers KAFKA_STORAGE_ERROR, the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.core.counters import Traffic
from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.broker.configs import Configs
    from headrace.broker.image import Image, PartitionRecord, TopicImage
    from headrace.core.counters import Counters
    from headrace.core.ports import Clock, Files, Workers
    from headrace.storage.topic_config import TopicConfig

logger = logging.getLogger(__name__)


def log_path(topic: str, index: int) -> str:
    """Where a partition lies in the data directory. `topic` is a validated name."""
    return f"topics/{topic}-{index}"


class Partitions:
    """See the module."""

    def __init__(
        self,
        disk: Files,
        memory: Files,
        configs: Configs,
        node_id: int,
        *,
        producer_expiry_ms: int,
        clock: Clock,
        workers: Workers,
        counters: Counters,
        touched: Callable[[Partition], None],
    ) -> None:
        self._disk = disk
        self._memory = memory
        self._configs = configs
        self._node_id = node_id
        self._producer_expiry_ms = producer_expiry_ms
        self._clock = clock
        self._workers = workers
        self._counters = counters
        self._touched = touched
        self._topics: dict[str, dict[int, Partition]] = {}
        self._faults: dict[tuple[str, int], str] = {}
        self._image: Image | None = None
        self._changes: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._topics.values())

    @property
    def faults(self) -> list[str]:
        """What is offline, and why."""
        return [f"{topic}-{index}: {why}" for (topic, index), why in self._faults.items()]

    def get(self, topic: str, index: int) -> Partition:
        """The partition, or the ApiError that its client deserves."""
        try:
            return self._topics[topic][index]
        except KeyError:
            raise self._absence(topic, index) from None

    def _absence(self, topic: str, index: int) -> ApiError:
        if (why := self._faults.get((topic, index))) is not None:
            return ApiError(ErrorCode.kafka_storage_error, why)
        known = self._image.topics.get(topic) if self._image is not None else None
        if known is None or not 0 <= index < len(known.partitions):
            return ApiError(ErrorCode.unknown_topic_or_partition)
        return ApiError(ErrorCode.not_leader_or_follower)

    def load(self, image: Image) -> None:
        """Open everything at start-up. Blocking."""
        self._image = image
        for topic in image.topics.values():
            for record in topic.partitions:
                if record.leader == self._node_id:
                    self._adopt(topic, record, self._open(topic, record, self._config(topic, image)))
        self._remove_strangers(image)

    def changed(self, old: Image, new: Image) -> None:
        """The image moved on: open, close, configure. Slow work happens behind; see `settled`."""
        self._image = new
        gone = [
            topic for name, topic in old.topics.items()
            if name not in new.topics or new.topics[name].topic_id != topic.topic_id
        ]  # fmt: skip
        closing = [partition for topic in gone for partition in self._drop(topic.name)]
        opening = [
            (topic, record, self._config(topic, new))
            for name, topic in new.topics.items()
            if old.topics.get(name) is not topic
            for record in topic.partitions
            if record.leader == self._node_id and record.index not in self._topics.get(name, {})
        ]
        if old.broker_configs != new.broker_configs or old.topics != new.topics:
            self._reconfigure(old, new)
        if closing or opening:
            before = self._changes
            self._changes = asyncio.get_running_loop().create_task(self._work(before, closing, opening))

    async def settled(self) -> None:
        """Wait until the partitions match the newest image."""
        while (changes := self._changes) is not None and not changes.done():
            await asyncio.wait([changes])

    async def _work(
        self,
        before: asyncio.Task[None] | None,
        closing: list[Partition],
        opening: list[tuple[TopicImage, PartitionRecord, TopicConfig]],
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        for partition in closing:
            await self._workers.run(partial(_quietly, partition.log.delete))
        for topic, record, config in opening:
            self._adopt(topic, record, await self._workers.run(partial(self._open, topic, record, config)))

    def _config(self, topic: TopicImage, image: Image) -> TopicConfig:
        return self._configs.topic_config(topic.configs, image)

    def _open(self, topic: TopicImage, record: PartitionRecord, config: TopicConfig) -> Log | StorageError:
        """Blocking."""
        try:
            files = self._memory if config.storage == "memory" else self._disk
            return Log.open(
                files,
                log_path(topic.name, record.index),
                config,
                now_ms=self._clock.now_ms(),
                producer_expiry_ms=self._producer_expiry_ms,
            )
        except StorageError as error:
            return error

    def _adopt(self, topic: TopicImage, record: PartitionRecord, log: Log | StorageError) -> None:
        name, index = topic.name, record.index
        if isinstance(log, StorageError):
            self._faults[name, index] = str(log)
            logger.error("a partition is offline", extra={"topic": name, "partition": index, "reason": str(log)})
            return
        traffic = self._counters.topics.setdefault(name, Traffic())
        self._topics.setdefault(name, {})[index] = Partition(
            name,
            topic.topic_id,
            index,
            log,
            leader_epoch=record.leader_epoch,
            clock=self._clock,
            traffic=traffic,
            touched=self._touched,
        )

    def _drop(self, name: str) -> list[Partition]:
        for key in [key for key in self._faults if key[0] == name]:
            del self._faults[key]
        self._counters.topics.pop(name, None)
        dropped = list(self._topics.pop(name, {}).values())
        for partition in dropped:
            partition.fail(ApiError(ErrorCode.unknown_topic_or_partition))
        return dropped

    def _reconfigure(self, old: Image, new: Image) -> None:
        everything = old.broker_configs != new.broker_configs
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is None or (not everything and before.configs == topic.configs):
                continue
            config = self._config(topic, new)
            for partition in self._topics.get(name, {}).values():
                partition.log.config = config
                partition.configured()

    def _remove_strangers(self, image: Image) -> None:
        """Remove what a deletion that was cut short has left behind; set aside what nobody knows."""
        expected = {
            log_path(topic.name, record.index) for topic in image.topics.values() for record in topic.partitions
        }
        for name in self._disk.names("topics"):
            if name.endswith(".deleted"):
                self._disk.remove(f"topics/{name}")
            elif f"topics/{name}" not in expected:
                logger.warning("a directory belongs to no topic; it is set aside", extra={"directory": name})
                self._disk.rename(f"topics/{name}", f"stray/{name}")

    def fail_disk(self, error: StorageError) -> None:
        """The data directory is gone for us: every log on it goes offline."""
        logger.critical("the data directory is offline", extra={"reason": str(error)})
        for name, partitions in self._topics.items():
            for index in [i for i, p in partitions.items() if p.log.config.storage == "disk"]:
                self._faults[name, index] = str(error)
                partitions.pop(index).fail(error)

    def close(self) -> None:
        """Close all logs cleanly. Blocking."""
        for partition in self:
            _quietly(partition.log.close)


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except StorageError as error:
        logger.warning("a log did not close cleanly", extra={"reason": str(error)})
