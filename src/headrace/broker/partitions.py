"""All partitions of which this broker has a replica, kept in step with the image.

Rules:
- A partition exists here if, and only if, the image names this node among its replicas and its log could be opened.
  Whether it leads or follows is the image's word, too; `watchers` are told when that changes.
- A node that has just started leads nothing that others have replicas of: what it knows may be old, and a new leader
  elected. It leads once it is registered, by an image that holds its registration (`registered`).
- Logs are opened and removed in workers, one after the other; `settled` waits for that. What was wanted when the work
  began may be wanted no more when it is done: the newest image decides.
- A log is noted in the manifest of the data directory (`known_logs`) before it takes records, and is known by it when
  it is opened again: one that is missing, swapped or older than it was is lost.
- A log that cannot be opened is offline: its partition answers KAFKA_STORAGE_ERROR, the others go on. If it is damaged
  or lost and others are in sync or eligible, it is set aside and copied anew; but not before this node is neither any
  more, lest it be elected with an empty log. A node that starts says so before it may lead (`losses`), later at once
  (`reports`); where the controller does not know the word, it is not `is_fit` for a while. One that could not be opened
  for a passing reason (no space, no file descriptor) is tried again until it opens.
- The same becomes of a log in which a read finds damage, or that cannot be read (`broker/log_faults.py`). If nobody
  else could lead it stays: what is whole is served, what is damaged is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.broker.decisions import partitions_on
from headrace.broker.log_faults import LogFaults
from headrace.broker.log_opening import LogOpening, Opening, log_path
from headrace.broker.offline_logs import OfflineLogs
from headrace.broker.partition import Partition
from headrace.core.counters import Traffic
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, ErrorCode, StorageError
from headrace.storage.directory import distrust_system
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.broker.configs import Configs
    from headrace.broker.image import Image, PartitionRecord, TopicImage
    from headrace.broker.known_logs import KnownLogs
    from headrace.broker.log_faults import Check, OfflineReports
    from headrace.core.counters import Counters
    from headrace.core.ports import Clock, TrackedFiles, Workers
    from headrace.storage.span import Span
    from headrace.storage.topic_config import TopicConfig

logger = logging.getLogger(__name__)

REST_SECONDS: Final = 0.01
OPENED_AT_ONCE: Final = 100  # logs that share one sync of the manifest

Place = tuple[str, int]  # topic and partition


class Partitions:
    """See the module."""

    def __init__(
        self,
        disk: TrackedFiles,
        memory: TrackedFiles,
        configs: Configs,
        node_id: int,
        known: KnownLogs,
        *,
        producer_expiry_ms: int,
        clock: Clock,
        workers: Workers,
        counters: Counters,
        touched: Callable[[Partition], None],
    ) -> None:
        self._disk = disk
        self._logs = LogOpening(disk, memory, clock, producer_expiry_ms=producer_expiry_ms)
        self._configs = configs
        self.node_id = node_id
        self.known = known
        self._clock = clock
        self._workers = workers
        self._counters = counters
        self._touched = touched
        self.watchers: list[Callable[[Partition], None]] = []  # told when a partition begins or ends to lead or follow
        self.on_caught_up: Callable[[Partition], None] | None = None  # told when a follower could be in sync
        self._replicas: dict[str, dict[int, Partition]] = {}
        self._leaders: dict[str, dict[int, Partition]] = {}
        self._offline = OfflineLogs(node_id, self._open_starved)
        self.disk_fault: StorageError | None = None  # the data directory has failed, or a part of it
        self._image: Image | None = None
        self._is_registered = False
        self._opening: dict[Place, UUID] = {}
        self._closing: deque[Partition] = deque()
        self._given_up: dict[Place, Partition] = {}  # damaged: to be at rest before another log is opened there
        self._found_damaged: deque[tuple[Partition, Span, StorageError]] = deque()  # by readers in workers
        self._log_faults = LogFaults(
            workers, others_have=self._others_have, give_up=self._give_up, fail_disk=self.fail_disk
        )
        self.reports: OfflineReports | None = None  # once this node is registered
        self._changes: asyncio.Task[None] | None = None
        self._stopped = False

    def __iter__(self) -> Iterator[Partition]:
        """All replicas, whoever leads."""
        for partitions in self._replicas.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self._replicas.values()))

    @property
    def faults(self) -> list[str]:
        """What is offline or damaged, and why."""
        return self._offline.sentences + self._log_faults.sentences

    @property
    def is_fit(self) -> bool:
        """Whether this node may lead, and be in sync; otherwise it asks to be fenced."""
        if self.disk_fault is not None:
            return False
        if self.reports is not None and self.reports.is_understood:
            return True
        return not self.lost_replicas()

    def lost_replicas(self) -> tuple[tuple[UUID, int], ...]:
        """Logs that are lost, or may be, for which the cluster counts on this node though it could count on others."""
        return () if self._image is None else self._offline.counted_on(self._image, self.known.unsure())

    def examined(self) -> bool:
        """At every beat: take up what readers in workers have found, and say whether this node is fit."""
        while self._found_damaged:
            partition, span, error = self._found_damaged.popleft()
            self.suspect(partition, span.verify, error)
        self._open_starved()
        return self.is_fit

    def _open_starved(self) -> None:
        """Try again what could not be opened for a passing reason."""
        for name in {name: None for name, _ in self._offline.starved}:
            if self._image is not None and not self._stopped:
                self._assign_all(self._image.topics[name])
        self._keep_working()

    def get(self, topic: str, index: int) -> Partition:
        """The partition if we lead it, or the ApiError that its client deserves."""
        try:
            return self._leaders[topic][index]
        except KeyError:
            raise self._absence(topic, index) from None

    def replica(self, topic: str, index: int) -> Partition | None:
        """The partition, whoever leads it, if we have a replica."""
        return self._replicas.get(topic, {}).get(index)

    def _absence(self, topic: str, index: int) -> ApiError:
        if (why := self._offline.why((topic, index))) is not None:
            return ApiError(ErrorCode.kafka_storage_error, why)
        if self._image is None or self._image.partition(topic, index) is None:
            return ApiError(ErrorCode.unknown_topic_or_partition)
        return ApiError(ErrorCode.not_leader_or_follower)

    def load(self, image: Image, *, is_current: bool = True) -> None:
        """Open everything at start-up. Blocking. An image that may be old is followed by `registered`."""
        self._image = image
        ours = [(*each, self._opening_of(each[0], each[1].index)) for each in partitions_on(image, self.node_id)]
        opened = self._logs.open_all([wanted for *_, wanted in ours], self.known.trust)
        for number, (topic, record, wanted) in enumerate(ours):
            if isinstance(opened[number], CorruptionError) and self._offline.may_copy_anew(record):
                ours[number] = topic, record, replace(wanted, anew=True)
                [opened[number]] = self._logs.open_all([ours[number][2]], self.known.trust)
        for (*_, wanted), log in zip(ours, opened, strict=True):
            self._note(wanted, log)
        self.known.save()
        for (topic, record, _), log in zip(ours, opened, strict=True):
            self._adopt(topic, record, log)
        if is_current:
            self._is_registered = True
            self._logs.clear_strangers(self._expected())

    def _expected(self) -> set[str]:
        """The directories of this node's logs; what is known of others is forgotten."""
        assert self._image is not None
        ours = {
            (topic.name, record.index): topic.topic_id for topic, record in partitions_on(self._image, self.node_id)
        }
        self.known.keep(ours)
        return {log_path(*place) for place in ours}

    async def registered(self) -> None:
        """The image holds the registration of this start, and so all that was decided before it."""
        if self._is_registered:
            return
        self._is_registered = True
        assert self._image is not None
        for topic in self._image.topics.values():
            self._assign_all(topic)
        await self.settled()
        await self._workers.run(partial(self._logs.clear_strangers, self._expected()))

    def changed(self, old: Image, new: Image) -> None:
        """The image moved on: lead, follow, open, close, configure. Slow work happens behind; see `settled`."""
        self._image = new
        for name, topic in old.topics.items():
            now = new.topics.get(name)
            if now is None or now.topic_id != topic.topic_id:
                self._drop_topic(name)
        if old.broker_configs != new.broker_configs or old.topics != new.topics:
            self._reconfigure(old, new)
        for name, topic in new.topics.items():
            if old.topics.get(name) is not topic:
                self._assign_all(topic)
        if old.brokers != new.brokers:
            self._note_fenced([node.node_id for node in new.brokers.values() if node.fenced])
        self._keep_working()

    def _keep_working(self) -> None:
        idle = self._changes is None or self._changes.done()
        if (self._closing or self._opening) and idle and not self._stopped:
            self._changes = asyncio.get_running_loop().create_task(self._work(), name="partitions")

    def _note_fenced(self, nodes: list[int]) -> None:
        for partition in self:
            for node in nodes if partition.replicas is not None else ():
                partition.fenced(node)

    def _assign_all(self, topic: TopicImage) -> None:
        present = self._replicas.get(topic.name, {})
        for record in topic.partitions:
            partition, place = present.get(record.index), (topic.name, record.index)
            if self.node_id not in record.replicas:
                if partition is not None:
                    self._drop(partition)
                self._opening.pop(place, None)
                self._forget_faults(place)
            elif partition is not None:
                self._assign(partition, record)
            elif place not in self._offline or (self.disk_fault is None and self._offline.may_open(place, record)):
                self._offline.reopen(place)
                self._opening[place] = topic.topic_id

    def _assign(self, partition: Partition, record: PartitionRecord) -> None:
        """Let a partition lead or follow, as its record says."""
        if partition.record == record and (partition.leads or record.leader != self.node_id):
            return
        if partition.log.cutting:
            partition.when_idle(partial(self._assign_later, partition))
            return
        before = (partition.leads, partition.leader, partition.leader_epoch)
        leaders = self._leaders.setdefault(partition.topic, {})
        if record.leader == self.node_id and (self._is_registered or record.replicas == (self.node_id,)):
            partition.become_leader(record)
            leaders[partition.index] = partition
        else:
            leaders.pop(partition.index, None)
            partition.become_follower(record)
        if before != (partition.leads, partition.leader, partition.leader_epoch):
            self._tell(partition)

    def _assign_later(self, partition: Partition) -> None:
        if self.replica(partition.topic, partition.index) is partition and self._image is not None:
            record = self._image.partition(partition.topic, partition.index)
            if record is not None:
                self._assign(partition, record)

    def _caught_up(self, partition: Partition) -> None:
        if self.on_caught_up is not None:
            self.on_caught_up(partition)

    def _failed(self, partition: Partition, error: StorageError) -> None:
        if isinstance(error, DiskFailedError) and partition.log.config.storage == "disk":
            self._disk_failed(error)

    def suspect(self, partition: Partition, check: Check, error: StorageError) -> bool:
        """A read has found damage, or failed; `check` looks again. Whether others have what it did not get."""
        is_ours = self.replica(partition.topic, partition.index) is partition
        return is_ours and self._log_faults.found(partition, check, error)

    def _others_have(self, partition: Partition) -> bool:
        """Whether a replica of ours is not the only one with everything that is committed."""
        record = partition.record
        if record is None or self.replica(partition.topic, partition.index) is not partition:
            return False
        return self._offline.is_one_of_several(record) or self._offline.may_copy_anew(record)

    def _give_up(self, partition: Partition, error: StorageError) -> None:
        place = partition.topic, partition.index
        about = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
        logger.error("a log is given up: another replica shall lead, and ours be copied from it", extra=about)
        self._offline.add(place, error, is_lost=True)
        self._given_up[place] = partition
        del self._replicas[partition.topic][partition.index]
        self._leaders.get(partition.topic, {}).pop(partition.index, None)
        partition.fail(StorageError(str(error)))  # this log has failed, and not its disk
        partition.retire()
        self._tell(partition)
        if self.reports is not None:
            self.reports.lost(partition.topic_id, partition.index)
        if self._image is not None and (topic := self._image.topics.get(partition.topic)) is not None:
            self._assign_all(topic)  # nobody may count on it: then it is copied at once
            self._keep_working()

    def report_to(self, reports: OfflineReports) -> None:
        """This node is registered: tell the controller of what is lost, already or later."""
        self.reports = reports
        for topic, index in self._offline.lost:
            if self._image is not None and (found := self._image.topics.get(topic)) is not None:
                reports.lost(found.topic_id, index)

    def _disk_failed(self, error: StorageError) -> None:
        if self.disk_fault is None:
            self.disk_fault = error
            _quietly(lambda: distrust_system(self._disk))

    def _tell(self, partition: Partition) -> None:
        for watcher in self.watchers:
            watcher(partition)

    async def settled(self) -> None:
        """Wait until the partitions match the newest image."""
        while (changes := self._changes) is not None and not changes.done():
            await asyncio.wait([changes])

    async def _work(self) -> None:
        while self._closing or self._opening:
            if self._closing:
                partition = self._closing.popleft()
                await partition.idle()
                await self._workers.run(partial(_quietly, partition.log.delete))
                self.known.removed(partition.topic, partition.index, partition.topic_id)
            else:
                await self._open_some()

    async def _open_some(self) -> None:
        """Open a group of logs; the partitions among them that are still wanted begin."""
        wanted: list[Opening] = []
        for place in list(islice(self._opening, OPENED_AT_ONCE)):
            del self._opening[place]
            if self.replica(*place) is not None:
                continue  # the image moved on while it was being opened: two logs of one place would tear each other
            assert self._image is not None
            anew = self._offline.take_lost(place)
            wanted.append(self._opening_of(self._image.topics[place[0]], place[1], anew=anew))
        for each in wanted:
            if (old := self._given_up.pop((each.topic, each.index), None)) is not None:
                await self._at_rest(old)
        opened = await self._workers.run(partial(self._logs.open_all, wanted, self.known.trust))
        for each, log in zip(wanted, opened, strict=True):
            if self._wants(each):
                self._note(each, log)
        try:
            await self.known.saved()
        except StorageError as error:
            for log in opened:
                if isinstance(log, Log):
                    await self._workers.run(partial(_quietly, partial(log.close, clean=False)))
            opened = [error for _ in opened]
        for each, log in zip(wanted, opened, strict=True):
            if (found := self._wants(each)) is not None:
                self._adopt(*found, log)
            elif isinstance(log, Log):
                await self._workers.run(partial(_quietly, log.delete))
                self.known.removed(each.topic, each.index, each.topic_id)

    def _opening_of(self, topic: TopicImage, index: int, *, anew: bool = False) -> Opening:
        assert self._image is not None
        known = self.known.get(topic.name, index)
        return Opening(topic.name, index, topic.topic_id, self._config(topic, self._image), known, anew)

    def _wants(self, wanted: Opening) -> tuple[TopicImage, PartitionRecord] | None:
        """Topic and partition, if this node still has a replica of it."""
        assert self._image is not None
        topic, record = self._image.topics.get(wanted.topic), self._image.partition(wanted.topic, wanted.index)
        if topic is None or topic.topic_id != wanted.topic_id:
            return None
        return (topic, record) if record is not None and self.node_id in record.replicas else None

    def _note(self, wanted: Opening, log: Log | StorageError) -> None:
        """Have the manifest know a log that was opened, or that should have been there."""
        if isinstance(log, Log) and wanted.on_disk:
            self.known.opened(wanted, self._logs.fingerprint(wanted.topic, wanted.index))
        elif isinstance(log, CorruptionError):
            self.known.missed(wanted)

    def known_high_watermark(self, topic: TopicImage, index: int) -> int:
        """Everything below was committed once, as far as this node's disk knows; 0 if it does not."""
        known = self.known.get(topic.name, index)
        return known.high_watermark if known is not None and known.topic_id == topic.topic_id else 0

    async def _at_rest(self, partition: Partition) -> None:
        """Until no worker writes to its files any more, and they are closed."""
        while partition.log.busy:
            await asyncio.sleep(REST_SECONDS)
        await self._workers.run(partial(_quietly, partition.log.close))

    def _config(self, topic: TopicImage, image: Image) -> TopicConfig:
        return self._configs.topic_config(topic.configs, image)

    def _adopt(self, topic: TopicImage, record: PartitionRecord, log: Log | StorageError) -> None:
        name, index = topic.name, record.index
        if isinstance(log, StorageError):
            self._offline.failed((name, index), log)
            return
        self._offline.opened((name, index))
        traffic = self._counters.topics.setdefault(name, Traffic())
        partition = self._replicas.setdefault(name, {})[index] = Partition(
            name, topic.topic_id, index, log, clock=self._clock, traffic=traffic, touched=self._touched
        )
        known = min(self.known_high_watermark(topic, index), log.end_offset)  # of what it has
        partition.high_watermark = max(partition.high_watermark, known)
        partition.on_caught_up = self._caught_up
        partition.on_failed = self._failed
        partition.on_damaged = self._found_damaged.append
        self._assign(partition, record)

    def _drop_topic(self, name: str) -> None:
        for key in self._offline.of_topic(name):
            self._forget_faults(key)
        for key in [key for key in self._opening if key[0] == name]:
            del self._opening[key]
        for partition in list(self._replicas.get(name, {}).values()):
            self._drop(partition)
        self._counters.topics.pop(name, None)
        self._replicas.pop(name, None)
        self._leaders.pop(name, None)

    def _forget_faults(self, place: Place) -> None:
        self._offline.forget(place)
        if (old := self._given_up.pop(place, None)) is not None:
            self._closing.append(old)

    def _drop(self, partition: Partition) -> None:
        """We have no replica of it any more."""
        del self._replicas[partition.topic][partition.index]
        self._leaders.get(partition.topic, {}).pop(partition.index, None)
        partition.retire()
        self._log_faults.forget(partition)
        self._tell(partition)
        self._closing.append(partition)

    def _reconfigure(self, old: Image, new: Image) -> None:
        everything = old.broker_configs != new.broker_configs
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is None or (not everything and before.configs == topic.configs):
                continue
            config = self._config(topic, new)
            for partition in self._replicas.get(name, {}).values():
                partition.log.config = config
                partition.configured()

    def fail_disk(self, error: StorageError) -> None:
        """The data directory is gone for us: every log on it goes offline."""
        logger.critical("the data directory is offline", extra={"reason": str(error)})
        self._disk_failed(error)
        for name, partitions in self._replicas.items():
            for index in [i for i, p in partitions.items() if p.log.config.storage == "disk"]:
                self._offline.add((name, index), error)
                partition = partitions.pop(index)
                self._leaders.get(name, {}).pop(index, None)
                partition.fail(error)
                partition.retire()
                self._tell(partition)

    def stop_looking(self) -> None:
        """Look no more after logs that are damaged, and tell nobody of them."""
        self._log_faults.stop()
        self._offline.stop()
        if self.reports is not None:
            self.reports.stop()

    async def stop(self) -> None:
        """Open and remove no more logs, and close all; the next start does the rest. Waits for what is under way."""
        self._stopped = True
        self.stop_looking()
        unwanted = list(self._closing)
        self._opening.clear()
        self._closing.clear()
        await self.settled()
        await self.known.settled()
        await self._workers.run(partial(self.close, unwanted))

    def close(self, more: Iterable[Partition] = ()) -> None:
        """Close all logs cleanly, and note where they end. Blocking; no log may be opened meanwhile."""
        for partition in (*self, *more):
            is_whole = partition.log.failed is None
            if _quietly(partition.log.close) and is_whole:
                self.known.note(partition, is_exact=True)
        _quietly(self.known.save)


def _quietly(action: Callable[[], object]) -> bool:
    try:
        action()
        return True
    except StorageError as error:
        logger.warning("a log did not close cleanly", extra={"reason": str(error)})
        return False
