"""Dead letters: what a pipeline put aside, to be looked at and sent again. No Spark is needed here.

Rules:
- A letter waits until it is replayed. How far a source's letters were replayed is committed to a group of its own, in
  the same transaction as the records: each is sent once, whatever is killed, and of two replays one is fenced.
- In a topic, a letter is known by its place there. In a table, by the record that it was: misfits are written in the
  order of their partition, so that one number for each partition says how far a replay is.
- A replay sends what was there when it began: a letter that comes back as a letter waits for the next replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import TopicPartition

from headrace.client.admin import Admin
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.client.groups import Groups
from headrace.client.message import Message
from headrace.client.reader import Range, Reader
from headrace.core.errors import ConfigError
from headrace.spark.lake.table import Table
from headrace.spark.pipeline.config import Pipeline, TopicSource
from headrace.spark.pipeline.frames import place
from headrace.spark.pipeline.lineage import with_letters
from headrace.spark.sink_marker import Markers
from headrace.spark.sink_options import PREFIX, SinkOptions
from headrace.spark.sink_producer import Outlet
from headrace.spark.sink_rows import ANY_PARTITION, Headers, Record

OURS: Final = "headrace."  # how our headers begin
_AT_ONCE: Final = 500  # letters in one transaction

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that did not fit. Topic, partition and offset are its own, not those of the dead-letter topic."""

    source: str
    topic: str
    partition: int
    offset: int
    time: str
    error: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    done: tuple[Place, int]  # what a replay commits

    def record(self, to: str) -> Record:
        own: Headers = list(self.headers)
        return to, ANY_PARTITION, self.key, self.value, own or None


class Box(Protocol):
    """Where the letters of one source lie."""

    def letters(self, done: Mapping[Place, int]) -> Iterator[Letter]:
        """In order, without those that were replayed."""
        ...


@dataclass(frozen=True, slots=True)
class TopicBox:
    source: str
    topic: str
    connection: Connection

    def letters(self, done: Mapping[Place, int]) -> Iterator[Letter]:
        admin = Admin(self.connection)
        if self.topic not in admin.topic_names():
            return
        places = [(self.topic, partition) for partition in admin.partitions([self.topic])[self.topic]]
        starts, stops = admin.offsets(places, "earliest"), admin.offsets(places, "latest")
        ranges = [Range(*each, max(starts[each], done.get(each, 0)), stops[each]) for each in places]
        with Reader(ranges, bootstrap=self.connection) as reader:
            for message in reader:
                yield self._letter(message)

    def _letter(self, message: Message) -> Letter:
        def said(name: str, default: str = "") -> str:
            found = message.header(OURS + name)
            return default if found is None else found.decode("utf-8", "replace")

        return Letter(
            self.source,
            said("topic"),
            int(said("partition", "-1")),
            int(said("offset", "-1")),
            said("timestamp"),
            said("error"),
            message.key,
            message.value,
            tuple(each for each in message.headers if not each[0].startswith(OURS)),
            ((message.topic, message.partition), message.offset + 1),
        )


@dataclass(frozen=True, slots=True)
class TableBox:
    source: str
    path: str

    def letters(self, done: Mapping[Place, int]) -> Iterator[Letter]:
        table = Table(self.path)
        if not table.exists():
            return
        rows = table.open().to_pyarrow_table()
        for row in rows.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")]).to_pylist():
            if row["offset"] >= done.get((row["topic"], row["partition"]), 0):
                yield self._letter(row)

    def _letter(self, row: Mapping[str, Any]) -> Letter:
        return Letter(
            self.source,
            row["topic"],
            row["partition"],
            row["offset"],
            str(row["timestamp"]),
            row["error"],
            row["key"],
            row["value"],
            tuple((each["key"], each["value"]) for each in row.get("headers") or ()),
            ((row["topic"], row["partition"]), row["offset"] + 1),
        )


class DeadLetters:
    """The letters of a pipeline, or of one of its sources."""

    def __init__(self, pipeline: Pipeline, folder: Path, source: str = "") -> None:
        known = with_letters(pipeline)
        if source and source not in known:
            raise ConfigError(f"source {source!r} has no dead letters; those with on_error: dlq are {_listed(known)}")
        if not known:
            raise ConfigError(f"no source of {pipeline.name} has on_error: dlq")
        self._name = pipeline.name
        self._connection = Connection(pipeline.broker)
        self._boxes: dict[str, Box] = {}
        for name in [source] if source else known:
            found = pipeline.sources[name]
            assert isinstance(found, TopicSource) and found.decode is not None
            if found.decode.dlq:
                self._boxes[name] = TopicBox(name, found.decode.dlq, self._connection)
            else:
                self._boxes[name] = TableBox(name, place(folder, found.decode.dlq_table))

    def waiting(self, *, replayed: bool = False) -> Iterator[Letter]:
        """Letters that were not replayed, or all that are still there."""
        self._connection.reach()
        for name, box in self._boxes.items():
            yield from box.letters({} if replayed else self._done(name))

    def replay(self, to: str = "", limit: int | None = None) -> Counter[str]:
        """Send what waits to the topics that it came from, or to one; how many went where."""
        self._connection.reach()
        sent: Counter[str] = Counter()
        for name, box in self._boxes.items():
            left = None if limit is None else limit - sent.total()
            if left != 0:
                sent += self._replay(name, box, to, left)
        return sent

    def _replay(self, name: str, box: Box, to: str, limit: int | None) -> Counter[str]:
        options = SinkOptions(self._connection.address)
        outlet = Outlet(options, self._group(name))
        outlet.initialise()  # first: nobody else moves what we look at next
        group = Markers(options).group(self._group(name))
        letters = islice(box.letters(self._done(name)), limit)
        sent: Counter[str] = Counter()
        while chunk := list(islice(letters, _AT_ONCE)):
            records = [each.record(to or _home(each)) for each in chunk]
            done = dict(each.done for each in chunk)
            try:
                outlet.begin()
                outlet.send(records)
                outlet.commit([TopicPartition(*where, offset) for where, offset in done.items()], group)
            except BaseException:
                outlet.abandon()
                raise
            sent.update(record[0] for record in records)
        return sent

    def _done(self, name: str) -> dict[Place, int]:
        commits = Groups(self._connection).commits(self._group(name), stable=True)  # of a replay that has just ended
        return {where: offset for where, (offset, _) in commits.items()}

    def _group(self, name: str) -> str:
        return f"{PREFIX}dlq-{self._name}-{name}"


def _home(letter: Letter) -> str:
    if not letter.topic:
        (topic, partition), after = letter.done
        raise ClientError(f"record {topic}-{partition}-{after - 1} does not say where it came from; give a topic")
    return letter.topic


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
