"""A topic that is deleted and made again under the same name, over and over, while it is written and read.

Rules:
- Every life has an id and a number; a value names its life. Whoever writes, reads or deletes says which life it means,
  by its id. So a late request can only ever hit the life that it was meant for.
- In a life nothing of an older one is ever seen, and what was acknowledged in the last one is there in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import CREATE_TOPICS, LATER, METADATA, MOVED, Client, Unknown, verify
from headrace.testing.sim.history import History, Violation
from headrace.wire import batch

NAME: Final = "phoenix"
PLACE: Final = (NAME, 0)
PRODUCE_BY_ID, FETCH_BY_ID, DELETE_TOPICS = (0, 13), (1, 13), (20, 6)
GONE: Final = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})
UNDECIDED: Final = frozenset({ErrorCode.request_timed_out, ErrorCode.not_controller})  # done by the next one, perhaps
NOT_YET: Final = LATER | {ErrorCode.inconsistent_topic_id, ErrorCode.invalid_replication_factor}


@dataclass(slots=True)
class Life:
    """The topic from its making to its deletion."""

    number: int
    topic_id: UUID
    acknowledged: dict[bytes, int] = field(default_factory=dict)  # value -> offset
    seen: dict[int, bytes] = field(default_factory=dict)
    position: int = 0  # of the reader

    def saw(self, offset: int, value: bytes) -> None:
        """Raises Violation."""
        if int(value.split(b"/")[0]) != self.number:
            raise Violation(f"{value!r} is at {offset} of life {self.number} of {NAME}")
        if self.seen.setdefault(offset, value) != value:
            raise Violation(
                f"{value!r} is at {offset} of life {self.number} of {NAME}, where {self.seen[offset]!r} was"
            )


class Phoenix:
    """Makes, writes, deletes; `read` goes on beside it, as a client of its own."""

    def __init__(
        self, client: Client, reader: Client, history: History, now_ms: Callable[[], int], *, factor: int, in_sync: int
    ) -> None:
        self._client = client
        self._reader = reader
        self._history = history
        self._now_ms = now_ms
        self._factor = factor
        self._in_sync = in_sync
        self._count = 0
        self._dead: dict[UUID, None] = {}
        self.life: Life | None = None
        self.running = True

    async def run(self) -> None:
        dice = self._client.dice
        while True:
            life = self.life = await self._make()
            for number in range(dice.randrange(2, 7)):
                await self._write(life, number)
                await self._client.pause(0.3)
            if not self.running:
                return
            await self._delete(life)

    async def read(self) -> None:
        while self.running:
            if self.life is not None:
                await self._read(self.life)
            await self._reader.pause(0.5)

    def check(self, found: Sequence[tuple[int, bytes | None]]) -> None:
        """`found`: everything that is in the last life. Raises Violation."""
        assert self.life is not None
        for offset, value in found:
            self.life.saw(offset, value or b"-1")
        there = dict(found)
        for value, offset in self.life.acknowledged.items():
            if there.get(offset) != value:
                raise Violation(f"{value!r} was acknowledged at {offset} of {NAME} and is lost")

    # -- how

    async def _make(self) -> Life:
        client = self._client
        config = [{"name": "min.insync.replicas", "value": str(self._in_sync)}]
        row = {"name": NAME, "num_partitions": 1, "replication_factor": self._factor, "configs": config}
        while True:
            try:
                answer = await client.call(client.anybody(), CREATE_TOPICS, {"topics": [row], "timeout": 3000}, 5)
                [made] = answer.topics
                if made.error_code not in NOT_YET | {ErrorCode.none, ErrorCode.topic_already_exists}:
                    raise Violation(f"CreateTopics: {made.error_code.name} {made.error_message}")
                topic_id = await self._find()
            except Unknown:
                topic_id = None
            if topic_id is not None:
                client.moved(PLACE)
                self._reader.moved(PLACE)
                self._count += 1
                self._history.count("lives of a topic")
                return Life(self._count, topic_id)
            await client.pause(0.1)

    async def _find(self) -> UUID | None:
        """The id of the topic that is there now, as somebody says; None if there is none, or only a dead one."""
        request = {"topics": [{"name": NAME}], "allow_auto_topic_creation": False}
        found = await self._client.call(self._client.anybody(), METADATA, request)
        [topic] = found.topics
        is_there = topic.error_code == ErrorCode.none and topic.topic_id not in self._dead
        return topic.topic_id if is_there else None

    async def _delete(self, life: Life) -> None:
        client = self._client
        uncertain = False
        while True:
            try:
                request = {"topics": [{"name": None, "topic_id": life.topic_id}], "timeout": 3000}
                answer = await client.call(client.anybody(), DELETE_TOPICS, request, 5)
            except Unknown:
                uncertain = True
                await client.pause(0.1)
                continue
            [row] = answer.responses
            if row.error_code == ErrorCode.none or (uncertain and row.error_code in GONE):
                self._dead[life.topic_id] = None
                return
            uncertain |= row.error_code in UNDECIDED
            if row.error_code not in NOT_YET:
                raise Violation(f"DeleteTopics: {row.error_code.name} {row.error_message}")
            await client.pause(0.1)

    async def _write(self, life: Life, number: int) -> None:
        client = self._client
        value = f"{life.number}/{number}".encode()
        content = batch.build([(None, value)], timestamp_ms=self._now_ms())
        topic = {"topic_id": life.topic_id, "partition_data": [{"index": 0, "records": content}]}
        request = {"transactional_id": None, "acks": -1, "timeout": 2000, "topic_data": [topic]}
        try:
            answer = await client.call(await client.leader(PLACE), PRODUCE_BY_ID, request)
        except Unknown:
            return
        [[row]] = [one.partition_responses for one in answer.responses]
        if row.error_code == ErrorCode.none:
            life.saw(row.base_offset, value)
            life.acknowledged[value] = row.base_offset
            self._history.count("acknowledged in lives of a topic")
        elif row.error_code not in NOT_YET:
            raise Violation(f"{client.name} got {row.error_code.name} for {value!r}")
        elif row.error_code in MOVED:
            client.moved(PLACE)

    async def _read(self, life: Life) -> None:
        part = {"partition": 0, "fetch_offset": life.position, "partition_max_bytes": 1 << 16}
        request = {
            "max_wait": 50,
            "min_bytes": 1,
            "isolation_level": 0,
            "topics": [{"topic_id": life.topic_id, "partitions": [part]}],
        }
        try:
            answer = await self._reader.call(await self._reader.leader(PLACE), FETCH_BY_ID, request)
        except Unknown:
            return
        if answer.error_code != ErrorCode.none or not answer.responses:
            return
        [[row]] = [one.partitions for one in answer.responses]
        if row.error_code == ErrorCode.none:
            self._take(life, row.records or b"")
        elif row.error_code not in NOT_YET:
            raise Violation(f"{self._reader.name} got {row.error_code.name} at {life.position} of {NAME}")
        elif row.error_code in MOVED:
            self._reader.moved(PLACE)

    def _take(self, life: Life, content: bytes) -> None:
        verify(content, PLACE, life.position)
        for header in batch.headers(content):
            for record in batch.records(content, header):
                life.saw(record.offset, record.value or b"-1")
                life.position = max(life.position, record.offset + 1)
                self._history.count("read in lives of a topic")
