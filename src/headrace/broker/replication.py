"""Followers at work: each partition that another node leads is copied from there, by Kafka's own Fetch.

Rules:
- One `Fetcher` per leader node: one request asks for all partitions that it leads and we follow; the leader answers as
  soon as it has something, so that a record is on its way to us before it is synced there.
- Batches are appended as they are. A batch that is damaged, or does not fit, is never appended. Offsets may be missing
  only below the leader's high watermark: nothing else is compacted.
- To ask for an offset says that we have everything below. So where the topic wants it synced, it is, before we ask on.
- If our log parts from the leader's it is cut, as `isr.divergence` says, and we ask again. A log that ends before the
  leader's begins is begun anew. Neither happens below what we know to be committed: such a leader is not followed, and
  the controller is told (`ShortLeader`), now and then until one leads that has it all.
- What an answer says counts only if the partition still follows that leader, in that epoch.
- What is wrong with one partition is its own: it pauses, longer and longer, and the others go on.
- A partition that comes to a fetcher does not wait for a long poll to end: the poll is given up, and the next request
  goes by another lane.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.commands import ShortLeader
from headrace.core.counters import ClusterCounters
from headrace.core.errors import ApiError, CorruptionError, ErrorCode, LinkError, ProtocolError, StorageError
from headrace.isr.divergence import EpochEnd, known_committed, truncate_to
from headrace.isr.state import NEVER
from headrace.storage import cutting
from headrace.wire import batch
from headrace.wire.headers import skip_tagged_fields
from headrace.wire.messages import decode_response, encode_request

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.commands import Quorum
    from headrace.broker.flusher import Flusher
    from headrace.broker.known_logs import KnownLogs
    from headrace.broker.partition import Partition
    from headrace.core.ports import Clock, Links

logger = logging.getLogger(__name__)

FETCH: Final = 1
VERSION: Final = 17
WAIT_MS: Final = 500
ANSWER_SECONDS: Final = 5.0  # beyond the wait
MAX_BYTES: Final = 8 * 1024 * 1024
PARTITION_MAX_BYTES: Final = 1024 * 1024
FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 1.0
BUSY_SECONDS: Final = 0.01
REPORT_SECONDS: Final = 5.0  # that the controller may take to answer
FIRST_REPORT_SECONDS: Final = 0.5  # between two reports of short leaders of one partition; then longer and longer
LONGEST_REPORT_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 0.02  # for an answer that is nearly there
LANES: Final = 4

_HEADER: Final = struct.Struct(">hhihB")  # api key, version, correlation id, no client id, no tagged fields


@dataclass(slots=True)
class Copy:
    """How the copying of one partition goes."""

    partition: Partition
    leader_epoch: int
    offset: int = -1  # that was asked for
    due: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS
    is_short: bool = False  # its leader lacks what is committed, and that was said

    @property
    def is_current(self) -> bool:
        partition = self.partition
        follows = not partition.leads and partition.leader_epoch == self.leader_epoch
        return follows and partition.log.failed is None

    def wait(self, now: float) -> None:
        self.due, self.pause = now + self.pause, min(2 * self.pause, LONGEST_PAUSE_SECONDS)

    def went_well(self) -> None:
        self.pause = FIRST_PAUSE_SECONDS


class Throttle:
    """No more than so many bytes per second, over a second or so."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def free_at(self) -> float:
        return self._free_at

    def took(self, size_bytes: int, now: float) -> None:
        if self._bytes_per_s is not None:
            self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s


class Replication:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        links: Links,
        flusher: Flusher,
        *,
        clock: Clock,
        known: KnownLogs,
        throttle_bytes_per_s: int | None = None,
        counters: ClusterCounters | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        """`throttle_bytes_per_s`: for replicas that are being moved to this node. `quorum`: whom to tell of leaders."""
        self.node_id = node_id
        self.epoch = -1  # of our registration
        self.links = links
        self.flusher = flusher
        self.clock = clock
        self.known = known
        self.throttle = Throttle(throttle_bytes_per_s)
        self.counters = counters or ClusterCounters()
        self.quorum = quorum
        self._reports: dict[Partition, asyncio.Task[None]] = {}
        self._report_due: dict[Partition, tuple[float, float]] = {}  # the next report, and the pause after it
        self._fetchers: dict[int, Fetcher] = {}
        self._followed: dict[Partition, int] = {}
        self._started = False

    def start(self, epoch: int, partitions: Iterable[Partition]) -> None:
        """We are registered, in this epoch: follow."""
        self.epoch = epoch
        self._started = True
        for partition in partitions:
            self.changed(partition)

    def changed(self, partition: Partition) -> None:
        """A partition leads, follows, or is gone: one of the `watchers` of Partitions."""
        if not self._started:
            return
        if partition.leads or partition.leader_epoch < 0:
            self._report_due.pop(partition, None)
        before = self._followed.pop(partition, None)
        if before is not None:
            self._fetchers[before].drop(partition)
        if partition.leads or partition.leader < 0 or partition.leader == self.node_id:
            return
        fetcher = self._fetchers.get(partition.leader)
        if fetcher is None:
            fetcher = self._fetchers[partition.leader] = Fetcher(partition.leader, self)
        self._followed[partition] = partition.leader
        fetcher.add(partition)

    def committed_offset(self, partition: Partition) -> int:
        """Below this our log must not be cut."""
        log, record = partition.log, partition.record
        unclean_epoch = NEVER if record is None else record.unclean_epoch
        return known_committed(log.epochs, log.end_offset, partition.high_watermark, unclean_epoch)

    def report(self, partition: Partition, committed_offset: int) -> None:
        """Tell the controller that our leader lacks what is committed, unless that is under way."""
        now = asyncio.get_running_loop().time()
        due, pause = self._report_due.get(partition, (0.0, FIRST_REPORT_SECONDS))
        if self.quorum is not None and partition not in self._reports and now >= due:
            if now - due > LONGEST_REPORT_SECONDS:
                pause = FIRST_REPORT_SECONDS
            self._report_due[partition] = now + pause, min(2 * pause, LONGEST_REPORT_SECONDS)
            place = (partition.topic_id, partition.index)
            word = ShortLeader(
                self.node_id, self.epoch, *place, partition.leader, partition.leader_epoch, committed_offset
            )
            reporting = asyncio.get_running_loop().create_task(self._report(self.quorum, word), name="short-leader")
            self._reports[partition] = reporting
            reporting.add_done_callback(lambda _: self._reports.pop(partition, None))

    async def _report(self, quorum: Quorum, word: ShortLeader) -> None:
        try:
            await quorum.ask(word, timeout_s=REPORT_SECONDS)
        except ApiError as error:
            logger.warning("the controller was not told of a leader", extra={"reason": str(error)})

    async def stop(self) -> None:
        self._started = False
        reports = list(self._reports.values())
        for report in reports:
            report.cancel()
        if reports:
            await asyncio.wait(reports)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))


class Fetcher:
    """Copies from one node."""

    def __init__(self, leader: int, crew: Replication) -> None:
        self._leader = leader
        self._crew = crew
        self._loop = asyncio.get_running_loop()
        self._copies: dict[Partition, Copy] = {}
        self._news = asyncio.Event()  # a partition has come
        self._lane = 0
        self._pause = FIRST_PAUSE_SECONDS
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    def add(self, partition: Partition) -> None:
        self._copies[partition] = Copy(partition, partition.leader_epoch)
        self._news.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"fetcher-{self._leader}")

    def drop(self, partition: Partition) -> None:
        del self._copies[partition]

    async def stop(self) -> None:
        self._stopped = True
        self._news.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    # ------------------------------------------------------------------ rounds

    async def _run(self) -> None:
        try:
            while self._copies and not self._stopped:
                try:
                    await self._round()
                except Exception:
                    logger.exception("copying failed", extra={"leader": self._leader})
                    await self._rest(LONGEST_PAUSE_SECONDS)
        finally:
            self._task = None

    async def _round(self) -> None:
        self._news.clear()
        now = self._loop.time()
        due = [copy for copy in self._copies.values() if self._due(copy) <= now]
        if not due:
            await self._rest(min((self._due(copy) for copy in self._copies.values()), default=now) - now)
            return
        unsynced = [copy for copy in due if copy.partition.reached_offset < copy.partition.log.end_offset]
        if unsynced:
            await self._sync(unsynced)
            return
        for copy in due:
            copy.offset = copy.partition.log.end_offset
        others = [self._due(copy) - now for copy in self._copies.values() if copy not in due]
        wait_ms = max(0, min(WAIT_MS, round(1000 * min(others)))) if others else WAIT_MS
        try:
            answer = await self._ask(_request(self._crew, due, wait_ms), wait_ms / 1000 + ANSWER_SECONDS)
            if answer is None:
                return  # somebody has come who should not have to wait
            if answer.error_code:
                raise ApiError(ErrorCode(answer.error_code))
        except (LinkError, ProtocolError, ApiError) as error:
            self._crew.counters.fetcher_errors += 1
            logger.debug("a leader does not answer", extra={"leader": self._leader, "reason": str(error)})
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            await self._rest(pause)
            return
        self._pause = FIRST_PAUSE_SECONDS
        await self._take(due, answer)

    async def _sync(self, copies: Sequence[Copy]) -> None:
        """What came while we led, or followed another leader, may not be synced yet: then we cannot say we have it."""
        flushes = [self._crew.flusher.flush(copy.partition) for copy in copies]
        await asyncio.gather(*flushes, return_exceptions=True)  # a log that failed says so itself
        for copy in copies:
            if copy.partition.reached_offset < copy.partition.log.end_offset:
                copy.wait(self._loop.time())

    def _due(self, copy: Copy) -> float:
        record = copy.partition.record
        if record is not None and self._crew.node_id in record.adding:
            return max(copy.due, self._crew.throttle.free_at())
        return copy.due

    async def _rest(self, seconds: float) -> None:
        """Until somebody comes, or time is up."""
        timer = self._loop.call_later(max(seconds, 0.0), self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    async def _ask(self, frame: bytes, timeout_s: float) -> Any:
        """The answer, or None if it was given up for somebody who has come. Raises LinkError, ProtocolError."""
        lane = f"fetch-{self._lane}"
        call = asyncio.ensure_future(self._crew.links.call(self._leader, frame, lane=lane, timeout_s=timeout_s))
        news = self._loop.create_task(self._news.wait())
        try:
            await asyncio.wait([call, news], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait([call], timeout=GRACE_SECONDS)
            if not call.done():
                self._lane = (self._lane + 1) % LANES
                return None
            answer = call.result()
            return decode_response(FETCH, VERSION, answer, skip_tagged_fields(answer, 4))
        finally:
            news.cancel()
            call.cancel()

    # ------------------------------------------------------------------ answers

    async def _take(self, asked: Sequence[Copy], answer: Any) -> None:
        """Do what the leader says, to all partitions; then sync what has to be."""
        by_place = {(copy.partition.topic_id, copy.partition.index): copy for copy in asked}
        unsynced: list[tuple[Copy, Any]] = []
        for topic in answer.responses:
            for part in topic.partitions:
                copy = by_place.get((topic.topic_id, part.partition_index))
                if copy is None or not copy.is_current or copy.offset != copy.partition.log.end_offset:
                    continue
                try:
                    await self._follow(copy, part, unsynced)
                except (ApiError, StorageError) as error:
                    self._complain(copy, error)
        flushes = [self._crew.flusher.flush(copy.partition) for copy, _ in unsynced]
        await asyncio.gather(*flushes, return_exceptions=True)  # a log that failed says so itself
        for copy, part in unsynced:
            if copy.is_current:
                self._learn(copy, part)

    async def _follow(self, copy: Copy, part: Any, unsynced: list[tuple[Copy, Any]]) -> None:
        """Raises ApiError, StorageError."""
        partition = copy.partition
        if part.error_code == ErrorCode.offset_out_of_range:
            await self._begin_again(copy, part.log_start_offset)
        elif part.error_code:
            raise ApiError(ErrorCode(part.error_code))
        elif part.diverging_epoch.epoch >= 0:
            await self._cut(copy, EpochEnd(part.diverging_epoch.epoch, part.diverging_epoch.end_offset))
        elif part.records:
            if part.log_start_offset > copy.offset:
                raise ApiError(ErrorCode.offset_out_of_range, "The leader's log begins after what it sent.")
            await self._append(copy, bytes(part.records), part.high_watermark)
            if partition.durable_ack:
                unsynced.append((copy, part))
                return
            self._learn(copy, part)
        else:
            self._learn(copy, part)

    def _learn(self, copy: Copy, part: Any) -> None:
        copy.went_well()
        if copy.partition.learn(part.high_watermark, part.log_start_offset):
            self._crew.flusher.request(copy.partition)

    async def _append(self, copy: Copy, data: bytes, high_watermark: int) -> None:
        partition, log = copy.partition, copy.partition.log
        first = next(batch.headers(data), None)
        if first is not None and first.base_offset < log.end_offset == log.start_offset:
            # The leader's log begins within a batch: so must ours.
            await self._work(copy, partial(cutting.restart, log, first.base_offset, now_ms=self._crew.clock.now_ms()))
            if not copy.is_current:
                return
        gaps_below = log.mark.gaps_below
        partition.append_copied(data, high_watermark)
        if log.mark.gaps_below > gaps_below and not log.config.compacts:
            self._report(copy, "offsets are missing, and the topic is not compacted (any more)", log.mark.gaps_below)
        record = partition.record
        if record is not None and self._crew.node_id in record.adding:
            self._crew.throttle.took(len(data), self._loop.time())

    async def _cut(self, copy: Copy, leader: EpochEnd) -> None:
        log = copy.partition.log
        cut = truncate_to(log.epochs, log.end_offset, leader)
        if cut.end_offset >= log.end_offset:
            raise ApiError(ErrorCode.unknown_leader_epoch, "The leader says that the logs part, but not where.")
        self._must_have(copy, cut.end_offset)
        self._report(copy, "a log is cut, for its leader never had the rest", cut.end_offset)
        await self._work(copy, partial(cutting.truncate, log, cut.end_offset, now_ms=self._crew.clock.now_ms()))

    async def _begin_again(self, copy: Copy, start_offset: int) -> None:
        log = copy.partition.log
        if start_offset < 0 or (log.end_offset >= start_offset and log.epochs.latest >= 0):
            raise ApiError(ErrorCode.offset_out_of_range)
        self._must_have(copy, start_offset)
        self._report(copy, "a log is begun anew, for its leader has no more what comes next", start_offset)
        await self._work(copy, partial(cutting.restart, log, start_offset, now_ms=self._crew.clock.now_ms()))

    def _must_have(self, copy: Copy, end_offset: int) -> None:
        """Raises ApiError if our log would be cut below what is committed."""
        committed = self._crew.committed_offset(copy.partition)
        if end_offset >= committed:
            return
        if not copy.is_short:
            copy.is_short = True
            partition = copy.partition
            about = {"topic": partition.topic, "partition": partition.index, "leader": self._leader}
            about |= {"leader_has": end_offset, "committed": committed, "end_offset": partition.log.end_offset}
            logger.error(
                "a leader lacks records that were committed: it is not followed, and nothing is cut; the controller is "
                "asked for another leader (if there is none, the partition waits for an unclean election by a person)",
                extra=about,
            )
        self._crew.report(copy.partition, committed)
        raise ApiError(ErrorCode.offset_out_of_range, f"the leader's log ends, or parts from ours, at {end_offset}")

    async def _work(self, copy: Copy, work: Callable[[], None]) -> None:
        """Cut the log in a worker, with nobody else at it; or not at all, if we do not follow any more."""
        partition = copy.partition
        while partition.log.busy:
            await self._crew.flusher.flush(partition)
            if partition.log.busy:
                await asyncio.sleep(BUSY_SECONDS)  # compaction is at it
        if copy.is_current:
            await partition.cut(work, self._crew.known.careful(partition))

    def _report(self, copy: Copy, message: str, offset: int) -> None:
        partition = copy.partition
        about = {"topic": partition.topic, "partition": partition.index, "end_offset": partition.log.end_offset}
        logger.warning(message, extra={**about, "offset": offset, "high_watermark": partition.high_watermark})

    def _complain(self, copy: Copy, error: Exception) -> None:
        partition = copy.partition
        copy.wait(self._loop.time())
        self._crew.counters.fetcher_errors += 1
        level = logging.ERROR if isinstance(error, CorruptionError) else logging.DEBUG
        about = {"topic": partition.topic, "partition": partition.index, "leader": self._leader, "reason": str(error)}
        logger.log(level, "a partition is not copied for now", extra=about)


def _request(crew: Replication, copies: Sequence[Copy], wait_ms: int) -> bytes:
    topics: dict[UUID, list[dict[str, int]]] = {}
    for copy in copies:
        log = copy.partition.log
        topics.setdefault(copy.partition.topic_id, []).append(
            {
                "partition": copy.partition.index,
                "current_leader_epoch": copy.leader_epoch,
                "fetch_offset": copy.offset,
                "last_fetched_epoch": log.epochs.latest,
                "log_start_offset": log.start_offset,
                "partition_max_bytes": PARTITION_MAX_BYTES,
            }
        )
    fields = {
        "replica_state": {"replica_id": crew.node_id, "replica_epoch": crew.epoch},
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": MAX_BYTES,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in topics.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return _HEADER.pack(FETCH, VERSION, 0, -1, 0) + encode_request(FETCH, VERSION, fields)
