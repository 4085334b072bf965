"""A task's side: the records of one range of offsets, fetched as raw answers and opened into Arrow batches.

Rules:
- The next fetch is under way while the answer before it is opened and handed on.
- Memory is one answer (`kafka.max.partition.fetch.bytes`, or one larger record batch) plus one page of columns.
- The end of a range may be a control record or a hole: a range is done when its end is reached, however many records
  came.
- A leader that moves or a broker that restarts is asked again until kafkaConsumer.pollTimeoutMs have passed without
  data. Records that are gone are an error, or skipped with failOnDataLoss=false.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.client.errors import ClientError, UnreachableError
from headrace.core.errors import ErrorCode, ProtocolError
from headrace.spark.cluster import Cluster, MissingError, Partition, PassingError, raise_for
from headrace.spark.decode import Decoder, Span
from headrace.spark.link import Link, borrow, discard
from headrace.spark.offsets import LostRecordsError
from headrace.spark.options import EARLIEST, SourceOptions, Subscription
from headrace.spark.task import Task
from headrace.wire.guard import varint
from headrace.wire.headers import unsigned_varint

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("headrace.spark")

FETCH: Final = 1
BY_ID: Final = 13  # the first version that names topics by id
BY_NAME: Final = 12
_PAUSE_SECONDS: Final = 0.2
_SILENCE_MS: Final = 10_000  # at the end of a log, until it counts as its end
_ANSWER_SLACK_BYTES: Final = 4096

# replica, max wait, min bytes, max bytes, isolation, session, session epoch, one topic
_HEAD: Final = struct.Struct(">iiiibiiB")
# one partition: index, leader epoch, offset, last epoch, log start, max bytes; no tags twice, none forgotten, no rack
_PARTITION: Final = struct.Struct(">BiiqiqiBBBBB")
_ANSWER: Final = struct.Struct(">ihi")
_PARTITION_ANSWER: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


class Answer(NamedTuple):
    """What a broker has to give of one partition."""

    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    aborted: list[tuple[int, int]]
    records: memoryview


def request_body(task: Task, options: SourceOptions, version: int, offset: int) -> bytes:
    name = task.topic.encode()
    by_id = version >= BY_ID
    head = _HEAD.pack(
        -1,
        options.fetch_wait_ms,
        1,
        options.fetch_bytes + _ANSWER_SLACK_BYTES,
        int(options.read_committed),
        0,
        -1,
        2,
    )
    topic = (task.topic_id or UUID(int=0)).bytes if by_id else varint(len(name) + 1) + name
    body = _PARTITION.pack(2, task.partition, -1, offset, -1, -1, options.fetch_bytes, 0, 0, 1, 1, 0)
    return head + topic + body


def read_answer(version: int, data: memoryview) -> Answer:
    """The one partition of an answer. Raises ProtocolError."""
    try:
        _, error, _ = _ANSWER.unpack_from(data)
        if error:
            return Answer(ErrorCode(error), -1, -1, -1, [], data[:0])
        position = _ANSWER.size + 1
        if version >= BY_ID:
            position += 16
        else:
            size, position = _varint(data, position)
            position += size - 1
        position += 1
        _, error, high, stable, start = _PARTITION_ANSWER.unpack_from(data, position)
        position += _PARTITION_ANSWER.size
        count, position = _varint(data, position)
        aborted = []
        for _ in range(count - 1):
            aborted.append(_ABORTED.unpack_from(data, position))
            position += _ABORTED.size
            if data[position]:
                raise ProtocolError("an aborted transaction has fields that are not known")
            position += 1
        position += 4  # preferred replica
        size, position = _varint(data, position)
        records = data[position : position + max(size - 1, 0)]
        if len(records) != max(size - 1, 0):
            raise ProtocolError("a Fetch answer is cut off")
        return Answer(ErrorCode(error), high, stable, start, aborted, records)
    except (struct.error, IndexError, ValueError):
        raise ProtocolError("a Fetch answer cannot be read") from None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value, size = unsigned_varint(bytes(data[position : position + 5]), 0)
    return value, position + size


class Fetcher:
    """Reads one task."""

    def __init__(self, task: Task, schema: pa.Schema, options: SourceOptions) -> None:
        self._task = task
        self._options = options
        self._decoder = Decoder(task.topic, task.partition, schema, check_crcs=options.check_crcs)
        self._offset = task.start
        self._heard_at = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._offset < self._task.end:
            leader = self._task.leader
            try:
                with borrow(leader, self._options.client_id, self._options.request_timeout_ms / 1000) as link:
                    yield from self._from(link)
                return
            except (PassingError, UnreachableError) as error:
                discard(leader, self._options.client_id)
                silent_ms = self._silent_ms()
                self._find_leader(silent_ms)
                if self._offset < self._task.end:
                    self._wait(error, silent_ms)

    def _from(self, link: Link) -> Iterator[pa.RecordBatch]:
        task = self._task
        version = link.version(FETCH, BY_ID if task.topic_id is not None else BY_NAME)
        self._ask(link, version)
        while True:
            answer = read_answer(version, link.receive(FETCH, version))
            pages: Iterator[pa.RecordBatch] = iter(())
            if answer.error_code != ErrorCode.none:
                self._take_fault(answer)
            else:
                span = Span(self._offset, task.end, task.oldest_ms)
                after, pages = self._decoder.pages(
                    answer.records, span, answer.aborted if self._options.read_committed else ()
                )
                if after > self._offset:
                    self._offset = after
                    self._heard_at = time.monotonic()
                elif answer.records:
                    raise ProtocolError(f"the broker sent no whole batch of {task.topic}-{task.partition}")
                else:
                    self._take_silence(answer)
            more = self._offset < task.end
            if more:
                self._ask(link, version)
            for page in pages:
                yield page
                self._heard_at = time.monotonic()  # what Spark does with a page is no silence of the broker's
            if not more:
                return

    def _ask(self, link: Link, version: int) -> None:
        link.send(FETCH, version, request_body(self._task, self._options, version, self._offset))

    def _take_silence(self, answer: Answer) -> None:
        """Nothing came. If the log ends here and stays so, what was to be read is gone."""
        end = answer.last_stable_offset if self._options.read_committed else answer.high_watermark
        silent_ms = self._silent_ms()
        if 0 <= end <= self._offset and self._is_beyond_doubt(silent_ms):
            self._lost(f"ends at {end}", self._task.end)
        else:
            self._wait(PassingError(f"{self._name} has nothing to read at {self._offset}"), silent_ms, pause=False)

    def _take_fault(self, answer: Answer) -> None:
        try:
            if answer.error_code == ErrorCode.offset_out_of_range:
                self._take_wrong_offset()
            else:
                raise_for(answer.error_code, f"read {self._name}")
        except MissingError as error:
            # What this broker does not know (any more), the cluster may.
            raise PassingError(str(error), error.code) from None

    def _take_wrong_offset(self) -> None:
        cluster, places = self._look()
        first = cluster.offsets(places, dict.fromkeys(places, EARLIEST))
        start = next(iter(first.values()))
        silent_ms = self._silent_ms()
        if start > self._offset:
            self._lost(f"starts at {start} now", min(start, self._task.end))
        elif self._is_beyond_doubt(silent_ms):
            self._lost("is shorter now", self._task.end)
        else:
            self._wait(PassingError(f"{self._name} is shorter than {self._offset}"), silent_ms)

    def _silent_ms(self) -> float:
        """Read once per decision: what is lost must not turn into "no answer" between two looks at the clock."""
        return (time.monotonic() - self._heard_at) * 1000

    def _is_beyond_doubt(self, silent_ms: float) -> bool:
        """A new leader may take a moment to know how far its log is replicated, and a new broker to know its topics."""
        return silent_ms >= min(_SILENCE_MS, self._options.poll_timeout_ms)

    def _lost(self, what: str, offset: int) -> None:
        """Records from here to `offset` are gone."""
        sentence = f"{self._name} {what}: offsets {self._offset} to {offset - 1} are gone"
        if self._options.fail_on_data_loss:
            raise LostRecordsError(f"{sentence} (failOnDataLoss=false would go on)")
        log.warning("%s; going on, as failOnDataLoss is false", sentence)
        self._offset = offset

    @property
    def _name(self) -> str:
        return f"{self._task.topic}-{self._task.partition}"

    def _wait(self, error: ClientError, silent_ms: float, *, pause: bool = True) -> None:
        if silent_ms > self._options.poll_timeout_ms:
            raise error
        if pause:
            time.sleep(_PAUSE_SECONDS)

    def _look(self) -> tuple[Cluster, dict[tuple[str, int], Partition]]:
        cluster = Cluster(self._options)
        return cluster, cluster.partitions(Subscription(assigned=((self._task.topic, self._task.partition),)))

    def _find_leader(self, silent_ms: float) -> None:
        try:
            _, places = self._look()
        except (PassingError, UnreachableError):
            return
        except MissingError:
            if self._is_beyond_doubt(silent_ms):
                self._lost("does not exist any more", self._task.end)
            return
        (found,) = places.values()
        if self._task.topic_id is not None and found.topic_id not in (None, self._task.topic_id):
            self._lost("does not exist any more: its topic was made anew", self._task.end)
            return
        self._task = replace(self._task, leader=found.leader)
