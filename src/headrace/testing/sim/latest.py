"""A compacted topic: a few keys that are set again and again, and deleted now and then, while logs are compacted.

Rules:
- The last word about a key that was acknowledged is what is found about it in the end, in every replica.
- A place never means another record than the one that was acknowledged there; compaction only takes records away.
- A reader sees the words about a key in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import LATER, Client, Unknown
from headrace.testing.sim.history import History, Violation
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.storage.log import Log

NAME: Final = "latest"
PLACE: Final = (NAME, 0)
KEYS: Final = tuple(f"key {number}".encode() for number in range(5))
CONFIGS: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "700"}
FLAGS: Final = {"storage.cleaner_interval_ms": "300"}

Word = tuple[bytes, bytes | None]  # a key, and what it is set to; None: it is deleted


class Keeper:
    """Sets keys, each word until it is acknowledged; `read` goes on beside it, as a client of its own."""

    def __init__(self, client: Client, reader: Client, history: History, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._reader = reader
        self._history = history
        self._now_ms = now_ms
        self._number = 0
        self._places: dict[int, Word] = {}  # what was acknowledged where, or read
        self._last: dict[bytes, bytes | None] = {}
        self.running = True

    async def run(self) -> None:
        producer_id, epoch = await self._client.init_producer(None)
        dice, sequence = self._client.dice, 0
        while self.running:
            words = [self._word() for _ in range(dice.choice((1, 2, 3)))]
            content = batch.build(
                words,
                timestamp_ms=self._now_ms(),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            sequence += len(words)
            while not await self._send(words, content):
                await self._client.pause(0.1)
            await self._client.pause(0.3)

    def _word(self) -> Word:
        dice = self._client.dice
        self._number += 1
        key = dice.choice(KEYS)
        return key, None if dice.random() < 0.1 else b"%s is %d" % (key, self._number)

    async def _send(self, words: list[Word], content: bytes) -> bool:
        try:
            [answer] = await self._client.produce(PLACE, [content])
        except Unknown:
            return False
        if isinstance(answer, Unknown) or answer[0] in LATER:
            return False
        error, offset = answer
        if error not in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            raise Violation(f"{self._client.name} got {error.name} for {words[0]!r}")
        for place, word in enumerate(words):
            if error == ErrorCode.none:
                self._saw(offset + place, word)
            self._last[word[0]] = word[1]
        self._history.count("keys set", len(words))
        return True

    async def read(self) -> None:
        offset = 0
        while self.running:
            try:
                row = await self._reader.fetch(PLACE, offset, committed_only=False, wait_ms=50)
            except Unknown:
                row = None
            if row is not None and row.error_code == ErrorCode.none:
                found = words_in(row.records or b"", offset)
                for place, word in found.items():
                    self._saw(place, word)
                self._history.count("keys read", len(found))
                ends = [each.base_offset + each.last_offset_delta + 1 for each in batch.headers(row.records or b"")]
                # Sometimes from the start again: compacted segments are read then, and those that are being replaced.
                offset = 0 if self._reader.dice.random() < 0.1 else max([offset, *ends])
            elif row is not None and row.error_code not in LATER:
                raise Violation(f"{self._reader.name} got {row.error_code.name} at {offset} of {NAME}")
            await self._reader.pause(0.5)

    def _saw(self, offset: int, word: Word) -> None:
        before = self._places.setdefault(offset, word)
        if before != word:
            raise Violation(f"{word!r} is at {offset} of {NAME}, where {before!r} was before")

    def check(self, logs: Mapping[int, Log]) -> None:
        """`logs`: all replicas, by node. Raises Violation."""
        for node, log in logs.items():
            found = _everything(log)
            for offset, word in found.items():
                self._saw(offset, word)
            last = {found[offset][0]: found[offset][1] for offset in sorted(found)}
            for key, value in self._last.items():
                if last.get(key) != value:
                    raise Violation(f"the last word about {key!r} was {value!r}, and node {node} has {last.get(key)!r}")
            self._history.count("records compacted away", log.end_offset - len(found))


def words_in(content: bytes, begin: int = 0) -> dict[int, Word]:
    """By offset: what the batches hold from an offset on."""
    return {
        record.offset: (record.key or b"", record.value)
        for header in batch.headers(content)
        if not batch.is_control(header)
        for record in batch.records(content, header)
        if record.offset >= begin
    }


def _everything(log: Log) -> dict[int, Word]:
    found: dict[int, Word] = {}
    offset = log.start_offset
    while (span := log.locate(offset, 1 << 20, log.end_offset)) is not None:
        found.update(words_in(span.read(), offset))
        offset = span.next_offset
    return found
